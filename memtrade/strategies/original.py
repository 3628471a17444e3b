"""original: the graph untouched, what all others are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from memtrade.graph import StepGraph
from memtrade.plan import Fate, Order, Plan
from memtrade.strategies.base import Strategy, worth_deciding


@dataclass(frozen=True, kw_only=True)
class Options:
    """None: there is nothing to decide."""


def plan(graph: StepGraph, options: Options, order: Order) -> Plan:
    """Keeps every activation. The plan has no actions, so the step runs as it came."""
    fates = tuple(Fate(t, "keep", "as TensorFlow does") for t in worth_deciding(graph))
    return Plan("original", {}, graph.fingerprint, order, fates, ())


STRATEGY = Strategy("original", "the graph as it is: every activation is kept", Options, plan)
