"""The peak of one training step, predicted or measured, and who holds it."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from memtrade.errors import MemtradeError
from memtrade.measure import host
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.step_trial import try_step
from memtrade.plan import Order
from memtrade.settings import settings_of
from memtrade.simulate.usage import use_of_memory
from memtrade.strategies import find_planned
from memtrade.strategies.base import clock_of
from memtrade.strategies.saving import no_worse
from memtrade.tf.calling import made_from, trace_to_read
from memtrade.tf.loss import Named


@dataclass(frozen=True, kw_only=True)
class StepPeak:
    """Of a step.

    Attributes:
        size_bytes: most bytes in use at once, variables and batch included.
        source: "predicted" or "measured".
        held: who holds it, as predicted, the largest first.
        bound: what stands before a predicted peak (`memtrade.bounds`).
    """

    name: str
    size_bytes: int
    source: str
    held: str
    bound: str


def peak_of(
    train_step: Any,
    example_batch: Any,
    strategy: str = "original",
    *,
    measure: bool = False,
    loss: Named = None,
    order: Order = "pinned",
    profile: str | None = None,
    **options: Any,
) -> StepPeak:
    """The peak of a step as `memtrade.apply` would make it, or of a compiled Keras model's, as
    `memtrade.keras.optimize` would.

    A prediction takes the facts about kernels that come with memtrade, and asks none here: so it is
    the same on every machine.

    Args:
        train_step: a function, or a Keras model, whose batch is what it is trained with: (x, y).
        measure: run the step in a child process, in the arena, in place of predicting.
        profile: the device that is predicted for, the arena unless given.

    Raises:
        MemtradeError: the step could not be measured, and why; see `memtrade.apply` for others.
    """
    find_planned(strategy)  # "auto" is none: what it does depends on the machine
    if train_step in made_from:
        raise MemtradeError(
            "the step has been rewritten by memtrade.apply: hand in the step as it was, and "
            "strategy="
        )
    settings = settings_of(strategy, order=order, device="arena", profile=profile, **options)
    traced = trace_to_read(train_step, example_batch, loss)
    graph, step = traced.graph, traced.step
    clock = clock_of(graph, settings.target)
    plan = no_worse(settings.strategy.plan(graph, settings.options, settings.target), clock)
    usage = use_of_memory(clock, plan)
    needed = clock.needed(plan)
    size_bytes, bound = needed.peak_bytes, needed.bound(graph, plan)
    if measure:
        spec = TrialSpec(
            strategy=settings.strategy.name,
            strategy_options=dataclasses.asdict(settings.options),
            order=order,
            memory_limit_bytes=host.room_bytes() >> 20 << 20,
            steps=1,
        )
        record = try_step(spec, traced.concrete, step.specs, loss=loss)
        if record.measured is None:
            raise MemtradeError(f"{step.name} could not be measured: {record.reason}")
        size_bytes, bound = record.measured.peak_bytes, ""
    source = "measured" if measure else "predicted"
    return StepPeak(
        name=step.name, size_bytes=size_bytes, source=source, held=usage.held_text, bound=bound
    )
