"""Runs notebooks and keeps what they show, so that a reader sees it without running them.

    python notebooks/run.py notebooks/*.ipynb

Each cell runs in the notebook's own folder. What differs from one run to the next without meaning
anything (times of execution, ids) is left out: the same records give the same file. Where a cell
fails, its notebook stays as it is.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TIMEOUT_SECONDS = 300  # of a cell; on a machine at rest a notebook takes less than a minute


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh run. Raises CellExecutionError where a cell does."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT_SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # in however many pieces it came
        # What libraries in C++ write to stderr has the time in it, and is not for the reader.
        extra_arguments=["--IPKernelApp.capture_fd_output=False"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    for position, cell in enumerate(notebook.cells):
        cell.id = f"cell-{position}"
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


if __name__ == "__main__":
    for name in sys.argv[1:]:
        executed = execute(Path(name))
        Path(name).write_text(nbformat.writes(executed) + "\n", encoding="utf-8")
