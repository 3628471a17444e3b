"""`memtrade watch` as one types it: a script that trains, and one that runs out of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import Run

SCRIPT = """
import sys
import keras
import numpy as np

rows, epochs = map(int, sys.argv[1:])
hidden = [keras.layers.Dense(256, "tanh", name=f"hidden_{i}") for i in range(8)]
model = keras.Sequential([keras.Input([256]), *hidden, keras.layers.Dense(1)], name="watched")
model.compile("sgd", "mse", jit_compile=False)
x = np.zeros([rows, 256], "float32")
model.fit(x, x[:, :1], batch_size=rows, epochs=epochs, verbose=0)
print("trained")
"""


def watched(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "memtrade", "watch", "--memory-limit", "120MiB"]
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.run(
        [*command, "train.py", *arguments],
        cwd=folder,
        # Where a kernel of oneDNN's runs out, TensorFlow 2.21 ends the process.
        env={**os.environ, "PYTHONPATH": root, "TF_ENABLE_ONEDNN_OPTS": "0", "COLUMNS": "120"},
        capture_output=True,
        text=True,
    )


def test_a_script_runs_as_it_is_and_its_memory_is_told(tmp_path: Path) -> None:
    done = watched(tmp_path, "4000", "12")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    lines = [line for line in done.stderr.splitlines() if line.startswith("memtrade: ")]
    assert len(lines) >= 2
    assert all("of 125.8 MB (" in line for line in lines)
    assert lines[-1].startswith("memtrade: peak ")


def test_out_of_memory_is_explained_and_the_status_is_the_scripts(tmp_path: Path) -> None:
    done = watched(tmp_path, "30000", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Out of memory: watched, batch 30000, on arena" in done.stderr
    assert "the batch is too large" in done.stderr
    assert done.stderr.index("What fits") < done.stderr.index("memtrade: peak")


def test_without_a_script_it_says_what_to_give(run: Run) -> None:
    status, _, err = run("watch")
    told = "takes SCRIPT (The Python file to run): give one, see memtrade watch --help"
    assert (status, err) == (2, f"memtrade: memtrade watch {told}\n")


def test_a_script_that_is_not_there(run: Run) -> None:
    status, _, err = run("watch", "none.py")
    assert (status, err) == (2, "memtrade: there is no script 'none.py': name a Python file\n")
    status, _, err = run("watch", "--timeout", "5", __file__)
    assert (status, err) == (2, "memtrade: a watched script takes its time: leave --timeout out\n")


@pytest.mark.parametrize(
    ("script", "first", "last"),
    [
        ("raise ValueError(1)", '  File "bad.py", line 1, in <module>', "ValueError: 1"),
        ("def f(:", '  File "bad.py", line 1', "SyntaxError: invalid syntax"),
    ],
)
def test_an_error_of_the_script_is_told_from_its_own_first_line_on(
    tmp_path: Path, script: str, first: str, last: str
) -> None:
    (tmp_path / "bad.py").write_text(script)
    command = [sys.executable, "-m", "memtrade", "watch", "--memory-limit", "120MiB", "bad.py"]
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("Traceback")]
    assert (done.returncode, lines[0], lines[-1]) == (1, first, last)
