"""Answers: which strategy for which need, out of what was measured.

A need is a rule over the variants that ran on one step. It is met by one of them or by none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memtrade.results.figures import Figure
from memtrade.results.max_batches import MaxBatch

# Peaks this close count as the same: of them, the fastest is the answer.
_SAME_PEAK = 0.01


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a user asks for. `choose` gets the figures that ran and the original, if it did.

    `relative`: it can be asked only where the original ran.
    """

    name: str
    relative: bool = False
    choose: Callable[[Sequence[Figure], Figure | None], Figure | None]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers on one step: per need a figure, or None where nothing meets it.

    `related`: whether the original ran, to which the relative needs relate.
    """

    related: bool
    choices: tuple[tuple[Need, Figure | None], ...]


def fastest_under(figures: Sequence[Figure], budget_bytes: float) -> Figure | None:
    """The least step time among those whose peak fits the budget."""
    fitting = [f for f in figures if f.peak_bytes is not None and f.peak_bytes <= budget_bytes]
    return min(fitting, key=lambda figure: figure.step_seconds or 0.0, default=None)


def least_memory(figures: Sequence[Figure]) -> Figure | None:
    """The smallest peak; of those within 1% of it, the fastest."""
    peaks = [figure.peak_bytes for figure in figures if figure.peak_bytes is not None]
    return fastest_under(figures, min(peaks) * (1 + _SAME_PEAK)) if peaks else None


def _under_share(share: float) -> Callable[[Sequence[Figure], Figure | None], Figure | None]:
    def choose(figures: Sequence[Figure], original: Figure | None) -> Figure | None:
        if original is None or original.peak_bytes is None:
            return None
        return fastest_under(figures, original.peak_bytes * share)

    return choose


NEEDS = (
    Need(name="least time", choose=lambda figures, _: fastest_under(figures, float("inf"))),
    Need(name="least time within half of original's peak", relative=True, choose=_under_share(0.5)),
    Need(name="least time within a quarter of it", relative=True, choose=_under_share(0.25)),
    Need(name="least memory", choose=lambda figures, _: least_memory(figures)),
)


def make_answers(figures: Sequence[Figure]) -> list[Answers]:
    """The answers on every step that was measured with two strategies, in the order of `figures`.

    What ran once, as the trials of a search for the largest batch do, leaves nothing to choose.
    """
    groups: dict[tuple[object, ...], list[Figure]] = {}
    for figure in figures:
        if figure.source == "measured":
            groups.setdefault((figure.where, figure.step), []).append(figure)
    return [
        _answers(group) for group in groups.values() if len({each.variant for each in group}) > 1
    ]


def step_name(figure: Figure) -> str:
    """The step as people name it: "resnet-50, batch 32"."""
    batch = f"batch {figure.batch_size}" if figure.batch_size else ""
    return ", ".join(part for part in (figure.model, batch, figure.conditions) if part)


def summarize(answers: Sequence[Answers]) -> list[tuple[str, str]]:
    """Per need, one sentence over all steps: which strategies, how often, at what cost."""
    sentences = []
    for need in NEEDS:
        asked = [each for each in answers if each.related or not need.relative]
        chosen = [figure for each in asked for n, figure in each.choices if n is need and figure]
        counts: dict[str, list[Figure]] = {}
        for figure in chosen:
            counts.setdefault(figure.variant, []).append(figure)
        ranked = sorted(counts.items(), key=lambda item: (-len(item[1]), item[0]))
        parts = [_tally(variant, own, len(asked)) for variant, own in ranked]
        if parts and len(chosen) < len(asked):
            parts.append(f"nothing on {len(asked) - len(chosen)}")
        if parts and len(asked) < len(answers):
            parts.append(f"original did not run on {len(answers) - len(asked)} more")
        if parts:
            sentences.append((need.name, "; ".join(parts)))
    return sentences


def summarize_batches(batches: Sequence[MaxBatch]) -> list[tuple[str, str]]:
    """The largest batch that was measured for each model, and how far the original comes."""
    sentences = []
    measured = [batch for batch in batches if batch.source == "measured" and batch.batch_size]
    for place in dict.fromkeys((batch.step_name, batch.where) for batch in measured):
        own = [batch for batch in measured if (batch.step_name, batch.where) == place]
        best = max(own, key=lambda batch: batch.batch_size)
        times = f", {best.relative_batch:.2f} × original's" if best.relative_batch else ""
        name = ", ".join(part for part in place if part)
        sentences.append((f"largest batch of {name}", f"{best.variant}: {best.batch_size}{times}"))
    return sentences


def _answers(figures: Sequence[Figure]) -> Answers:
    ran = [figure for figure in figures if figure.peak_bytes and figure.step_seconds]
    original = next((figure for figure in ran if figure.strategy == "original"), None)
    return Answers(
        related=original is not None,
        choices=tuple((need, need.choose(ran, original)) for need in NEEDS),
    )


def _tally(variant: str, figures: Sequence[Figure], steps: int) -> str:
    on = f"{variant} on {len(figures)} of {steps} steps" if steps > 1 else variant
    peaks = _range([figure.relative_peak for figure in figures])
    times = _range([figure.relative_time for figure in figures])
    if not peaks or variant == "original":
        return on
    return f"{on} ({peaks} × original's peak at {times} × its time)"


def _range(ratios: Sequence[float | None]) -> str:
    known = sorted(ratio for ratio in ratios if ratio is not None)
    if not known:
        return ""
    low, high = f"{known[0]:.2f}", f"{known[-1]:.2f}"
    return low if low == high else f"{low} to {high}"
