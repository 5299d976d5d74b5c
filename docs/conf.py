"""The documentation site: MyST pages, API from docstrings, references from `references.bib`.

`scripts/docs` builds it with warnings as errors. A build needs no network; pages load MathJax from a CDN.
"""

import logging

import twolayer

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
]
exclude_patterns = ["make_claims.py", "make_gallery.py", "run_notebooks.py"]

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
html_title = "twolayer"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "twolayer"},
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
html_sidebars = {"index": []}


def _without_factories(app, what, name, obj, options, signature, returned):
    """Defaults that are made anew for each object have no text of their own."""
    return (signature.replace("<factory>", "..."), returned) if signature and "<factory>" in signature else None


def setup(app):
    # The pages of the gallery are made from its folders; a checkout without them is whole, too.
    logging.getLogger("sphinx.sphinx.directives.other").addFilter(lambda record: record.args != ("gallery/*",))
    app.connect("autodoc-process-signature", _without_factories)
