"""Predictions side by side: what the simulator says of several strategies on one step and device.

Nothing here was measured, and every view says so.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
import pandas as pd

from memtrade.measure.protocol import PlanSummary, TrialSpec
from memtrade.results.sheets import Sheet, cell
from memtrade.results.words import WAITING, ratio, seconds, step_text
from memtrade.simulate.predict import Predicted
from memtrade.target import Target
from memtrade.units import mebibytes, megabytes

PredictionStatus = Literal["ok", "infeasible", "unsupported"]


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy's prediction, or why there is none.

    Attributes:
        label: the strategy with the options that were asked for.
        spec: the trial, with the options that it planned with.
        status: "infeasible" is a budget that no plan reaches, "unsupported" a step that the
            strategy cannot plan.
        floor_bytes: of an infeasible budget: the smallest peak that was found.
        relative_time: to `original` on the same device.
    """

    label: str
    spec: TrialSpec
    status: PredictionStatus
    reason: str = ""
    floor_bytes: int | None = None
    predicted: Predicted | None = None
    plan: PlanSummary | None = None
    relative_time: float | None = None

    @property
    def fits_text(self) -> str:
        if self.predicted is None:
            return "no plan"
        return "yes" if self.predicted.fits else "no"


_BOUNDS = {
    "≥": "at least; nothing tells the size of some of the step's tensors",
    "≤": "at most; some of the step's tensors, or what lies beside them, are only bounded",
    "≈": "about; TensorFlow's own order decides, up to its branches abreast, or some sizes are of "
    "one batch",
}


def bound_notes(bounds: Iterable[str]) -> tuple[str, ...]:
    """What those that stand before peaks mean."""
    found = {*bounds}
    return tuple(f"{bound}: {why}" for bound, why in _BOUNDS.items() if bound in found)


def to_sheet(
    predictions: Sequence[Prediction],
    target: Target,
    assumed: Sequence[str],
    unasked: Sequence[str],
    *,
    command: str,
) -> Sheet:
    """Predictions for one step.

    Args:
        assumed: op types whose kernels were never traced.
        unasked: those that have a margin, because a kernel could not be asked here.
    """
    device = target.device
    notes = [f"profile {device.name}: {device.source}"]
    if any(p.predicted and not p.predicted.fits for p in predictions):
        notes.append("peak MB of a step that does not fit: what it would take")
    notes += bound_notes(p.predicted.bound for p in predictions if p.predicted)
    if assumed := [each for each in assumed if each not in unasked]:
        notes.append(
            "taken to allocate their outputs and nothing else, because their kernels were never "
            f"traced: {', '.join(assumed)}"
        )
    if any(p.plan and p.plan.waiting for p in predictions):
        notes.append(WAITING)
    if unasked:
        notes.append(
            "taken to hold as much again as their largest tensor, because their kernels could not "
            f"be asked by themselves: {', '.join(unasked)}"
        )
    notes += [
        f"{p.label}: {p.status}: {' '.join(p.reason.split())}"
        for p in predictions
        if p.status != "ok"
    ]
    return Sheet.of(
        predictions,
        [
            ("strategy", lambda it: it.label),
            ("fits", lambda it: it.fits_text),
            ("peak MB", lambda it: cell(lambda p: p.peak_text, it.predicted)),
            (
                "memory cost MB",
                lambda it: cell(lambda p: megabytes(p.memory_cost_bytes), it.predicted),
            ),
            ("host MB", lambda it: cell(lambda p: megabytes(p.host_bytes), it.predicted)),
            ("step s", lambda it: cell(seconds, it.predicted and it.predicted.step_seconds)),
            ("relative time", lambda it: ratio(it.relative_time)),
            ("stall s", lambda it: cell(seconds, it.predicted and it.predicted.stall_seconds)),
            ("kept / recomputed / swapped", lambda it: cell(lambda p: p.decided_text, it.plan)),
        ],
        title=f"Predicted, not measured: {step_text(predictions[0].spec)}; device profile "
        f"{device.name}, {mebibytes(target.limit_bytes)}",
        words=2,
        weak=lambda it: it.fits_text != "yes",
        notes=tuple(notes),
        command=command,
        frame=pd.DataFrame(list(map(_row, predictions))),
    )


def _row(prediction: Prediction) -> dict[str, Any]:
    """Bytes and seconds, every figure of `Predicted`."""
    names = [field.name for field in msgspec.structs.fields(Predicted)]
    predicted = prediction.predicted
    spec = prediction.spec
    return {
        "model": spec.model,
        "batch_size": spec.model_options.get("batch_size"),
        "strategy": spec.strategy,
        "label": prediction.label,
        "order": spec.order,
        "status": prediction.status,
        "reason": prediction.reason,
        "floor_bytes": prediction.floor_bytes,
        **{f"predicted_{name}": predicted and getattr(predicted, name) for name in names},
        "relative_time": prediction.relative_time,
    }
