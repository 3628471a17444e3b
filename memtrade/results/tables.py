"""Tables of records: strategies side by side.

Records of the same model, sizes, optimizer, device, limit and machine make one comparison. Ratios
relate a row to `original` in the same comparison; without one that ran, they are "-". A view only
reads records: nothing is measured again. What was predicted has columns of its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

import msgspec
import pandas as pd

from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import (
    Record,
    options_text,
    to_frame,
    unusual_model_options,
    unusual_strategy_options,
)
from memtrade.models import make_model
from memtrade.results.machines import hardware, machine_labels, unlike
from memtrade.results.sheets import NONE, Sheet, cell
from memtrade.strategies import STRATEGIES
from memtrade.units import megabytes

PREDICTED = "predicted peak MB"
ERROR = "error %"
COLUMNS: tuple[str, ...] = (
    "strategy",
    "status",
    "peak MB",
    PREDICTED,
    ERROR,
    "memory cost MB",
    "host MB",
    "step s",
    "relative peak",
    "relative time",
    "kept / recomputed / swapped",
)
_REASON_LENGTH = 160

# Stands behind a time that was measured beside other trials, and behind a ratio to or of such.
BESIDE = "†"

# What a narrow terminal leaves out, in this order, until the rest fits; CSV has everything.
_EXPENDABLE = ("kept / recomputed / swapped", "relative peak", "host MB", ERROR, PREDICTED)

# Where TensorFlow ran out of memory: a trial has one device, and the title names it.
_PLACE = re.compile(r" on /job:\S+( by allocator \S+)?")

# Marks a prediction that was made after the run, of a trial that there was none of before.
AFTERWARDS = "‡"


def compare(records: Sequence[Record]) -> list[Sheet]:
    """A sheet for each step in `records`, in the order in which they first appear."""
    groups: dict[bytes, list[Record]] = {}
    for record in records:
        groups.setdefault(_group_key(record), []).append(record)
    machines = machine_labels(record.machine for record in records)
    comparisons = []
    for group in groups.values():
        place = machines[hardware(group[0].machine)] if len(machines) > 1 else ""
        comparisons.append(_comparison(group, place))
    return comparisons


def _cells(record: Record, original: Record | None) -> tuple[str, ...]:
    """What `COLUMNS` say of it, with ratios to an original that ran."""
    measured, plan, predicted = record.measured, record.plan, record.shown_prediction
    foreseen = predicted.peak_text if predicted else NONE
    foreseen += AFTERWARDS if record.predicted_by else ""
    figures = (NONE, foreseen, *(NONE,) * 4)
    if measured is not None:
        figures = (
            megabytes(measured.peak_bytes),
            foreseen,
            cell(percent, record.peak_error),
            megabytes(measured.memory_cost_bytes),
            megabytes(measured.host_bytes),
            beside(seconds(measured.median_seconds), record.jobs),
        )
    relative_peak, relative_time = _ratios(record, original)
    jobs = max(record.jobs, original.jobs if original else 1)
    return (
        strategy_label(record),
        status_text(record.status),
        *figures,
        ratio(relative_peak),
        beside(ratio(relative_time), jobs),
        f"{plan.kept} / {plan.recomputed} / {plan.swapped}" if plan else NONE,
    )


def _ratios(record: Record, original: Record | None) -> tuple[float | None, float | None]:
    """Peak and step time over the original's, where both ran."""
    if original is None or original.measured is None or record.measured is None:
        return None, None
    ours, theirs = record.measured, original.measured
    return ours.peak_bytes / theirs.peak_bytes, ours.median_seconds / theirs.median_seconds


def _frame(records: Sequence[Record], original: Record | None) -> pd.DataFrame:
    """All columns of `to_frame`, in bytes and seconds, the ratios and the prediction's error."""
    frame = to_frame(records)
    ratios = [_ratios(record, original) for record in records]
    place = list(frame.columns).index("peak_bytes")
    for position, name in enumerate(("relative_peak", "relative_time")):
        values = pd.array([each[position] for each in ratios], dtype="Float64")
        frame.insert(place + position, name, values)
    errors = pd.array([record.peak_error for record in records], dtype="Float64")
    frame.insert(
        list(frame.columns).index("predicted_peak_bytes") + 1, "predicted_peak_error", errors
    )
    return frame


def strategy_label(record: Record) -> str:
    """The strategy with what is not the default: "lms (lb=3)", "ome (dataflow)"."""
    return spec_label(record.spec)


def spec_label(spec: TrialSpec) -> str:
    """The same of a trial that has not run."""
    words = [
        options_text(unusual_strategy_options(spec)),
        spec.order if spec.order != "pinned" else "",
        "saved plan" if spec.plan_path else "",
    ]
    inside = ", ".join(word for word in words if word)
    return f"{spec.strategy} ({inside})" if inside else spec.strategy


def status_text(status: str) -> str:
    return status.replace("_", " ")


def number(value: float | None) -> str:
    return "no number" if value is None else f"{value:.3g}"


def seconds(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.3f}"


def percent(share: float) -> str:
    """Signed, without the sign of the unit; what rounds to nothing is +0.00."""
    return f"{round(100 * share, 2) + 0.0:+.2f}"


def ratio(value: float | None) -> str:
    return cell("{:.2f}".format, value)


