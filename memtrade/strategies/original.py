"""original: the graph untouched, what all others are compared with."""

from dataclasses import dataclass

from memtrade.graph import StepGraph
from memtrade.plan import Fate, Plan
from memtrade.strategies.base import Strategy, worth_deciding
from memtrade.target import Target


@dataclass(frozen=True, kw_only=True)
class Options:
    """None: there is nothing to decide."""


def plan(graph: StepGraph, options: Options, target: Target) -> Plan:
    """Keeps every activation. The plan has no actions, so the step runs as it came."""
    fates = tuple(Fate(t, "keep", "as TensorFlow does") for t in worth_deciding(graph))
    return Plan("original", {}, graph.fingerprint, target.order, fates, (), target=target.name)


STRATEGY = Strategy("original", "the graph as it is: every activation is kept", Options, plan)
