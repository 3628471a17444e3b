"""Stages planned by a strategy: what is swapped or recomputed within them.

GPipe recomputes a stage as a whole. A plan of a stage's graph says it tensor by tensor: what leaves
for host memory between a micro-batch's forward and its backward task, and what is made again.
Schedule, clocks and bubble stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memtrade.pipeline.design.stages import StageGraph
from memtrade.plan import Action
from memtrade.strategies import find_planned
from memtrade.target import Target

KEEP = "original"  # the strategy that leaves stages as they are


def plan_stages(
    stages: Sequence[StageGraph], strategy: str, options: Any, target: Target
) -> tuple[tuple[Action, ...], ...]:
    """For each stage, the actions of its plan; empty where every activation is kept.

    Without reservations: they fit one step in an arena of its own, and a stage has many
    micro-batches under way.

    Args:
        options: of the strategy, as `make_options` makes them.

    Raises UnknownNameError, or MemtradeError where a strategy makes no plans or finds none.
    """
    planned = find_planned(strategy)
    if planned.name == KEEP:
        return ((),) * len(stages)
    return tuple(
        tuple(
            action
            for action in planned.plan(stage.graph, options, target).actions
            if action.kind != "reserve"
        )
        for stage in stages
    )