def beside(text: str, jobs: int) -> str:
    """The text of a time, marked if so many trials ran at a time that it compares to no other.

    >>> beside("2.32", jobs=1), beside("4.10", jobs=2), beside(NONE, jobs=2)
    ('2.32', '4.10†', '-')
    """
    return text + BESIDE if jobs > 1 and text != NONE else text


def beside_note(jobs: int) -> str:
    """What the mark says, where up to so many trials ran at a time."""
    return (
        f"{BESIDE} measured beside other trials, up to {jobs} at a time, which slow each other "
        "down: compare no times with it; memtrade sweep --retry parallel measures it alone"
    )


def _group_key(record: Record) -> bytes:
    spec = record.spec
    key = (
        record.model,
        # Older records are without options that came later, and had their defaults.
        dataclasses.asdict(make_model(spec.model, spec.model_options)),
        spec.optimizer,
        spec.split,
        spec.device,
        spec.memory_limit_bytes,
        hardware(record.machine),
    )
    return msgspec.json.encode(key, order="sorted")


def _comparison(records: Sequence[Record], place: str = "") -> Sheet:
    """`place` names the machine where the tables are of several."""
    registry = {name: position for position, name in enumerate(STRATEGIES)}
    ordered = sorted(
        records, key=lambda r: (registry.get(r.spec.strategy, len(registry)), r.created)
    )
    # The graph of `original` stays untouched, so the order of the others does not touch it.
    originals = [record for record in ordered if record.spec.strategy == "original"]
    original = next((each for each in reversed(originals) if each.measured is not None), None)
    notes = [_conditions(ordered)]
    if (jobs := max(record.jobs for record in ordered)) > 1:
        notes.append(beside_note(jobs))
    if differing := unlike(ordered):
        said = "; ".join(f"{name}: {values}" for name, values in differing.items())
        notes.append(f"not all ran under the same conditions: {said}")
    if any(record.shown_prediction for record in ordered):
        notes.append(_prediction(ordered))
    if original is None:
        why = (
            f"original: {status_text(originals[-1].status)}"
            if originals
            else "original is not among these trials"
        )
        notes.append(f"{why}, so there is nothing to relate the others to")
    notes += [
        f"{strategy_label(r)}: {status_text(r.status)}: {_shorten(r.reason)}"
        for r in ordered
        if r.status != "ok"
    ]
    title = ", ".join(part for part in (_title(ordered[0]), place) if part)
    return Sheet(
        title=title,
        columns=COLUMNS,
        words=2,
        rows=tuple(_cells(record, original) for record in ordered),
        weak=frozenset(i for i, record in enumerate(ordered) if record.status != "ok"),
        notes=tuple(notes),
        command="\n".join(dict.fromkeys(r.command for r in ordered if r.command)),
        expendable=_EXPENDABLE,
        frame=_frame(ordered, original),
    )


def _title(record: Record) -> str:
    spec = record.spec
    limit_bytes = spec.memory_limit_bytes
    limit = f" of {limit_bytes / (1 << 20):,.0f} MiB" if limit_bytes else ""
    return f"{step_text(spec)}, {spec.device}{limit}"


def step_text(spec: TrialSpec) -> str:
    """The step: "resnet-50, batch 32, 224 × 224 pixels, sgd", as far as it is decided."""
    batch, size = (spec.model_options.get(name) for name in ("batch_size", "image_size"))
    parts = [
        make_model(spec.model, spec.model_options).name,
        f"batch {batch}" if batch else "",
        f"{size} × {size} pixels" if size else "",
        options_text(unusual_model_options(spec)),
        spec.optimizer,
        f"in parts ({spec.split})" if spec.split else "",
    ]
    return ", ".join(part for part in parts if part)


def _conditions(records: Sequence[Record]) -> str:
    """Where and how the figures were measured; the newest record speaks for all."""
    machine, spec = records[-1].machine, records[-1].spec
    versions = sorted({str(record.machine.tensorflow_version) for record in records})
    return (
        f"step s: median of {_range(r.spec.steps for r in records)} steps after "
        f"{spec.warmup} of warm-up; {machine.cpu_model}, {machine.cores} cores, "
        f"TensorFlow {', '.join(versions)}"
    )


def _prediction(records: Sequence[Record]) -> str:
    """What the predicted column says, and of the peaks that do not fit, which those are."""
    note = (
        f"{PREDICTED}: by the simulator, before the step ran; "
        f"{ERROR}: predicted less measured peak, of the measured one"
    )
    afterwards = sorted({record.predicted_by for record in records if record.predicted_by})
    if afterwards:
        note += f"; {AFTERWARDS}: after the step ran, by memtrade {', '.join(afterwards)}"
    shown = [(r, r.shown_prediction) for r in records]
    unfit = [strategy_label(r) for r, said in shown if said and not said.fits]
    if unfit:
        note += f"; what it would take, beyond the limit: {', '.join(unfit)}"
    return note


def _range(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return f"{found[0]} to {found[-1]}" if len(found) > 1 else f"{found[0]}"


def _shorten(reason: str) -> str:
    reason = " ".join(_PLACE.sub("", reason).split())
    return reason if len(reason) <= _REASON_LENGTH else reason[: _REASON_LENGTH - 1] + "…"
