"""Tables of records: strategies side by side.

Records of the same model, sizes, optimizer, device, limit and machine make one comparison. Ratios
relate a row to `original` in the same comparison; without one that ran, they are "-". A view only
reads records: nothing is measured again. What was predicted has columns of its own.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence

import msgspec
import pandas as pd

from memtrade.measure.protocol import Measured
from memtrade.measure.records import Record, to_frame
from memtrade.models import make_model
from memtrade.results.machines import hardware, machine_labels, unlike
from memtrade.results.sheets import Sheet, cell
from memtrade.results.words import (
    WAITING,
    beside,
    beside_note,
    device_label,
    joined,
    percent,
    plural,
    ratio,
    seconds,
    shortened,
    status_text,
    step_text,
    strategy_label,
    strategy_rank,
)
from memtrade.units import megabytes

PREDICTED = "predicted peak MB"
ERROR = "error %"
PLANNED = "kept / recomputed / swapped"
_REASON_LENGTH = 160


# What a narrow terminal leaves out, in this order, until the rest fits; CSV has everything.
_EXPENDABLE = (PLANNED, "relative peak", "host MB", ERROR, PREDICTED)

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


def _columns(original: Record | None) -> list[tuple[str, Callable[[Record], str]]]:
    """What is said of a trial, with ratios to an original that ran."""

    def measured(text: Callable[[Measured], str]) -> Callable[[Record], str]:
        return lambda record: cell(text, record.measured)

    def foreseen(record: Record) -> str:
        text = cell(lambda it: it.peak_text, record.shown_prediction)
        return text + (AFTERWARDS if record.predicted_by else "")

    def relative_time(record: Record) -> str:
        jobs = max(record.jobs, original.jobs if original else 1)
        return beside(ratio(_ratios(record, original)[1]), jobs)

    return [
        ("strategy", lambda it: strategy_label(it.spec)),
        ("status", lambda it: status_text(it.status)),
        ("peak MB", measured(lambda m: megabytes(m.peak_bytes))),
        (PREDICTED, foreseen),
        (ERROR, _error_text),
        ("memory cost MB", measured(lambda m: megabytes(m.memory_cost_bytes))),
        ("host MB", measured(lambda m: megabytes(m.host_bytes))),
        ("step s", lambda it: beside(measured(lambda m: seconds(m.median_seconds))(it), it.jobs)),
        ("relative peak", lambda it: ratio(_ratios(it, original)[0])),
        ("relative time", relative_time),
        (PLANNED, lambda it: cell(lambda p: p.decided_text, it.plan)),
    ]


def _error_text(record: Record) -> str:
    """Of a range, that of its nearer end."""
    if record.shown_prediction is None or record.measured is None:
        return cell(percent, record.peak_error)
    (least, most), peak = record.shown_prediction.range_bytes, record.measured.peak_bytes
    if least < most and least <= peak <= most:
        return "within"
    return percent(min(max(peak, least), most) / peak - 1)


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


def _group_key(record: Record) -> bytes:
    spec = record.spec
    key = (
        record.model,
        # Older records are without options that came later, and had their defaults.
        dataclasses.asdict(make_model(spec.model, spec.model_options)),
        spec.optimizer,
        spec.device,
        spec.memory_limit_bytes,
        hardware(record.machine),
    )
    return msgspec.json.encode(key, order="sorted")


def _comparison(records: Sequence[Record], place: str = "") -> Sheet:
    """`place` names the machine where the tables are of several."""
    ordered = sorted(records, key=lambda r: (strategy_rank(r.spec.strategy), r.created))
    # The graph of `original` stays untouched, so the order of the others does not touch it.
    originals = [r for r in ordered if r.spec.strategy == "original" and not r.spec.split]
    original = next((each for each in reversed(originals) if each.measured is not None), None)
    notes = [_conditions(ordered)]
    if (jobs := max(record.jobs for record in ordered)) > 1:
        notes.append(beside_note(jobs))
    if differing := unlike(ordered):
        said = "; ".join(f"{name}: {values}" for name, values in differing.items())
        notes.append(f"not all ran under the same conditions: {said}")
    if any(record.shown_prediction for record in ordered):
        notes.append(_prediction(ordered))
    if any(record.plan and record.plan.waiting for record in ordered):
        notes.append(WAITING)
    if original is None:
        why = (
            f"original: {status_text(originals[-1].status)}"
            if originals
            else "original is not among these trials"
        )
        notes.append(f"{why}, so there is nothing to relate the others to")
    notes += [
        f"{strategy_label(r.spec)}: {status_text(r.status)}: "
        + shortened(_PLACE.sub("", r.reason), _REASON_LENGTH)
        for r in ordered
        if r.status != "ok"
    ]
    spec = ordered[0].spec
    device = device_label(spec.device, spec.memory_limit_bytes)
    return Sheet.of(
        ordered,
        _columns(original),
        title=joined(step_text(spec), device, place),
        words=2,
        weak=lambda record: record.status != "ok",
        notes=tuple(notes),
        command="\n".join(dict.fromkeys(r.command for r in ordered if r.command)),
        expendable=_EXPENDABLE,
        frame=_frame(ordered, original),
    )


def _conditions(records: Sequence[Record]) -> str:
    """Where and how the figures were measured; the newest record speaks for all."""
    machine, spec = records[-1].machine, records[-1].spec
    versions = sorted({str(record.machine.tensorflow_version) for record in records})
    return (
        f"step s: median of {plural((r.spec.steps for r in records), 'step')} after "
        f"{spec.warmup} of warm-up; {machine.cpu_model}, {machine.cores} cores, "
        f"TensorFlow {', '.join(versions)}"
    )


def _prediction(records: Sequence[Record]) -> str:
    """What the predicted column says, and of the peaks that do not fit, which those are."""
    note = (
        f"{PREDICTED}: by the simulator, before the step ran; "
        f"{ERROR}: predicted less measured peak, of the measured one"
    )
    shown = [(r, r.shown_prediction) for r in records]
    if any(said and said.range_bytes[0] < said.range_bytes[1] for _, said in shown):
        note += " (of a range, its nearer end)"
    afterwards = sorted({record.predicted_by for record in records if record.predicted_by})
    if afterwards:
        note += f"; {AFTERWARDS}: after the step ran, by memtrade {', '.join(afterwards)}"
    unfit = [strategy_label(r.spec) for r, said in shown if said and not said.fits]
    if unfit:
        note += f"; what it would take, beyond the limit: {', '.join(unfit)}"
    return note
