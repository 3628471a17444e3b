"""The thesis' steps side by side: published, here its way, predicted for its GPU, our own way.

    published                what the thesis printed, at batch 32 on a GTX 1070
    the thesis' way, here    its networks (`thesis_nets.py`) under the original tools' rules, in the
                             executor's order, measured in an arena
    the originals            those tools themselves on the same networks, in an arena, where
                             there are records of them (`originals.py`)
    the thesis' way, its GPU the same at batch 32, predicted (results/predicted/thesis.csv)
    memtrade's own rules     the same networks under memtrade's rules in a pinned order, measured

Batches differ, so what compares is the ratio to `original` of the same source.
"""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from memtrade.errors import MemtradeError
from memtrade.measure.records import Record, planned_options, unusual_model_options
from memtrade.options import Value
from memtrade.papers.thesis_nets import INCEPTION, OPTIMIZER, ORDER, RESNET, TOOLS, rules_of
from memtrade.papers.thesis_predictor import published
from memtrade.results.sheets import Sheet
from memtrade.results.sheets import cell as text
from memtrade.results.words import ratio, seconds
from memtrade.strategies import make_options
from memtrade.units import megabytes

STRATEGIES = ("original", "checkpoints", "lms", "ome")
BATCH = 32
# What `python -m memtrade.papers.thesis_prediction results/predicted` writes.
PREDICTED = Path("results") / "predicted" / "thesis.csv"


class Cell(NamedTuple):
    """A peak and a step time of one source."""

    peak_bytes: float | None = None
    step_seconds: float | None = None


CellByStrategy = dict[str, Cell]


def tools_sheets(records: Sequence[Record], *, predicted: Path = PREDICTED) -> list[Sheet]:
    """A sheet for each network and batch size that was measured.

    Args:
        predicted: where the predictions are; without that file their rows are empty.

    Raises:
        MemtradeError: no record is of the thesis' networks.
    """
    found: dict[tuple[int | None, int], list[Record]] = {}
    for record in sorted(records, key=lambda record: record.created):
        if is_thesis_net(record):
            options = record.spec.model_options
            key = options.get("layers"), options["batch_size"]
            found.setdefault(key, []).append(record)
    if not found:
        raise MemtradeError(
            "no record is of the thesis' networks: measure them with memtrade sweep thesis_tools "
            "--results results/thesis"
        )
    frame: Any = pd.read_csv(predicted) if predicted.is_file() else None
    found = {key: each for key, each in found.items() if any(r.measured for r in each)}
    ordered = sorted(found, key=lambda key: (key[0] is None, key[0] or 0, key[1]))
    return [_sheet(*key, found[key], frame) for key in ordered]


def is_thesis_net(record: Record) -> bool:
    """Whether the trial's step is one of the thesis', whatever its depth, batch and image size."""
    wanted = {"resnet": RESNET, "inception-v4": INCEPTION}.get(record.spec.model)
    free = ("image_size", "seed", "data_format")
    unusual = {k: v for k, v in unusual_model_options(record.spec).items() if k not in free}
    told = {k: v for k, v in (wanted or {}).items() if k not in free}
    return wanted is not None and unusual == told and record.spec.optimizer == OPTIMIZER


def _sheet(layers: int | None, batch: int, tried: Sequence[Record], predicted: Any) -> Sheet:
    records = [record for record in tried if record.measured is not None]
    theirs = _measured(records, layers, own=False)
    ours = _measured(records, layers, own=True)
    originals = {TOOLS[r.spec.strategy]: _cell(r) for r in records if r.spec.strategy in TOOLS}
    printed = _published(layers)
    sources: dict[str, CellByStrategy] = {
        f"published, batch {BATCH}": printed,
        f"the thesis' way, here, batch {batch}": theirs,
        **({f"the originals, TensorFlow 1, here, batch {batch}": originals} if originals else {}),
        f"the thesis' way, its GPU, predicted, batch {BATCH}": _predicted(predicted, layers),
        f"memtrade's own rules, here, batch {batch}": ours,
    }
    rows = [
        (strategy, name, cells.get(strategy, Cell()), cells.get("original", Cell()))
        for strategy in STRATEGIES
        for name, cells in sources.items()
    ]
    name = "InceptionV4" if layers is None else f"ResNet-{layers} v2"
    machine = records[-1].machine
    return Sheet.of(
        rows,
        [
            ("source", lambda it: it[1]),
            ("peak MB", lambda it: text(lambda size: megabytes(round(size)), it[2].peak_bytes)),
            ("of original's", lambda it: _over(it[2].peak_bytes, it[3].peak_bytes)),
            ("step s", lambda it: text(seconds, it[2].step_seconds)),
            ("of original's time", lambda it: _over(it[2].step_seconds, it[3].step_seconds)),
        ],
        sections=tuple(strategy for strategy, *_ in rows),
        title=f"{name}, batch {batch}: published, measured, predicted",
        notes=(
            *(_against(printed, theirs) if batch == BATCH else ()),
            *_notes(records, layers),
            *(f"{r.spec.strategy}, here: {r.reason}" for r in tried if r.measured is None),
            f"here: {machine.cpu_model}, {machine.cores} cores",
        ),
        command="\n".join(dict.fromkeys(record.command for record in records)),
        frame=pd.DataFrame(
            [
                {"net": name, "strategy": strategy, "source": source, **cell._asdict()}
                for strategy, source, cell, _ in rows
            ]
        ),
    )


