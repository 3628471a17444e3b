"""The corpus' table: which steps work, are equal to the bit, and take how much less.

    python -m tests.corpus results/corpus [NAME ...]

Each step in a child of its own as it is, and in one for each strategy (`tests.corpus.trial`).
Writes corpus.csv and corpus.md into the folder; with names (or the beginning of some), only these
steps' rows are made anew; with the name "missing", those of steps that have none yet.
"""

from __future__ import annotations

import argparse
import collections
import csv
import importlib
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec
from memtrade.results.sheets import Sheet
from tests.corpus import CORPUS
from tests.corpus.running import ITSELF

LIMIT_BYTES = 3 << 30
TIMEOUT_SECONDS = 300
ARENA_VARIABLE = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
COLUMNS: tuple[str, ...] = (
    "step", "strategy", "outcome", "equal", "original_bytes", "original_most_bytes", "rest_bytes",
    "peak_bytes",
    "needed_bytes", "predicted_original_bytes", "told_bytes", "predicted_bytes", "bound",
    "original_seconds", "seconds", "trace_seconds", "apply_seconds", "said",
)  # fmt: skip
BUDGETED = "optimal"
STRATEGIES = ("ome", BUDGETED)
MISSING = "missing"
_EQUAL = {"True": "yes", "False": "no", ITSELF: ITSELF}
SHARE = 0.6  # the budget of `optimal`, of the original's peak
ORIGINALS = 3  # runs of each step as it is: their peaks differ

Row = dict[str, Any]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """What is wrong, in one line."""
        self.exit(2, f"tests.corpus: {message}\n")


def main(words: Sequence[str]) -> int:
    parser = _Parser(prog="python -m tests.corpus", description="The corpus' table.")
    parser.add_argument("folder", help="where corpus.csv and corpus.md go")
    parser.add_argument(
        "names", nargs="*", help="of steps, or how they begin; missing: those without a row"
    )
    given = parser.parse_args(words)
    for name in given.names:
        if name != MISSING and not any(each.startswith(name) for each in CORPUS):
            families = sorted({each.partition("/")[0] for each in CORPUS})
            parser.error(f"no step begins with {name!r}; families are {', '.join(families)}")
    if ARENA_VARIABLE not in os.environ:  # what TensorFlow reads when it is imported
        spec = TrialSpec(device="arena", memory_limit_bytes=LIMIT_BYTES)
        environment = {**child_environment(spec), "PYTHONPATH": os.pathsep.join(sys.path)}
        os.execve(sys.executable, [sys.executable, "-m", "tests.corpus", *words], environment)
    return _make(given.folder, given.names)


def _make(folder: str, chosen: Sequence[str]) -> int:
    """Makes the rows of the steps that are `chosen`, or of all."""
    trial = importlib.import_module("tests.corpus.trial")  # once, for all children
    path = Path(folder, "corpus.csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = _read(path)
    for name in CORPUS:
        left = MISSING in chosen and all(row["step"] != name for row in rows)
        if left or not chosen or any(name.startswith(each) for each in chosen):
            made = _tried(trial, name)
            print(name, *(f"{row['strategy']} {row['outcome']}," for row in made), flush=True)
            rows = [row for row in rows if row["step"] != name] + made
            _write(path, rows)
    sheet = _sheet(rows, folder).to_markdown()
    Path(folder, "corpus.md").write_text(sheet, encoding="utf-8")
    return 0


def _tried(trial: Any, name: str) -> list[Row]:
    """The rows of a step, beside what it takes as it is."""
    children = [_child(trial.run, name, trial.ORIGINAL, {}) for _ in range(ORIGINALS)]
    originals = [each for each in children if "peak_bytes" in each]
    known: Row = {"step": name}
    if originals:
        peaks = [each["peak_bytes"] for each in originals]
        known["original_bytes"], known["original_most_bytes"] = min(peaks), max(peaks)
        known["original_seconds"] = statistics.median(each["seconds"] for each in originals)
        known["rest_bytes"] = originals[0]["rest_bytes"]
    budgets = {BUDGETED: {"budget": int(SHARE * known.get("original_bytes", 0))}}
    return [
        {**known, "strategy": each, **_child(trial.run, name, each, budgets.get(each, {}))}
        for each in STRATEGIES
    ]


def _child(run: Callable[..., None], name: str, strategy: str, given: Row) -> Row:
    """What a child sends that is forked before TensorFlow has begun."""
    forking = multiprocessing.get_context("fork")
    here, there = forking.Pipe(duplex=False)
    child = forking.Process(target=run, args=(name, strategy, given, there))
    child.start()
    there.close()
    row: Row = {"outcome": "timeout"}
    if here.poll(TIMEOUT_SECONDS):
        try:
            row = here.recv()
        except EOFError:
            row = {"outcome": "crashed"}
    child.kill()
    child.join()
    return row


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer: csv.DictWriter[Any] = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: str(row["step"])))


