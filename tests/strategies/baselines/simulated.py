"""What the simulator says of a plan, however little memory there is."""

from __future__ import annotations

from memtrade.graph import StepGraph
from memtrade.plan import Plan
from memtrade.simulate.memory import ROOMY_BYTES, Simulator
from memtrade.simulate.timeline import TimeSimulator
from memtrade.target import Target
from tests.graphs import ARENA


def peak_bytes(graph: StepGraph, made: Plan) -> int:
    return Simulator(graph, ARENA).memory(made, limit_bytes=ROOMY_BYTES).peak_bytes


def seconds(graph: StepGraph, made: Plan, on: Target = ARENA) -> float:
    return TimeSimulator(graph, on).step_seconds(made.actions)
