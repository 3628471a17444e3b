"""Answers: which strategy for which need, out of what was measured.

A need is a rule over the variants that ran on one step. It is met by one of them or by none.
"""

from collections.abc import Sequence
from typing import NamedTuple

from memtrade.results.figures import Figure
from memtrade.results.words import from_to, joined

# Peaks this close count as the same: of them, the fastest is the answer.
_SAME_PEAK = 0.01


class Need(NamedTuple):
    """What a user asks for: the least time within a budget, as a share of a peak. `of` says whose:
    the original's, which has to have run, or the smallest there is."""

    name: str
    share: float
    of: str = "original"


NEEDS = (
    Need("least time", float("inf"), of="least"),
    Need("least time within half of original's peak", 0.5),
    Need("least time within a quarter of it", 0.25),
    Need("least memory", 1 + _SAME_PEAK, of="least"),
)


def choose(need: Need, figures: Sequence[Figure]) -> Figure | None:
    """Of what was measured on one step, what meets the need, if anything does."""
    ran = _ran(figures)
    peaks = [figure.peak_bytes or 0 for figure in ran if need.of in ("least", figure.strategy)]
    most = need.share * (min(peaks) if need.of == "least" else peaks[0]) if peaks else 0
    fitting = [figure for figure in ran if (figure.peak_bytes or 0) <= most]
    return min(fitting, key=lambda figure: figure.step_seconds or 0.0, default=None)


def steps_to_choose_on(figures: Sequence[Figure]) -> list[list[Figure]]:
    """What was measured, step by step, where there are two strategies.

    What ran once, as the trials of a search for the largest batch do, leaves nothing to choose.
    """
    groups: dict[tuple[object, ...], list[Figure]] = {}
    for figure in figures:
        if figure.source == "measured":
            groups.setdefault((figure.where, figure.step), []).append(figure)
    return [group for group in groups.values() if len({each.variant for each in group}) > 1]


def summarize(figures: Sequence[Figure]) -> list[tuple[str, str]]:
    """Per need, one sentence over all steps: which strategies, how often, at what cost."""
    steps, sentences = steps_to_choose_on(figures), []
    for need in NEEDS:
        asked = [step for step in steps if need.of in ("least", *(f.strategy for f in _ran(step)))]
        chosen = [figure for step in asked if (figure := choose(need, step))]
        counts: dict[str, list[Figure]] = {}
        for figure in chosen:
            counts.setdefault(figure.variant, []).append(figure)
        ranked = sorted(counts.items(), key=lambda item: (-len(item[1]), item[0]))
        parts = [_tally(variant, own, len(asked)) for variant, own in ranked]
        if parts and len(chosen) < len(asked):
            parts.append(f"nothing on {len(asked) - len(chosen)}")
        if parts and len(asked) < len(steps):
            parts.append(f"original did not run on {len(steps) - len(asked)} more")
        if parts:
            sentences.append((need.name, "; ".join(parts)))
    return sentences


def summarize_batches(batches: Sequence[Figure]) -> list[tuple[str, str]]:
    """The largest batch that was measured for each model, and how far the original comes."""
    sentences = []
    measured = [batch for batch in batches if batch.source == "measured" and batch.batch_size]
    for place in dict.fromkeys((batch.step_name, batch.where) for batch in measured):
        own = [batch for batch in measured if (batch.step_name, batch.where) == place]
        best = max(own, key=lambda batch: batch.batch_size or 0)
        times = f", {best.relative_batch:.2f} × original's" if best.relative_batch else ""
        name = f"largest batch of {joined(*place)}"
        sentences.append((name, f"{best.variant}: {best.batch_size}{times}"))
    return sentences


def _ran(figures: Sequence[Figure]) -> list[Figure]:
    return [figure for figure in figures if figure.peak_bytes and figure.step_seconds]


def _tally(variant: str, figures: Sequence[Figure], steps: int) -> str:
    on = f"{variant} on {len(figures)} of {steps} steps" if steps > 1 else variant
    peaks = _range([figure.relative_peak for figure in figures])
    times = _range([figure.relative_time for figure in figures])
    if not peaks or variant == "original":
        return on
    return f"{on} ({peaks} × original's peak at {times} × its time)"


def _range(ratios: Sequence[float | None]) -> str:
    known = [f"{each:.2f}" for each in sorted(ratio for ratio in ratios if ratio is not None)]
    return from_to(known) if known else ""