def _over(one: float | None, other: float | None) -> str:
    return ratio(one / other if one is not None and other else None)


def _against(printed: CellByStrategy, theirs: CellByStrategy) -> list[str]:
    """How far the measured shares of `original`'s peak are from the published ones; where the
    thesis could not run `original`, the peaks themselves."""

    def peaks(strategy: str) -> tuple[float, float] | None:
        pair = [cells.get(strategy, Cell()).peak_bytes for cells in (theirs, printed)]
        return (pair[0], pair[1]) if pair[0] and pair[1] else None

    whole, told = peaks("original") or (1.0, 1.0), []
    for strategy in STRATEGIES[1:]:
        if pair := peaks(strategy):
            off = (pair[0] / whole[0]) / (pair[1] / whole[1]) - 1
            told.append(f"{strategy} {off:+.1%}")
    of = "their shares of original's" if peaks("original") else "their peaks"
    against = f"the thesis' way, here, against the published, {of}: {', '.join(told)}"
    return [against] if told else []


def _published(layers: int | None) -> CellByStrategy:
    return {
        row.strategy: Cell(row.peak_mb and 1e6 * row.peak_mb, row.seconds)
        for row in published()
        if (row.layers, row.batch_size) == (layers, BATCH) and row.table != "max batch"
    }


def _predicted(frame: Any, layers: int | None) -> CellByStrategy:
    if frame is None:
        return {}
    chosen = frame["layers"].isna() if layers is None else frame["layers"] == layers
    rows = frame[chosen & (frame["batch_size"] == BATCH) & (frame["table"] != "max batch")]
    return {
        str(row.strategy): Cell(1e6 * row.predicted_peak_mb, row.predicted_seconds)
        for row in rows.itertuples()
    }


def _measured(records: Iterable[Record], layers: int | None, *, own: bool) -> CellByStrategy:
    """Of several records of the same trial, the newest."""
    column: CellByStrategy = {}
    for record in records:
        if is_original(record) or rule_of(record, layers) == ("own" if own else "theirs"):
            column[record.spec.strategy] = _cell(record)
    return column


def _cell(record: Record) -> Cell:
    assert record.measured is not None  # as of all records here
    return Cell(record.measured.peak_bytes, record.measured.median_seconds)


def is_original(record: Record) -> bool:
    return record.spec.strategy == "original"


def rule_of(record: Record, layers: int | None) -> str:
    """ "theirs", "own", or "" for whatever else was tried."""
    spec = record.spec
    if spec.strategy not in STRATEGIES:
        return ""
    given: dict[str, Value] = rules_of(layers)[spec.strategy]
    made = planned_options(spec)
    if spec.order == ORDER and made == make_options(spec.strategy, given):
        return "theirs"
    return "own" if spec.order == "pinned" and made == make_options(spec.strategy) else ""


def _notes(records: Sequence[Record], layers: int | None) -> list[str]:
    """How much times varied, and what the original tools' rules did to the graph."""
    notes = []
    for record in records:
        measured, plan = record.measured, record.plan
        assert measured is not None
        strategy = record.spec.strategy
        theirs = rule_of(record, layers) == "theirs" and not is_original(record)
        if plan is None or not (theirs or strategy in TOOLS):
            continue
        steps = measured.peak_bytes_by_step
        whose = f"{strategy}, the thesis' way" if theirs else strategy
        notes.append(
            f"{whose}, here: {plan.ops_added} ops added, "
            f"{plan.swapped} tensors swapped, {len(plan.checkpoints or ())} checkpoints, "
            f"{measured.plan_seconds + measured.rewrite_seconds:.1f} s to edit; peaks "
            f"{megabytes(min(steps))} to {megabytes(max(steps))} MB, steps "
            f"{seconds(measured.fastest_seconds)} to {seconds(measured.slowest_seconds)} s"
        )
    ran = [record.measured for record in records if record.measured is not None]
    losses = [r.measured.losses for r in records if r.spec.strategy in TOOLS and r.measured]
    if losses:
        same = "the same to the bit" if len(set(losses)) == 1 else "not the same"
        notes.append(f"the losses of the {len(losses)} trials under TensorFlow 1 are {same}")
    spreads = [measured.slowest_seconds / measured.fastest_seconds for measured in ran]
    notes.append(
        f"the slowest step took {statistics.median(spreads):.2f} times the fastest "
        f"(median over {len(spreads)} trials)"
    )
    return notes
