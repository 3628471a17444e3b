"""Adds to records what this version predicts of them, from their steps traced anew. Nothing is run.

    python -m memtrade.papers.predict_records results/measured

Each record's plan is made again and simulated. What was predicted before the step ran stays as it
is: today's is kept beside it, with the version that made it, if it says anything new. A plan that
is no longer the one that was measured cannot stand beside the measured figures: such a record stays
as it is, and the exit status is 1.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from memtrade.errors import MemtradeError
from memtrade.graph import StepGraph
from memtrade.measure.here import profile_of
from memtrade.measure.protocol import PlanSummary, TrialSpec
from memtrade.measure.records import (
    LaterPrediction,
    Record,
    load_records,
    now,
    planned_options,
    save_record,
)
from memtrade.measure.trial import extract_graph
from memtrade.simulate.predict import Predictor
from memtrade.strategies import find_planned
from memtrade.target import profile_target
from memtrade.version import version

TIMEOUT_SECONDS = 600.0


def predict_record(record: Record, graph: StepGraph) -> Record:
    """The record with what the simulator says today as its latest prediction.

    Raises:
        MemtradeError: the strategy plans otherwise today than it did when it was measured.
    """
    spec = record.spec
    profile = profile_of(spec.device)
    target = profile_target(profile, order=spec.order, limit_bytes=spec.memory_limit_bytes)
    plan = find_planned(spec.strategy).plan(graph, planned_options(spec), target)
    today = PlanSummary.of(plan, graph)
    if record.plan is not None and today.known_to(record.plan) != record.plan:
        raise MemtradeError(f"{record.filename}: the plan is another one today: measure again")
    predicted, last = Predictor(graph, target).predict(plan), record.newest_prediction
    # Old records do not say how exact their predictions are.
    if last is not None and predicted == msgspec.structs.replace(last, bound=predicted.bound):
        return record
    said = LaterPrediction(version=version(), created=now(), predicted=predicted)
    return msgspec.structs.replace(record, later=(*record.later, said))


def step_of(spec: TrialSpec) -> bytes:
    """The part of a trial that decides its graph."""
    return msgspec.json.encode((spec.model, spec.model_options, spec.optimizer), order="sorted")


def main(folders: Sequence[str]) -> int:
    failed = False
    for folder in map(Path, folders):
        graphs: dict[bytes, StepGraph] = {}
        for record in load_records(folder):
            key = step_of(record.spec)
            if key not in graphs:
                spec = msgspec.structs.replace(record.spec, task="extract")
                graphs = {key: extract_graph(spec, timeout_seconds=TIMEOUT_SECONDS)}
            try:
                save_record(predict_record(record, graphs[key]), folder)
            except MemtradeError as error:
                failed = True
                print(error, file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
