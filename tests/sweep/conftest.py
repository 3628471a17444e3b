"""A fake worker, and sweeps of small files that use it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from memtrade.measure import host
from tests.sweep.workers import use_worker

# Answers as the real worker does, but for the trick that a test asks for by strategy. It notes when
# it starts and ends, in a file per process.
FAKE_WORKER = """
import json, os, sys, time
from pathlib import Path
from memtrade.measure.child import become_child
become_child()
spec = json.loads(sys.stdin.read())
strategy = spec["strategy"]
folder = Path(__file__).parent
trick = json.loads((folder / "tricks.json").read_text()).get(strategy, "")
diary = folder / "diary" / f"{time.time_ns()}-{os.getpid()}"
def note(event):
    with diary.open("a") as file:
        print(event, strategy, os.getpid(), time.monotonic_ns(), file=file)
def until(reached):
    end = time.monotonic() + 30
    while not reached() and time.monotonic() < end:
        time.sleep(0.02)
def say(type, **fields):
    print(json.dumps({"type": type, **fields}), flush=True)
note("start")
say("progress", phase="trace")
if trick == "hang":
    time.sleep(600)
if trick == "meet":  # waits for another one, and long enough to meet one too many
    until(lambda: sum(path.stat().st_size > 0 for path in diary.parent.iterdir()) > 1)
    time.sleep(0.4)
if trick == "wait":
    until((folder / "go").exists)
if trick == "crash":
    os._exit(7)
if trick == "refuse":
    say("failed", status="bad_input", reason="the limit is below the variables")
elif trick == "oom":
    say("failed", status="out_of_memory", reason="OOM when allocating tensor")
elif trick == "greedy":  # two of them do not fit into the machine's memory
    book = folder / "greedy"
    def count(word):
        return book.read_text().split().count(word) if book.exists() else 0
    def enter(word):
        with book.open("a") as file:
            file.write(word + "\\n")
    gone = count("out")
    enter("in")
    until(lambda: count("in") > 1)
    crowd = count("in") - gone
    enter("out")
    if crowd > 1:
        print("std::bad_alloc", file=sys.stderr, flush=True)
        os.abort()
if trick not in ("oom", "refuse"):
    say("planned", summary=dict(kept=1, recomputed=2, swapped=3, kept_bytes=10,
        recomputed_bytes=20, swapped_bytes=30, clones=4, actions=50))
    say("step_done", seconds=0.5, peak_bytes=1000000, loss=1.0)
    say("done", measured=dict(peak_bytes=2000000, peak_bytes_by_step=[2000000],
        persistent_bytes=400000, memory_cost_bytes=600000, host_bytes=50, step_seconds=[0.5],
        warmup_seconds=[1.0], median_seconds=0.5, fastest_seconds=0.5, slowest_seconds=0.5,
        trace_seconds=0.1, plan_seconds=0.2, rewrite_seconds=0.3, losses=[1.0, 1.0]))
note("end")
"""

Write = Callable[[str], Path]


class Fake:
    """The fake worker: its tricks, and its diary."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "diary").mkdir(parents=True)
        self.script = folder / "worker.py"
        self.script.write_text(FAKE_WORKER, encoding="utf-8")
        self.tricks({})

    def tricks(self, by_strategy: dict[str, str]) -> None:
        (self.folder / "tricks.json").write_text(json.dumps(by_strategy), encoding="utf-8")

    def go(self) -> None:
        """Lets those go on that wait."""
        (self.folder / "go").touch()

    def notes(self, event: str) -> list[tuple[str, int, int]]:
        """Strategy, process and time in ns of each start or end, by time of start."""
        lines = [line.split() for path in sorted((self.folder / "diary").iterdir())
                 for line in path.read_text().splitlines()]  # fmt: skip
        return [(line[1], int(line[2]), int(line[3])) for line in lines if line[0] == event]

    def started(self) -> list[str]:
        return [strategy for strategy, _, _ in self.notes("start")]

    def most_at_a_time(self) -> int:
        changes = [(time, 1) for _, _, time in self.notes("start")]
        changes += [(time, -1) for _, _, time in self.notes("end")]
        running = most = 0
        for _, change in sorted(changes):
            running += change
            most = max(most, running)
        return most


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """The fake worker in place of the real one, on a machine with room for 8 trials."""
    fake = Fake(tmp_path / "tools")
    use_worker(fake.script, monkeypatch.setattr)
    make_room(monkeypatch.setattr)
    return fake


def make_room(setattr: Callable[..., None]) -> None:
    """As on a machine with room for 8 trials."""
    roomy = msgspec.structs.replace(host.describe_machine(), cores=8)
    setattr(host, "describe_machine", lambda: roomy)
    setattr(host, "free_memory_bytes", lambda: 32 << 30)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a sweep file into the folder in which the test runs."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def written(text: str) -> Path:
        path = Path("sweep.toml")
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return written
