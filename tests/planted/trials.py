"""How a planted case is tried: it runs out, its page is read, and the cures are tried."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from memtrade.explain.cause import Cause
from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec
from memtrade.results.sheets import NONE
from tests import forks
from tests.planted.limits import LIMITS

OUT_OF_MEMORY = 3  # the exit status of `tests.planted.child`
ROOT = Path(__file__).resolve().parents[2]

# What a page says of each cause; tests/explain holds that it does.
WORDS: dict[Cause, str] = {
    "batch": "the batch is too large",
    "need": "whatever its batch",
    "fragmentation": "fragmentation:",
    "scratch": "scratch memory of a kernel",
    "leak": "tensors that stay between steps",
    "another model": "something else in the process",
}

Row = dict[str, str]
Said = tuple[str, str, bool | None]
Attempt = Callable[[], Iterator[Said]]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A case, and how it is tried. `attempt` yields what was told, who asked, then each cure with
    whether it ran."""

    way: str
    kind: Cause
    attempt: Attempt


def fitted(name: str, limit_mib: int) -> Attempt:
    """`tests.planted.cases`, in a child that calls `memtrade.explain_oom`."""

    def attempt() -> Iterator[Said]:
        status, page = _child(name, limit_mib)
        if status != OUT_OF_MEMORY:
            raise RuntimeError(f"{name}: exit status {status}, not out of memory:\n{page[-3000:]}")
        told = [kind for kind, words in WORDS.items() if words in page]
        who = re.search(r"^who +(.*?)$", page, re.MULTILINE)
        yield " and ".join(told) or "unknown", who[1].strip() if who else "", None
        for cure, given in cures(page):
            status, said = _child(name, limit_mib, json.dumps(given))
            if status not in (0, OUT_OF_MEMORY):
                raise RuntimeError(f"{name}, {cure}: exit status {status}:\n{said[-3000:]}")
            yield cure, next(iter(map(str, given.values()))), status == 0

    return attempt


def cures(page: str) -> Iterator[tuple[str, dict[str, object]]]:
    """What a page offers: its name, and the arguments of a `Cure`."""
    line = re.search(r"^ +((?:train_step = )?memtrade\..*\))\s*$", page, re.MULTILINE)
    if line:
        strategy = re.search(r'strategy="(\w+)"', line[1])
        yield f"plan: {strategy[1] if strategy else ''}", {"line": line[1]}
    batch = re.search(r"- a batch of about ([\d,]+)", page)
    if batch:
        yield "smaller batch", {"batch": int(batch[1].replace(",", ""))}
    habits = ("- giving back the other model", "- deleting those variables", "- keeping numbers")
    if any(habit in page for habit in habits):
        yield "habit", {"habit": True}


def recorded(*flags: str, onednn: bool = True) -> Attempt:
    """A trial of `memtrade run`, its record explained, and the command that the page offers."""

    def attempt() -> Iterator[Said]:
        with tempfile.TemporaryDirectory() as folder:
            failed = _run(flags, folder, onednn)
            if failed["status"] != "out_of_memory":
                raise RuntimeError(f"{flags}: {failed['status']}, not out of memory")
            page = json.loads(_memtrade("explain", str(failed["path"]), "--json", onednn=onednn))
            found = page["explanation"]
            yield found["kind"], f"{found['layer']} ({found['source']}): {found['op']}", None
            if page["command"]:
                _, _, *words = shlex.split(page["command"])
                ran = _run((*words, "--steps", "2"), f"{folder}/cured", onednn)
                yield f"plan: {page['remedy']['strategy']}", page["command"], ran["status"] == "ok"

    return attempt


def tried(name: str) -> list[Row]:
    """The rows of a case: one for each cure, or one where none is offered."""
    trial = TRIALS[name]
    (told, asked, _), *offered = trial.attempt()
    head = {"case": name, "way": trial.way, "planted": trial.kind, "told": told, "asked": asked}
    rows = [
        {**head, "cure": cure, "offered": what, "ran": "yes" if ran else "no"}
        for cure, what, ran in offered
    ]
    return rows or [{**head, "cure": NONE, "offered": "", "ran": NONE}]


def _child(name: str, limit_mib: int, *given: str) -> tuple[int, str]:
    spec = TrialSpec(memory_limit_bytes=limit_mib << 20)
    environment = {**child_environment(spec, os.environ), "COLUMNS": "200"}
    environment["TF_ENABLE_ONEDNN_OPTS"] = "0"
    words = ["-m", "tests.planted.child", name, *given]
    done = forks.ran(words, env=environment, folder=ROOT)
    return done.returncode, done.stderr


def _run(flags: tuple[str, ...], folder: str, onednn: bool) -> dict[str, object]:
    """The record of one trial, with its path."""
    _memtrade("run", *flags, "--results", folder, "--json", onednn=onednn)
    [path] = Path(folder).glob("*.json")
    return {**json.loads(path.read_text(encoding="utf-8")), "path": path}


def _memtrade(*words: str, onednn: bool) -> str:
    command = [sys.executable, "-m", "memtrade", *words]
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": str(int(onednn))}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{shlex.join(words)}: {done.stderr[-2000:]}")
    return done.stdout


_RESNET = ("--strategy", "original", "--layers", "18", "--num-classes", "10")
_FILTERS = (
    "--strategy",
    "original",
    "--target",
    "tests.planted.steps:filters",
    "--batch-size",
    "8",
)

RECORDED: tuple[tuple[str, Cause, Attempt], ...] = (
    (
        "a batch of ResNet-18",
        "batch",
        recorded(*_RESNET, "--image-size", "64", "--batch-size", "64", "--memory-limit", "120MiB"),
    ),
    (
        "a batch of small images",
        "batch",
        recorded(*_RESNET, "--image-size", "32", "--batch-size", "256", "--memory-limit", "125MiB"),
    ),
    (
        "one image for ResNet-18",
        "need",
        recorded(*_RESNET, "--image-size", "640", "--batch-size", "1", "--memory-limit", "170MiB"),
    ),
    (
        "ResNet-18's own holes",
        "fragmentation",
        recorded(*_RESNET, "--image-size", "64", "--batch-size", "64", "--memory-limit", "156MiB"),
    ),
    (
        "patches of images",
        "scratch",
        recorded(*_FILTERS, "--memory-limit", "80MiB", onednn=False),
    ),
)
TRIALS: dict[str, Trial] = {
    name: Trial(way="explain_oom", kind=kind, attempt=fitted(name, limit_mib))
    for name, (kind, limit_mib) in LIMITS.items()
} | {
    name: Trial(way="memtrade explain", kind=kind, attempt=attempt)
    for name, kind, attempt in RECORDED
}
