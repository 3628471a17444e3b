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

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from memtrade.errors import MemtradeError
from memtrade.measure.records import (
    SIZE_OPTIONS,
    Record,
    unusual_model_options,
    unusual_strategy_options,
)
from memtrade.results.figures import places
from memtrade.results.machines import Hardware, hardware, machine_labels
from memtrade.results.words import status_text

Judgement = Literal["same", "better", "worse"]
Judged = Literal["status", "peak", "time"]

# The median absolute deviation times this is a normal distribution's standard deviation.
_DEVIATION = 1.4826
_DEVIATIONS = 3

TOLERANCE = 0.05


class UnlikeMachinesError(MemtradeError):
    """The same trial was measured on unlike machines. Carries their names."""

    def __init__(self, before: str, after: str) -> None:
        self.before, self.after = before, after
        super().__init__(
            f"step times of unlike machines do not compare: {before} and {after}. "
            "--across-machines compares the peaks all the same"
        )


@dataclass(frozen=True, kw_only=True)
class Change:
    """One quantity of a trial before and after.

    Attributes:
        before, after: bytes, seconds, or the status.
        noise: what a difference must exceed, in the same unit; None where nothing is judged.
    """

    quantity: Judged
    before: float | str
    after: float | str
    noise: float | None
    verdict: Judgement

    @property
    def relative(self) -> float | None:
        """`after` as a share of `before`, less one."""
        if isinstance(self.before, str) or isinstance(self.after, str) or not self.before:
            return None
        return self.after / self.before - 1


@dataclass(frozen=True, kw_only=True)
class Pair:
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


@dataclass(frozen=True, kw_only=True)
class ResultChanges:
    """All pairs, in the order of the first set, and what only one of the sets has."""

    pairs: tuple[Pair, ...]
    only_before: tuple[Record, ...]
    only_after: tuple[Record, ...]

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
        MemtradeError: a negative tolerance, or the sets have no trial in common.
        UnlikeMachinesError: a trial was measured on unlike machines, unless `across_machines`.
    """
    if not tolerance >= 0:
        raise MemtradeError(f"the tolerance must be at least 0, not {tolerance:g}")
    where = dict(zip(map(id, [*before, *after]), places([*before, *after]), strict=True))
    old, new = _newest(before), _newest(after)
    pairs: list[Pair] = []
    left = dict(new)
    unmatched: list[tuple[_Key, Record]] = []
    for key, record in old.items():
        match = left.pop(key, None)
        if match is None:
            unmatched.append((key, record))
            continue
        alike = record.jobs == match.jobs
        changes = judge(record, match, tolerance=tolerance, times=alike)
        place = where[id(record)]
        pairs.append(Pair(before=record, after=match, where=place, changes=changes))
    only_before: list[Record] = []
    for (trial, machine), record in unmatched:
        elsewhere = next((key for key in left if key[0] == trial), None)
        if elsewhere is None:
            only_before.append(record)
            continue
        if not across_machines:
            kinds = machine_labels(each.machine for each in (*before, *after))
            raise UnlikeMachinesError(kinds[machine], kinds[elsewhere[1]])
        match = left.pop(elsewhere)
        changes = judge(record, match, tolerance=tolerance, times=False)
        place = f"{where[id(record)]} → {where[id(match)]}"
        pairs.append(Pair(before=record, after=match, where=place, changes=changes))
    if not pairs:
        raise MemtradeError(
            "the two sets have no trial in common: run the same command for both, "
            "with another --results"
        )
    return ResultChanges(
        pairs=tuple(pairs), only_before=tuple(only_before), only_after=tuple(left.values())
    )


def judge(
    before: Record, after: Record, *, tolerance: float = TOLERANCE, times: bool = True
) -> tuple[Change, ...]:
    """The changes of one trial. Without `times`, step times are there but are not judged."""
    old, new = before.measured, after.measured
    if before.status != after.status or old is None or new is None:
        verdict: Judgement = "same"
        if before.status != after.status and "ok" in (before.status, after.status):
            verdict = "worse" if before.status == "ok" else "better"
        names = status_text(before.status), status_text(after.status)
        return (
            Change(quantity="status", before=names[0], after=names[1], noise=None, verdict=verdict),
        )
    peak_noise = max(_peak_noise(before), _peak_noise(after))
    peak = Change(
        quantity="peak",
        before=old.peak_bytes,
        after=new.peak_bytes,
        noise=peak_noise,
        verdict=_verdict(old.peak_bytes, new.peak_bytes, peak_noise),
    )
    noise = None
    if times:
        spread = max(_deviation(old.step_seconds), _deviation(new.step_seconds))
        noise = max(_DEVIATIONS * spread, tolerance * old.median_seconds)
    time = Change(
        quantity="time",
        before=old.median_seconds,
        after=new.median_seconds,
        noise=noise,
        verdict=_verdict(old.median_seconds, new.median_seconds, noise),
    )
    return peak, time


def _verdict(before: float, after: float, noise: float | None) -> Judgement:
    if noise is None or abs(after - before) <= noise:
        return "same"
    return "worse" if after > before else "better"


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
