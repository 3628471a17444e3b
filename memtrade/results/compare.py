"""Two sets of results: which trials changed from one to the other, and by how much.

Trials are matched by what makes them the same trial (model, options, optimizer, strategy, device,
limit, steps), whatever versions ran them. Of each pair, three things are judged:

- the status: a trial that ran and now fails is worse, the other way round better;
- the peak, to the byte: a plan in pinned order has the same peak in every run. Where TensorFlow
  chooses the order (`dataflow`), the spread of the peaks from step to step is noise;
- the step time, by the medians of the counted steps. The noise is three times the standard
  deviation of a step, taken from the median distance to the median, which a few slow steps do not
  move; of the two sets the larger one counts, and at least a tolerance: a run differs from the
  next by more than its steps do from each other.

Times of unlike machines do not compare, nor do those of trials that ran beside others with those
that did not. Both are shown (the first where one asks for it), and not judged.
"""

import collections
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pandas as pd

from memtrade.errors import MemtradeError
from memtrade.measure.records import (
    SIZE_OPTIONS,
    Record,
    unusual_model_options,
    unusual_strategy_options,
)
from memtrade.results.figures import places
from memtrade.results.machines import Hardware, hardware, machine_labels, unlike
from memtrade.results.sheets import NONE, Sheet
from memtrade.results.words import joined, plural, seconds, status_text, step_text, strategy_label
from memtrade.units import megabytes

Judgement = Literal["same", "better", "worse"]

# The median absolute deviation times this is a normal distribution's standard deviation.
_DEVIATION = 1.4826
_DEVIATIONS = 3

TOLERANCE = 0.05

_COLUMNS = ("step", "strategy", "verdict", "peak MB", "change %", "step s", "change %", "noise %")


class Change(NamedTuple):
    """One quantity of a trial before and after.

    Attributes:
        before, after: bytes, seconds, or the status.
        noise: what a difference must exceed, in the same unit; None where nothing is judged.
    """

    quantity: Literal["status", "peak", "time"]
    before: float | str
    after: float | str
    noise: float | None = None

    @property
    def verdict(self) -> Judgement:
        if isinstance(self.before, str) or isinstance(self.after, str):
            judged = (self.before == "ok") != (self.after == "ok")
            return "same" if not judged else "worse" if self.before == "ok" else "better"
        if self.noise is None or abs(self.after - self.before) <= self.noise:
            return "same"
        return "worse" if self.after > self.before else "better"

    @property
    def relative(self) -> float | None:
        """`after` as a share of `before`, less one."""
        if isinstance(self.before, str) or isinstance(self.after, str) or not self.before:
            return None
        return self.after / self.before - 1


class Pair(NamedTuple):
    """The same trial in both sets. `where` names its place if the sets have several."""

    before: Record
    after: Record
    where: str
    changes: tuple[Change, ...]

    @property
    def verdict(self) -> Judgement:
        """ "worse" if anything is, else "better" if anything is."""
        verdicts = {change.verdict for change in self.changes}
        return "worse" if "worse" in verdicts else "better" if "better" in verdicts else "same"


class ResultChanges(NamedTuple):
    """All pairs, in the order of the first set, and what only one of the sets has."""

    pairs: list[Pair]
    only_before: list[Record]
    only_after: list[Record]

    @property
    def worse(self) -> bool:
        return any(pair.verdict == "worse" for pair in self.pairs)


def compare_results(
    before: Sequence[Record],
    after: Sequence[Record],
    *,
    tolerance: float = TOLERANCE,
    across_machines: bool = False,
) -> ResultChanges:
    """Matches the trials of two sets and judges each pair.

    Of several records of one trial in a set (by several versions, say), the newest counts.

    Args:
        tolerance: the least relative difference of step times that counts.

    Raises:
        MemtradeError: a negative tolerance, or the sets have no trial in common; a trial was
            measured on unlike machines, unless `across_machines`.
    """
    if not tolerance >= 0:
        raise MemtradeError(f"the tolerance must be at least 0, not {tolerance:g}")
    both = [*before, *after]
    where = dict(zip(map(id, both), places(both, optimizer=False), strict=True))
    old, left = _newest(before), _newest(after)
    found = ResultChanges([], [], [])
    for key in sorted(old, key=lambda key: key not in left):  # first those of the same machine
        record, place = old[key], where[id(old[key])]
        theirs = key if key in left else next((each for each in left if each[0] == key[0]), None)
        if theirs is None:
            found.only_before.append(record)
            continue
        alike = theirs == key
        if not alike and not across_machines:
            kinds = machine_labels(each.machine for each in both)
            raise MemtradeError(
                f"step times of unlike machines do not compare: {kinds[key[1]]} and "
                f"{kinds[theirs[1]]}. --across-machines compares the peaks all the same"
            )
        match = left.pop(theirs)
        place = place if alike else f"{place} → {where[id(match)]}"
        times = alike and record.jobs == match.jobs
        changes = judge(record, match, tolerance=tolerance, times=times)
        found.pairs.append(Pair(record, match, place, changes))
    if not found.pairs:
        raise MemtradeError(
            "the two sets have no trial in common: run the same command for both, "
            "with another --results"
        )
    found.only_after.extend(left.values())
    return found


