"""The planted cases' table: is the cause named right, and does what is offered run?

    python -m tests.planted results/answers [NAME ...]

Each case runs out of memory in a process of its own, its page is read as a user reads it, and each
cure that the page offers is tried in another process under the same limit. Writes planted.csv and
planted.md into the folder; with names (or the beginning of some), only these rows are made anew.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from memtrade.results.sheets import NONE, Sheet
from tests.planted.trials import TRIALS, Row, tried

COLUMNS = ("case", "way", "planted", "told", "asked", "cure", "offered", "ran")


def main(folder: str, *chosen: str) -> int:
    path = Path(folder, "planted.csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    for name in TRIALS:
        if chosen and not any(name.startswith(each) for each in chosen):
            continue
        made = tried(name)
        print(*(" | ".join(row.values()) for row in made), sep="\n", flush=True)
        rows = [row for row in rows if row["case"] != name] + made
        rows.sort(key=lambda row: list(TRIALS).index(row["case"]))
        with path.open("w", newline="", encoding="utf-8") as file:
            writer: csv.DictWriter[Any] = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    Path(folder, "planted.md").write_text(sheet(rows, folder).to_markdown(), encoding="utf-8")
    return 0


def sheet(rows: list[Row], folder: str) -> Sheet:
    cases = {row["case"]: row for row in rows}
    right = sum(row["planted"] == row["told"] for row in cases.values())
    offers = [row for row in rows if row["cure"] != NONE]
    ran = sum(row["ran"] == "yes" for row in offers)
    return Sheet(
        title="Out-of-memory errors that were planted, and what their pages say",
        columns=("case", "by", "planted", "told", "cure", "ran"),
        words=6,
        rows=tuple(
            tuple(row[key] for key in ("case", "way", "planted", "told", "cure", "ran"))
            for row in rows
        ),
        notes=(
            f"{right} of {len(cases)} causes are named right; {ran} of {len(offers)} cures ran.",
            "by: who explains. A cure is what the page offers: a plan, a smaller batch, or a habit "
            "(giving back the other model's memory, keeping numbers in place of tensors). ran: in "
            "a process of its own under the same limit. Without oneDNN where explain_oom explains: "
            "where one of oneDNN's kernels is refused memory, TensorFlow 2.21 ends the process.",
        ),
        command=f"python -m tests.planted {folder}",
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
