"""A trial of a step that this process has traced: it goes to a child in a file."""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import tensorflow as tf

from memtrade.measure.environment import child_environment
from memtrade.measure.foreseen import Foreseen, told
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import Record, make_record
from memtrade.measure.trial import run_child
from memtrade.models.target import OwnStep
from memtrade.tf.loss import Named
from memtrade.tf.saved import STEP_FILE, TARGET, save_step


def try_step(
    spec: TrialSpec,
    concrete: object,
    specs: Sequence[tf.TensorSpec],
    *,
    loss: Named = None,
    foreseen: Foreseen | None = None,
) -> Record:
    """Measures a concrete function of `specs` as `spec` says, whose model does not matter.

    Args:
        foreseen: a plan that is tried in place of the strategy's own, and the graph that it was
            made for; if that is of another step after all, the strategy plans.

    Raises UnsupportedGraphError where it closes over what no other process has.
    """
    sizes: list[Any] = [each.shape[0] for each in specs if each.shape.rank]
    model = OwnStep(target=TARGET, batch_size=sizes[0] if sizes else 1)
    spec = msgspec.structs.replace(spec, model="target", model_options=dataclasses.asdict(model))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step"
        save_step(concrete, specs, path, loss)
        environment = child_environment(spec) | {STEP_FILE: str(path)}
        with told(spec, foreseen) as asked:
            outcome = run_child(asked, environment=environment)
    return make_record(spec, outcome, command="")
