"""The documentation site: MyST pages, API from docstrings, references from `references.bib`.

`scripts/docs` builds it with warnings as errors. Neither a build nor its pages need a network.
"""

import logging
import sys
from pathlib import Path

from PIL import Image

import twolayer

sys.path.insert(0, str(Path(__file__).parent))  # the live figures are stated beside this file

project = "twolayer"
author = "The twolayer authors"
copyright = author
version = release = twolayer.__version__

extensions = [
    "myst_nb",  # Markdown pages, and notebooks with the outputs stored in them
    "sphinx.ext.autodoc",
    "numpydoc",  # sections of docstrings
    "sphinx.ext.mathjax",
    "sphinx_design",  # the cards of the first page
    "sphinxcontrib.bibtex",
    "live_figures",
    "make_claims",
]
mathjax_path = "mathjax/tex-chtml.js"
# Formulas of one size whatever font a reader's machine has: matched to wide letters, they outgrow the column.
mathjax3_config = {"chtml": {"matchFontHeight": False, "scale": 1.2}}
exclude_patterns = ["live_figures.py", "make_cards.py", "make_claims.py", "make_gallery.py", "run_notebooks.py"]

# A name in single backticks within a docstring is a link where there is something to link to.
default_role = "py:obj"
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the text says what an argument is; annotations of shapes make signatures long
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = False
numpydoc_show_class_members = False

bibtex_bibfiles = ["references.bib"]
bibtex_reference_style = "author_year"
bibtex_default_style = "plain"

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the outputs are stored (`docs/run_notebooks.py`), and the tests run the cells
nb_merge_streams = True

html_theme = "pydata_sphinx_theme"
html_context = {"default_mode": "auto"}
html_title = "twolayer"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("copy.js", {"defer": "defer"})]
html_favicon = "_static/logo.svg"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "twolayer", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg"},
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 5,
    "navbar_persistent": [],
    "navbar_end": ["search-button", "theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
# Pages that stand alone have no list of neighbours, and their tables and cards take its place.
ALONE = """index getting-started gallery claims cite choose losses spectra sweeps explorer extend sharp-bits notation
performance glossary architecture contributing changelog references"""
html_sidebars = {page: [] for page in ALONE.split()}


def _without_factories(app, what, name, obj, options, signature, returned):
    """Defaults that are made anew for each object have no text of their own."""
    return (signature.replace("<factory>", "..."), returned) if signature and "<factory>" in signature else None


def _small_pictures(app, failure):
    """Draw the pictures of a finished site with 128 colours: no difference to the eye, a third of the bytes."""
    if failure is not None or app.builder.format != "html":
        return
    for path in (Path(app.outdir) / "_images").glob("*.png"):
        with Image.open(path) as picture:
            if picture.mode == "P":
                continue
            small = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
        small.save(path, optimize=True)


def setup(app):
    # The pages of the gallery are made from its folders; a checkout without them is whole, too.
    logging.getLogger("sphinx.sphinx.directives.other").addFilter(lambda record: record.args != ("gallery/*",))
    app.connect("autodoc-process-signature", _without_factories)
    app.connect("build-finished", _small_pictures)
