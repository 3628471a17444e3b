"""A command line whose trials run in a fake worker: no test here starts TensorFlow."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memtrade
from memtrade import cli
from memtrade.graph import GraphData, Op, StepGraph, Tensor
from memtrade.measure import trial

ROOT = Path(memtrade.__file__).resolve().parents[1]

# Answers as the real worker does, but for the trick that a test asks for.
FAKE_WORKER = """
import json, os, signal, sys, time
spec = json.loads(sys.stdin.read())
def say(type, **fields):
    print(json.dumps({"type": type, **fields}), flush=True)
strategy, trick = spec["strategy"], os.environ.get("TRICK", "")
open(os.environ["STARTED"], "a").write(strategy + "\\n")
say("progress", phase="trace")
if trick == "below":
    say("failed", status="bad_input", reason="the limit is below\\nthe variables")
elif trick == "hang" and strategy == "ome":
    open(os.environ["STARTED"] + ".pid", "w").write(str(os.getpid()))
    time.sleep(60)
elif trick == "kill" and strategy == "lms":
    os.kill(os.getpid(), signal.SIGKILL)
elif trick == "oom" and strategy == "original":
    say("failed", status="out_of_memory", reason="OOM when allocating tensor")
elif trick == "infeasible":
    say("failed", status="infeasible", reason="no plan fits")
elif spec["task"] == "extract":
    open(spec["graph_path"], "wb").write(open(os.environ["GRAPH"], "rb").read())
    say("done")
elif spec["task"] == "verify":
    wrong = trick == "wrong" and strategy == "ome"
    gap = {"max_difference": wrong / 2, "of_update": wrong / 2}
    say("verified", equal=not wrong, tolerance=0.0, steps=spec["steps"], variables=3, **gap,
        differing=[{"name": f"w{i}", **gap} for i in range(7 * wrong)], itself=wrong / 4)
    say("done")
else:
    say("planned", summary=dict(kept=1, recomputed=2, swapped=3, kept_bytes=10,
        recomputed_bytes=20, swapped_bytes=30, clones=4, actions=50))
    say("step_done", seconds=0.5, peak_bytes=1000000, loss=1.0)
    peak = 2000000 if strategy == "original" else 1000000
    say("done", measured=dict(peak_bytes=peak, peak_bytes_by_step=[peak], persistent_bytes=400000,
        memory_cost_bytes=600000, host_bytes=50, step_seconds=[0.5], warmup_seconds=[1.0],
        median_seconds=0.5, fastest_seconds=0.5, slowest_seconds=0.5, trace_seconds=0.1,
        plan_seconds=0.2, rewrite_seconds=0.3, losses=[1.0, 1.0]))
"""


def checkout() -> dict[str, str]:
    """The environment in which a new process finds this memtrade."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return dict(os.environ) | {"PYTHONPATH": path}


class Shell:
    """Runs commands in a folder of their own, with the fake worker in place of the real one."""

    def __init__(
        self,
        folder: Path,
        capture: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ):
        self.folder, self._capture, self._monkeypatch = folder, capture, monkeypatch
        self.tools = folder.parent / f"{folder.name}-tools"
        self.tools.mkdir()
        self.worker = self.tools / "worker.py"
        self.worker.write_text(FAKE_WORKER, encoding="utf-8")
        self.started_file = self.tools / "started"
        monkeypatch.setenv("STARTED", str(self.started_file))
        monkeypatch.setenv("GRAPH", str(self.tools / "graph"))
        monkeypatch.chdir(folder)
        monkeypatch.setattr(trial.run_child, "__kwdefaults__", self._with_worker(trial.run_child))

    def _with_worker(self, function: Callable[..., object]) -> dict[str, Any]:
        defaults = function.__kwdefaults__ or {}
        return defaults | {"worker": (sys.executable, str(self.worker))}

    def run(self, *tokens: str, trick: str = "") -> tuple[int, str, str]:
        """Exit status, stdout, stderr."""
        self._monkeypatch.setenv("TRICK", trick)
        self._capture.readouterr()
        status = cli.main(tokens)
        out, err = self._capture.readouterr()
        return status, out, err

    def started(self) -> list[str]:
        """The strategies whose child was started."""
        return self.started_file.read_text().split() if self.started_file.exists() else []


@pytest.fixture
def shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    folder = tmp_path / "work"
    folder.mkdir()
    return Shell(folder, capsys, monkeypatch)


@pytest.fixture
def graph(shell: Shell) -> StepGraph:
    """x -> square -> loss, and its gradient; the child hands it over."""
    shape, size = (64, 64), 64 * 64 * 4

    def op(number: int, name: str, kind: str, *inputs: int) -> Op:
        return Op(number, name, kind, inputs, (), (number,), False, {})

    ops = (
        op(0, "x", "Placeholder"),
        op(1, "square", "Square", 0),
        op(2, "loss", "Sum", 1),
        op(3, "gradient", "SquareGrad", 2, 1),
    )
    tensors = tuple(
        Tensor(i, i, 0, "float32", () if i == 2 else shape, 4 if i == 2 else size) for i in range(4)
    )
    data = GraphData("toy", ops, tensors, (0,), (), (), (2,), (3,), 2, ())
    made = StepGraph(data)
    (shell.tools / "graph").write_bytes(made.to_bytes())
    return made
