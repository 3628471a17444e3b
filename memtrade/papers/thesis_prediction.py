"""Predicts the thesis' tables, and says how far off: published beside predicted, misses included.

    python -m memtrade.papers.thesis_prediction results/predicted

Two device parameters are fitted to the five `original` rows at batch 32, and nothing else of the
thesis' times and peaks: what tracing takes per op, and what a step takes besides. The thesis' log
shows that each of its steps was traced (its memory costs are sums over a trace). All other rows are
predicted with that profile, each strategy as the thesis' own tools carried it out
(the strategies' rules `openai` and `tflms`) on the networks that it ran (`thesis_nets.py`).

Writes thesis.csv and thesis.md into the folder, and the fitted profile where the others are, as
gtx-1070-traced.toml. Takes some minutes: 17 steps are traced by TensorFlow, on any machine.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import pandas as pd

from memtrade import devices
from memtrade.devices import Device, to_toml
from memtrade.papers.pages import page_text, save_csv, write_pages
from memtrade.papers.thesis_nets import net_name
from memtrade.papers.thesis_predictor import (
    AGED,
    CARD,
    FITTED,
    TABLES,
    PredictedRow,
    Published,
    ThesisPredictor,
    fit,
    lms_otherwise,
    published,
)
from memtrade.papers.thesis_trace import step_at
from memtrade.target import Target, profile_target

# Two published times this close to each other have no order.
TIE = 0.01
FITTED_SECONDS = ("trace_seconds", "step_overhead_seconds")
SOURCE = (
    f"{CARD} as in the thesis: every op traced. {' and '.join(FITTED_SECONDS)} fitted to its five "
    "`original` rows at batch 32 by memtrade/papers/thesis_prediction.py"
)


def held_out(rows: Iterable[PredictedRow]) -> list[PredictedRow]:
    """The rows that count: published, and not fitted to."""
    return [row for row in rows if not row.fitted and row.time_error is not None]


def median_errors(rows: Iterable[PredictedRow]) -> tuple[float, float]:
    """Medians of the absolute errors of times and peaks, over the held-out rows."""
    counted = held_out(rows)
    return (
        statistics.median(abs(row.time_error or 0.0) for row in counted),
        statistics.median(abs(row.peak_error or 0.0) for row in counted),
    )


def orders(
    rows: Iterable[PredictedRow], quantity: Literal["seconds", "peak_mb"]
) -> dict[str, list[tuple[str, str]]]:
    """For each step with several strategies, the pairs of them that are predicted the wrong way."""
    groups: dict[str, list[tuple[str, float, float]]] = {}
    for row in rows:
        given, said = (getattr(row, f"{side}_{quantity}") for side in ("published", "predicted"))
        if given is not None and row.table != "max batch":
            step = f"{net_name(row.layers)}, batch {row.batch_size}"
            groups.setdefault(step, []).append((row.strategy, given, said))
    return {
        step: [
            (low, high)
            for low, published_low, predicted_low in group
            for high, published_high, predicted_high in group
            if published_low * (1 + TIE) < published_high and predicted_low >= predicted_high
        ]
        for step, group in groups.items()
    }


def markdown(
    rows: Sequence[PredictedRow],
    device: Device,
    others: Mapping[str, Sequence[PredictedRow]],
    lms: Mapping[str, Mapping[str, tuple[float, float]]],
) -> str:
    """The tables, what they come to, and what the choices behind them change.

    Args:
        others: what was done otherwise -> the rows that follow.
        lms: network -> what `lms_otherwise` says of it.
    """
    return page_text(
        "thesis.md",
        device=device,
        count=len(held_out(rows)),
        errors=[_percent(error) for error in median_errors(rows)],
        orders=[
            _order_text("time", orders(rows, "seconds")),
            _order_text("peak", orders(rows, "peak_mb")),
        ],
        tables={table: "\n".join(_table(rows, table)) for table in TABLES},
        lms=lms,
        choices=[_choice(name, choice) for name, choice in {"as above": rows, **others}.items()],
    )


def _order_text(what: str, found: dict[str, list[tuple[str, str]]]) -> str:
    right = sum(not pairs for pairs in found.values())
    wrong = "; ".join(
        f"{name} ({', '.join(f'{a} before {b}' for a, b in pairs)})"
        for name, pairs in found.items()
        if pairs
    )
    tail = f". Predicted otherwise than printed: {wrong}" if wrong else ""
    told = f"The order of the strategies by {what} is right in {right} of {len(found)} steps"
    return f"{told}{tail}."


def _table(rows: Sequence[PredictedRow], table: str) -> list[str]:
    largest = table == "max batch"
    extra = " largest batch: published | predicted |" if largest else ""
    lines = [
        "| network | strategy | s: published | predicted | error | MB: published | predicted "
        f"| error |{extra}",
        "|---|---|" + "--:|" * (8 if largest else 6),
    ]
    for row in rows:
        if row.table != table:
            continue
        given = "out of memory" if row.published_seconds is None else f"{row.published_seconds:.3f}"
        seconds = f"*{given}*" if row.fitted else given
        peak = "" if row.published_peak_mb is None else f"{row.published_peak_mb:,.0f}"
        roomy = "" if row.fits else " (does not fit)"
        cells = [
            net_name(row.layers), row.strategy, seconds, f"{row.predicted_seconds:.3f}",
            _percent(row.time_error, sign=True), peak, f"{row.predicted_peak_mb:,.0f}{roomy}",
            _percent(row.peak_error, sign=True),
        ]  # fmt: skip
        if largest:
            cells += [str(row.published_max_batch), str(row.predicted_max_batch)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _choice(name: str, rows: Sequence[PredictedRow]) -> str:
    seconds, peak = median_errors(rows)
    by_table = ", ".join(
        _percent(median_errors([row for row in rows if row.table == table])[0]) for table in TABLES
    )
    return f"| {name} | {_percent(seconds)} | {_percent(peak)} | {by_table} |"


def _percent(share: float | None, *, sign: bool = False) -> str:
    return "" if share is None else f"{100 * share:{'+' if sign else ''}.1f}%"


def profile(device: Device) -> str:
    """The fitted profile as a file of its own."""
    fitted = {each: float(f"{getattr(device, each):.3g}") for each in FITTED_SECONDS}
    return to_toml(msgspec.structs.replace(device, source=SOURCE, **fitted))


def scaled(card: Target, factor: float) -> Target:
    """The card with all its shares of the peak rates changed."""
    efficiency = {name: share * factor for name, share in card.device.efficiency.items()}
    return card.replace(device=msgspec.structs.replace(card.device, efficiency=efficiency))


def _again(target: Target, rows: Sequence[Published]) -> list[PredictedRow]:
    """All rows with another profile; their largest batches are not looked for."""
    predictor = ThesisPredictor(step_at, target)
    return [predictor.row(row, largest=False) for row in rows]


def _shifted(
    rows: Sequence[PredictedRow], overhead_seconds: float, aged: frozenset[str]
) -> list[PredictedRow]:
    """The rows where a step's overhead is that of the `aged` strategies: it only adds up."""
    found = []
    for row in rows:
        more = (row.strategy in aged) - (row.strategy in AGED)
        took = row.predicted_seconds + more * overhead_seconds
        given = row.published_seconds
        error = None if given is None else took / given - 1
        found.append(replace(row, predicted_seconds=took, time_error=error))
    return found


