"""What `compare.py` found, as a table and as CSV."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import pandas as pd

from memtrade.measure.records import Record
from memtrade.results.compare import Change, Pair, ResultChanges
from memtrade.results.machines import unlike
from memtrade.results.sheets import NONE, Sheet
from memtrade.results.words import joined, seconds, step_text, strategy_label
from memtrade.units import megabytes

_COLUMNS = ("step", "strategy", "verdict", "peak MB", "change %", "step s", "change %", "noise %")


def changes_sheet(
    changes: ResultChanges, *, before: str, after: str, unchanged: bool = False
) -> Sheet:
    """The pairs that changed, or all of them; `before` and `after` name the sets."""
    shown = [pair for pair in changes.pairs if unchanged or pair.verdict != "same"]
    counts = [
        f"{sum(pair.verdict == verdict for pair in changes.pairs)} {name}"
        for verdict, name in (("worse", "worse"), ("better", "better"), ("same", "as before"))
    ]
    notes = [f"{len(changes.pairs)} trials: {', '.join(counts)}"]
    if not shown:
        notes.insert(0, "nothing changed beyond noise")
    for name, records in ((before, changes.only_before), (after, changes.only_after)):
        notes += [f"only in {name}: {text}" for text in _by_step(records)]
    if any(change.noise is None for pair in changes.pairs for change in _times(pair)):
        notes.append("noise -: of unlike machines, or beside other trials; times are not judged")
    notes += unlike_notes(changes)
    return Sheet(
        title=f"Changes from {before} to {after}",
        columns=_COLUMNS,
        words=3,
        rows=tuple(_row(pair) for pair in shown),
        weak=frozenset(i for i, pair in enumerate(shown) if pair.verdict == "worse"),
        notes=tuple(notes),
        frame=_frame(changes),
    )


def unlike_notes(changes: ResultChanges) -> list[str]:
    """Warns of pairs that did not run under the same conditions, and says which."""
    found = collections.Counter(
        f"{name} ({values.replace(', ', ' → ')})"
        for pair in changes.pairs
        for name, values in unlike([pair.before, pair.after]).items()
    )
    return [
        f"WARNING: {what} differ in {count} of {len(changes.pairs)} trials: changes may be theirs"
        for what, count in found.items()
    ]


def _frame(changes: ResultChanges) -> pd.DataFrame:
    """One row per pair and quantity: bytes, seconds or a status, and the noise in the same unit."""
    rows = [
        {
            "model": pair.after.model,
            "step": step_text(pair.after.spec),
            "strategy": strategy_label(pair.after.spec),
            "where": pair.where,
            "quantity": change.quantity,
            "before": change.before,
            "after": change.after,
            "relative_change": change.relative,
            "noise": change.noise,
            "verdict": change.verdict,
            "before_id": pair.before.id,
            "after_id": pair.after.id,
        }
        for pair in changes.pairs
        for change in pair.changes
    ]
    # As objects, bytes stay whole numbers beside seconds.
    return pd.DataFrame(rows, dtype=object)


def _row(pair: Pair) -> tuple[str, ...]:
    by_quantity = {change.quantity: change for change in pair.changes}
    head = (
        joined(step_text(pair.after.spec), pair.where),
        strategy_label(pair.after.spec),
        pair.verdict,
    )
    if "status" in by_quantity:
        status = by_quantity["status"]
        return *head, _arrow(str(status.before), str(status.after)), *(NONE,) * 4
    peak, time = by_quantity["peak"], by_quantity["time"]
    noise = NONE if time.noise is None else f"{100 * time.noise / float(time.before):.1f}"
    return (
        *head,
        _peaks(int(peak.before), int(peak.after)),
        _percent(peak),
        _arrow(seconds(float(time.before)), seconds(float(time.after))),
        _percent(time),
        noise,
    )


def _times(pair: Pair) -> Sequence[Change]:
    return [change for change in pair.changes if change.quantity == "time"]


def _peaks(before_bytes: int, after_bytes: int) -> str:
    """In MB; a difference too small for that in bytes."""
    before, after = megabytes(before_bytes), megabytes(after_bytes)
    if before == after and before_bytes != after_bytes:
        return f"{before} {after_bytes - before_bytes:+,} bytes"
    return _arrow(before, after)


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _percent(change: Change) -> str:
    if change.before == change.after or change.relative is None:
        return "0"
    return f"{100 * change.relative:+.1f}"


def _by_step(records: Sequence[Record]) -> list[str]:
    """ "checkpoints, lms on resnet-50, batch 32, ...", a text per step."""
    steps: dict[str, list[str]] = {}
    for record in records:
        steps.setdefault(step_text(record.spec), []).append(strategy_label(record.spec))
    return [f"{', '.join(strategies)} on {step}" for step, strategies in steps.items()]