def _number(row: Row, key: str) -> float | None:
    return float(row[key]) if row.get(key) not in (None, "") else None


def _share(row: Row, above: str, below: str) -> float | None:
    part, whole = _number(row, above), _number(row, below)
    return part / whole if part is not None and whole else None


def _sheet(rows: Sequence[Row], folder: str) -> Sheet:
    ordered = sorted(rows, key=lambda row: str(row["step"]))
    lines = tuple(_line(row) for row in ordered)
    notes = [_summary(strategy, rows) for strategy in STRATEGIES]
    return Sheet(
        title="Training steps as people write them: measured before and after memtrade.apply",
        columns=(
            "step",
            "strategy",
            "outcome",
            "equal",
            "original MB",
            "between steps MB",
            "peak MB",
            "peak / original",
            "least found / original",
            "predicted / peak",
            "step / original",
        ),
        words=4,
        rows=lines,
        weak=frozenset(i for i, row in enumerate(ordered) if row["outcome"] != "rewritten"),
        notes=(*notes, _NOTE),
        command=f"python -m tests.corpus {folder}",
    )


_NOTE = (
    "Peaks are the allocator's, variables and batch included; `optimal` has a budget of 60% of the "
    "original's. Equal: all that is returned and every variable after two steps, to the bit, "
    "against TensorFlow without its graph optimizer; as itself: run again, the original differs "
    "from itself, too. Each row, and each original, has a process of "
    "its own. The executor hands out the ops of a step as it is in an order that differs from "
    f"process to process, and its peak with it: the range is that of {ORIGINALS} runs, and shares "
    "are of the lowest. Steps take milliseconds, so a "
    "plan's own ops weigh more in them than in large ones; other work ran beside them. Between "
    "steps: variables, batch and constants, below which nothing comes. Least found: where a budget "
    "cannot be kept, the smallest peak of any plan, as predicted. Predicted: ≥ where tensors have "
    "no known size, ≈ where some have that of the batch, ≤ where some are only bounded."
)


def _line(row: Row) -> tuple[str, ...]:
    def text(value: float | None, form: str = "{:.2f}") -> str:
        return "-" if value is None else form.format(value)

    def sizes(*keys: str) -> str:
        found = [size / 1e6 for key in keys if (size := _number(row, key)) is not None]
        return " to ".join(dict.fromkeys(map(text, found))) or "-"

    return (
        str(row["step"]),
        str(row["strategy"]),
        str(row["outcome"]),
        _EQUAL.get(str(row.get("equal")), "-"),
        sizes("original_bytes", "original_most_bytes"),
        sizes("rest_bytes"),
        sizes("peak_bytes"),
        text(_share(row, "peak_bytes", "original_bytes")),
        text(_share(row, "needed_bytes", "original_bytes")),
        str(row.get("bound", "")) + text(_share(row, "predicted_bytes", "peak_bytes")),
        text(_share(row, "seconds", "original_seconds")),
    )


def _summary(strategy: str, rows: Sequence[Row]) -> str:
    own = [row for row in rows if row["strategy"] == strategy]
    ran = [row for row in own if row["outcome"] in ("rewritten", "as it is")]
    said = collections.Counter(str(row.get("equal")) for row in ran)
    equal = f"{said['True']} of them equal"
    if said[ITSELF]:
        equal += f" and {said[ITSELF]} as near as the original comes to itself"
    smaller = [s for row in ran if (s := _share(row, "peak_bytes", "original_bytes")) is not None]
    above = f", {sum(s > SHARE for s in smaller)} above the budget" if strategy == BUDGETED else ""
    slower = [s for row in ran if (s := _share(row, "seconds", "original_seconds")) is not None]
    sized = [row for row in ran if row["outcome"] == "rewritten" and not row.get("bound")]
    off = [
        s - 1 for row in sized if (s := _share(row, "predicted_bytes", "peak_bytes")) is not None
    ]
    left = sum(row["outcome"] == "as it is" for row in ran)
    if not smaller:
        return f"{strategy}: none of {len(own)} ran."
    outcomes = collections.Counter(row["outcome"] for row in own if row not in ran)
    others = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    return (
        f"{strategy}: {len(ran)} of {len(own)} steps ran ({others or 'all'}){above}, {equal}, "
        f"{left} as they were; median peak {statistics.median(smaller):.0%} of the "
        f"original's, largest {max(smaller):.0%}; median step {statistics.median(slower):.2f} "
        f"times the original's{_off(off)}."
    )


def _off(shares: Sequence[float]) -> str:
    """How far predictions are off, of steps whose tensors all have a size; nothing of none."""
    if not shares:
        return ""
    return (
        f"; of {len(shares)} rewritten steps whose tensors all have a size, "
        f"predictions are off by {statistics.median(map(abs, shares)):.1%} in the median, "
        f"{sum(abs(each) <= 0.02 for each in shares)} by 2% at most, and "
        f"{sum(each < -0.005 for each in shares)} more than 0.5% too low"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