def main(folder: Path) -> None:
    card = profile_target(CARD)
    rows = published()
    fitted = fit(step_at, rows, card)
    predictor = ThesisPredictor(step_at, fitted)
    predicted = [predictor.row(row) for row in rows]
    slow, fast = (fit(step_at, rows, scaled(card, factor)) for factor in (0.9, 1.1))
    nothing_else = fit(step_at, rows, card, ("compute", "memory", "trace"))
    strategies = frozenset(row.strategy for row in rows)
    overhead = fitted.device.step_overhead_seconds
    others = {
        "a step's overhead with every strategy": _shifted(predicted, overhead, strategies),
        "a step's overhead with none": _shifted(predicted, overhead, frozenset()),
        "the card's rates a tenth lower": _again(slow, rows),
        "the card's rates a tenth higher": _again(fast, rows),
        "its rates fitted to `original`, too; no step's overhead": _again(nothing_else, rows),
    }
    lms = {
        net_name(layers): lms_otherwise(step_at(layers, 32), fitted) for layers in (50, 152, None)
    }
    save_csv(folder / "thesis.csv", pd.DataFrame(predicted), "%.4g")
    page = markdown(predicted, fitted.device, others, lms)
    (folder / "thesis.md").write_text(page, encoding="utf-8")
    profiles = Path(devices.__file__).parent / "devices"
    (profiles / f"{FITTED}.toml").write_text(profile(fitted.device))


if __name__ == "__main__":
    write_pages(main, __doc__)
