"""Run the notebooks and store their outputs in them: python docs/run_notebooks.py [NAME.ipynb ...].

The site shows the stored outputs, and the tests run the cells again. Times and counters are left out, so that a file
changes only where a picture or a number does.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "notebooks"


def run(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:  # what the cells write does not stay
        here = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False, resources=here).execute()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        if cell.cell_type == "code":
            cell.execution_count = None
            for output in cell.outputs:
                output.pop("execution_count", None)
                output.get("metadata", {}).clear()
                if output.output_type == "execute_result":  # a picture, without the count that only this kind carries
                    output["output_type"] = "display_data"
                if "image/png" in output.get("data", {}):
                    output["data"].pop("text/plain", None)
    notebook.metadata = {"language_info": {"name": "python"}, "kernelspec": notebook.metadata.get("kernelspec", {})}
    nbformat.write(notebook, path)
    print(path)


if __name__ == "__main__":
    for path in [FOLDER / Path(name).name for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        run(path)
