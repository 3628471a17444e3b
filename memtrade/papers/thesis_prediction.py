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

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pandas as pd

from memtrade import devices
from memtrade.devices import Device, to_toml
from memtrade.papers.pages import page_text, save_csv, write_pages
from memtrade.papers.published import lines
from memtrade.papers.thesis_nets import net_name
from memtrade.papers.thesis_predictor import (
    AGED,
    CARD,
    FITTED,
    TABLES,
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


def held_out(rows: Any) -> Any:
    """The rows that count: published, and not fitted to."""
    return rows[~rows["fitted"] & rows["time_error"].notna()]


def median_errors(rows: Any) -> tuple[float, float]:
    """Medians of the absolute errors of times and peaks, over the held-out rows."""
    time, peak = held_out(rows)[["time_error", "peak_error"]].abs().median()
    return time, peak


def orders(rows: Any, quantity: Literal["seconds", "peak_mb"]) -> dict[str, list[tuple[str, str]]]:
    """For each step with several strategies, the pairs of them that are predicted the wrong way."""
    given, said = f"published_{quantity}", f"predicted_{quantity}"
    counted = rows[rows[given].notna() & (rows["table"] != "max batch")]
    return {
        f"{network}, batch {batch}": [
            (low["strategy"], high["strategy"])
            for low, high in itertools.product(group.to_dict("records"), repeat=2)
            if low[given] * (1 + TIE) < high[given] and low[said] >= high[said]
        ]
        for (network, batch), group in counted.groupby(["network", "batch_size"], sort=False)
    }


def markdown(
    rows: Any,
    device: Device,
    others: Mapping[str, Any],
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
        errors=median_errors(rows),
        orders=[
            _order_text("time", orders(rows, "seconds")),
            _order_text("peak", orders(rows, "peak_mb")),
        ],
        tables={table: lines(rows[rows["table"] == table]) for table in TABLES},
        lms=lms,
        choices={
            name: (
                *median_errors(chosen),
                [median_errors(chosen[chosen["table"] == table])[0] for table in TABLES],
            )
            for name, chosen in {"as above": rows, **others}.items()
        },
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


def profile(device: Device) -> str:
    """The fitted profile as a file of its own."""
    fitted = {each: float(f"{getattr(device, each):.3g}") for each in FITTED_SECONDS}
    return to_toml(msgspec.structs.replace(device, source=SOURCE, **fitted))


def scaled(card: Target, factor: float) -> Target:
    """The card with all its shares of the peak rates changed."""
    efficiency = {name: share * factor for name, share in card.device.efficiency.items()}
    return card.replace(device=msgspec.structs.replace(card.device, efficiency=efficiency))


def shifted(rows: pd.DataFrame, overhead_seconds: float, aged: Sequence[str]) -> pd.DataFrame:
    """The rows where a step's overhead is that of the `aged` strategies: it only adds up."""
    ours, theirs = (rows["strategy"].isin(each).astype(int) for each in (aged, list(AGED)))
    took = rows["predicted_seconds"] + (ours - theirs) * overhead_seconds
    return rows.assign(predicted_seconds=took, time_error=took / rows["published_seconds"] - 1)


def main(folder: Path) -> None:
    card = profile_target(CARD)
    rows = published()

    def again(target: Target) -> pd.DataFrame:
        """With another profile; the largest batches are not looked for."""
        return ThesisPredictor(step_at, target).rows(rows, largest=False)

    fitted = fit(step_at, rows, card)
    predicted = ThesisPredictor(step_at, fitted).rows(rows)
    slow, fast = (fit(step_at, rows, scaled(card, factor)) for factor in (0.9, 1.1))
    nothing_else = fit(step_at, rows, card, ("compute", "memory", "trace"))
    overhead = fitted.device.step_overhead_seconds
    others = {
        "a step's overhead with every strategy": shifted(
            predicted, overhead, list(predicted["strategy"])
        ),
        "a step's overhead with none": shifted(predicted, overhead, []),
        "the card's rates a tenth lower": again(slow),
        "the card's rates a tenth higher": again(fast),
        "its rates fitted to `original`, too; no step's overhead": again(nothing_else),
    }
    lms = {
        net_name(layers): lms_otherwise(step_at(layers, 32), fitted) for layers in (50, 152, None)
    }
    save_csv(folder / "thesis.csv", predicted.drop(columns="network"), "%.4g")
    page = markdown(predicted, fitted.device, others, lms)
    (folder / "thesis.md").write_text(page, encoding="utf-8")
    profiles = Path(devices.__file__).parent / "devices"
    (profiles / f"{FITTED}.toml").write_text(profile(fitted.device))


if __name__ == "__main__":
    write_pages(main, __doc__)
