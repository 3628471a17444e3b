"""The thesis' log of InceptionV4 under OME, and ours of the same, one below the other.

    python -m memtrade.papers.thesis_log_beside results/predicted

Reads the record in results/thesis_log, which `RUN` makes, and those of results/thesis; writes
thesis_log_ome.md into the folder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memtrade.errors import MemtradeError
from memtrade.measure.protocol import NamedCheckpoint
from memtrade.measure.records import Record, load_records
from memtrade.papers.pages import page_text, write_pages
from memtrade.papers.published import published_lines
from memtrade.papers.thesis_log import (
    HEADS,
    NO_DEPTH,
    disconnected_lines,
    memory_line,
    step_line,
    thesis_log,
)
from memtrade.papers.thesis_tools import is_original, is_thesis_net
from memtrade.results.sheets import NONE, Sheet

COMMAND = "python -m memtrade.papers.thesis_log_beside results/predicted"
RUN = (
    "memtrade run --model inception-v4 --batch-size 32 --optimizer adam --order dataflow "
    "--model-option num_classes=1001 --model-option batch_norm=inference --model-option dropout=0 "
    "--model-option head=pool --strategy ome --option rule=openai --option select=read_once "
    "--log thesis --results results/thesis_log"
)
RECORDS = Path("results") / "thesis_log"
OTHERS = Path("results") / "thesis"
MODEL, STRATEGY = "inception_v4", "ome"


def _lines_of(name: str, strategy: str = STRATEGY) -> list[dict[Any, Any]]:
    return published_lines(name, model=MODEL, strategy=strategy)


def published_log() -> str:
    """The published run as the thesis printed it, but for the times beside the memory lines."""
    checkpoints = tuple(
        NamedCheckpoint(
            line["tensor"], tuple(map(int, line["shape"].split("x"))), line["dtype"], line["action"]
        )
        for line in _lines_of("thesis_log_ome_tensors")
    )
    lines = [
        HEADS[STRATEGY],
        *disconnected_lines(checkpoints),
        *(memory_line(m["max_mem_mb"], m["mem_used_mb"]) for m in _lines_of("thesis_log_memory")),
        f"--- Size:{NO_DEPTH}",
        *(
            step_line(STRATEGY, step["memory_cost_mb"], step["step_seconds"])
            for step in _lines_of("thesis_log_steps")
        ),
        "sleep 5 sec",
    ]
    return "\n".join(lines) + "\n"


def beside_sheet(record: Record, original: Record | None) -> Sheet:
    """What the two logs come to."""
    plan, measured = record.plan, record.measured
    if plan is None or measured is None:
        raise MemtradeError(f"the run of {record.filename} did not end: {record.reason}")
    tensors, steps = _lines_of("thesis_log_ome_tensors"), _lines_of("thesis_log_steps")
    between = _lines_of("thesis_log_memory")[-1]["mem_used_mb"]
    cost = max(step["memory_cost_mb"] for step in steps)
    before = max(step["memory_cost_mb"] for step in _lines_of("thesis_log_steps", "original"))
    seconds = [step["step_seconds"] for step in steps]
    checkpoints, own = plan.checkpoints or (), original and original.measured
    times = [*measured.warmup_seconds, *measured.step_seconds]
    swapped = sum(each["action"] == "swap" for each in tensors)
    our_cost = measured.memory_cost_bytes / 1e6
    share = f"{our_cost / (own.memory_cost_bytes / 1e6):.2f}" if own else NONE
    rows = (
        ("checkpoints", str(len(tensors)), str(len(checkpoints))),
        ("of which swapped", str(swapped), str(sum(c.decision == "swap" for c in checkpoints))),
        ("in use between steps, MB", f"{between:,.1f}", f"{measured.persistent_bytes / 1e6:,.1f}"),
        ("memory cost of a step, MB", f"{cost:,.1f}", f"{our_cost:,.1f}"),
        ("of original's", f"{cost / before:.2f}", share),
        ("step, s", *(f"{min(each):.3f} to {max(each):.3f}" for each in (seconds, times))),
    )
    batch = record.spec.model_options["batch_size"]
    return Sheet(
        title="InceptionV4 under OME: the thesis' log and ours",
        columns=("", "the thesis, batch 32, GTX 1070", f"here, batch {batch}, an arena"),
        rows=rows,
        notes=(
            "the thesis' max_mem is its original's, never reset",
            "of original's: cost over that of `original` at the same batch (results/thesis)",
            f"here: {record.machine.cpu_model}, {record.machine.cores} cores, which did other work",
        ),
        command=f"{RUN}\n{COMMAND}",
    )


def page(records: Sequence[Record], others: Sequence[Record]) -> str:
    """Raises MemtradeError where the record is missing."""
    found = [r for r in records if (r.spec.model, r.spec.strategy) == ("inception-v4", STRATEGY)]
    if not found:
        raise MemtradeError(f"there is no record of InceptionV4 under OME in {RECORDS}: {RUN}")
    record = max(found, key=lambda record: record.created)
    batch = record.spec.model_options["batch_size"]
    originals = [
        other
        for other in others
        if is_thesis_net(other)
        and is_original(other)
        and other.spec.model == record.spec.model
        and other.spec.model_options["batch_size"] == batch
    ]
    return page_text(
        "thesis_log_ome.md",
        beside=beside_sheet(record, originals[-1] if originals else None),
        theirs=published_log(),
        batch=batch,
        ours=thesis_log([record]),
    )


def main(folder: Path) -> None:
    text = page(load_records(RECORDS), load_records(OTHERS))
    (folder / "thesis_log_ome.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(main, __doc__)