def judge(
    before: Record, after: Record, *, tolerance: float = TOLERANCE, times: bool = True
) -> tuple[Change, ...]:
    """The changes of one trial. Without `times`, step times are there but are not judged."""
    old, new = before.measured, after.measured
    if before.status != after.status or old is None or new is None:
        return (Change("status", status_text(before.status), status_text(after.status)),)
    noise = max(_peak_noise(before), _peak_noise(after))
    peak = Change("peak", old.peak_bytes, new.peak_bytes, noise)
    spread = max(_deviation(old.step_seconds), _deviation(new.step_seconds))
    noise = max(_DEVIATIONS * spread, tolerance * old.median_seconds)
    return peak, Change("time", old.median_seconds, new.median_seconds, noise if times else None)


def _deviation(seconds: Sequence[float]) -> float:
    """The standard deviation of a step, robust against outliers; 0 of a single one."""
    median = statistics.median(seconds)
    return _DEVIATION * statistics.median(abs(each - median) for each in seconds)


def _peak_noise(record: Record) -> float:
    if record.spec.order == "pinned" or record.measured is None:
        return 0
    peaks = record.measured.peak_bytes_by_step
    return max(peaks) - min(peaks)


_Key = tuple[bytes, Hardware]


def _newest(records: Sequence[Record]) -> dict[_Key, Record]:
    """In the order of the records."""
    found: dict[_Key, Record] = {}
    for record in records:
        key = _trial(record), hardware(record.machine)
        if key not in found or record.created >= found[key].created:
            found.pop(key, None)
            found[key] = record
    return found


def _trial(record: Record) -> bytes:
    """What makes a trial the same one, aside from versions.

    Options count where they are not the default, so that one that a version adds changes nothing. A
    saved plan goes by its file name.
    """
    spec = record.spec
    sizes = {name: spec.model_options.get(name) for name in SIZE_OPTIONS}
    alike = msgspec.structs.replace(
        spec,
        model_options=sizes | unusual_model_options(spec),
        strategy_options=unusual_strategy_options(spec),
        plan_path=Path(spec.plan_path).name if spec.plan_path else None,
        graph_path=None,
    )
    return msgspec.json.encode(alike, order="sorted")


def changes_sheet(
    changes: ResultChanges, *, before: str, after: str, unchanged: bool = False
) -> Sheet:
    """The pairs that changed, or all of them; `before` and `after` name the sets."""
    shown = [pair for pair in changes.pairs if unchanged or pair.verdict != "same"]
    counts = collections.Counter(pair.verdict for pair in changes.pairs)
    notes = [
        f"{plural([len(changes.pairs)], 'trial')}: {counts['worse']} worse, "
        f"{counts['better']} better, {counts['same']} as before"
    ]
    if not shown:
        notes.insert(0, "nothing changed beyond noise")
    for name, records in ((before, changes.only_before), (after, changes.only_after)):
        notes += [f"only in {name}: {text}" for text in _by_step(records)]
    if any(
        c.quantity == "time" and c.noise is None for pair in changes.pairs for c in pair.changes
    ):
        notes.append("noise -: of unlike machines, or beside other trials; times are not judged")
    notes += unlike_notes(changes)
    return Sheet(
        title=f"Changes from {before} to {after}",
        columns=_COLUMNS,
        words=3,
        rows=tuple(map(_row, shown)),
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
    of = f"of {len(changes.pairs)} trials: changes may be theirs"
    return [f"WARNING: {what} differ in {count} {of}" for what, count in found.items()]


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
    spec, found = pair.after.spec, {change.quantity: change for change in pair.changes}
    head = joined(step_text(spec), pair.where), strategy_label(spec), pair.verdict
    if status := found.get("status"):
        return *head, _arrow(str(status.before), str(status.after)), *(NONE,) * 4
    peak, time = found["peak"], found["time"]
    before, after = float(time.before), float(time.after)
    return (
        *head,
        _peaks(int(peak.before), int(peak.after)),
        _percent(peak),
        _arrow(seconds(before), seconds(after)),
        _percent(time),
        NONE if time.noise is None else f"{100 * time.noise / before:.1f}",
    )


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
    return f"{100 * change.relative:+z.1f}"


def _by_step(records: Sequence[Record]) -> list[str]:
    """ "checkpoints, lms on resnet-50, batch 32, ...", a text per step."""
    steps: dict[str, list[str]] = {}
    for record in records:
        steps.setdefault(step_text(record.spec), []).append(strategy_label(record.spec))
    return [f"{', '.join(strategies)} on {step}" for step, strategies in steps.items()]
