"""Training steps on several devices, each beside itself rewritten: run in processes of their own.

    python -m tests.tf.replicas_child 2                         on 2 logical CPUs, or 4
    TF_CONFIG=... python -m tests.tf.replicas_child worker      one of two processes

Logical devices and clusters are for TensorFlow's first moment. Prints one line of JSON: what each
case found.
"""

# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import msgspec
import numpy as np
import tensorflow as tf

import memtrade
import memtrade.keras
from memtrade.errors import InvalidPlanError, UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.measure.here import here_target
from memtrade.op_types import HANDED_TYPES
from memtrade.parts import is_collective
from memtrade.strategies import find_planned, make_options
from memtrade.tf.captured import captured_variables
from memtrade.tf.extract import trace_concrete
from memtrade.tf.replicas import apply_plans, parts_of
from memtrade.tf.step import TrainStep
from memtrade.tf.structure import tensors_of
from memtrade.tf.swap import transfer_from
from memtrade.tf.verify import compare_steps
from tests.corpus.running import flat

ROWS, WIDTH, LAYERS, STEPS = 1024, 32, 3, 3  # rows are a replica's


class Foreseen(logging.Handler):
    """(peak, the original's) of each part that was planned."""

    def __init__(self) -> None:
        super().__init__()
        self.peaks: list[tuple[int, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "peak_bytes"):
            self.peaks.append((record.__dict__["peak_bytes"], record.__dict__["original_bytes"]))


@contextlib.contextmanager
def foreseen():
    log, handler = logging.getLogger("memtrade"), Foreseen()
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield handler.peaks
    finally:
        log.removeHandler(handler)


def normal(*shape: int, seed: int = 1) -> tf.Tensor:
    return tf.random.stateless_normal(shape, (seed, 7))


def network(*, norm: bool) -> keras.Model:
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input([WIDTH])
    for _ in range(LAYERS):
        x = keras.layers.Dense(WIDTH)(x)
        x = keras.layers.BatchNormalization()(x) if norm else x
        x = keras.layers.Activation("tanh")(x)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def per_replica(strategy: tf.distribute.Strategy) -> tuple[Any, Any]:
    """A batch with other numbers on each replica."""

    def values(context: Any) -> tuple[tf.Tensor, tf.Tensor]:
        seed = context.replica_id_in_sync_group
        return normal(ROWS, WIDTH, seed=seed), normal(ROWS, 1, seed=seed + 10)

    batches: Any = [
        strategy.experimental_distribute_values_from_function(lambda c, i=i: values(c)[i])
        for i in range(2)
    ]
    return tuple(batches)


def custom_loop(strategy: tf.distribute.Strategy, *, norm: bool = False) -> Any:
    """As TensorFlow's tutorial on custom training with tf.distribute has it."""
    with strategy.scope():
        model = network(norm=norm)
        updates = keras.optimizers.SGD(0.1, momentum=0.9)
        updates.build(model.trainable_variables)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            error = tf.reduce_sum((model(x, training=True) - y) ** 2)
            loss = error / (ROWS * strategy.num_replicas_in_sync)
        gradients = tape.gradient(loss, model.trainable_variables)
        updates.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(x, y):
        losses = strategy.run(replica_step, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    return train_step


def by_hand(strategy: tf.distribute.Strategy) -> Any:
    """Two all-reduces of each replica's own; the first one's updates go to the others; the losses
    are returned as they are, one per replica."""
    with strategy.scope():
        once = tf.VariableAggregation.ONLY_FIRST_REPLICA
        layers = [
            tf.Variable(normal(WIDTH, WIDTH, seed=i) / 6.0, aggregation=once)
            for i in range(2 * LAYERS)
        ]

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            for layer in layers:
                x = tf.tanh(x @ layer)
            loss = tf.reduce_mean((x[:, :1] - y) ** 2)
        gradients = tape.gradient(loss, layers)
        context = tf.distribute.get_replica_context()
        later = context.all_reduce("sum", gradients[3:])
        earlier = context.all_reduce("sum", gradients[:3])
        for layer, gradient in zip(layers, [*earlier, *later], strict=True):
            layer.assign_sub(0.1 * gradient)
        return {"loss": loss, "largest": tf.reduce_max(x)}

    return tf.function(lambda x, y: strategy.run(replica_step, args=(x, y)))


def clones(step: Any, batch: tuple[Any, ...]) -> int:
    """How many ops of the rewritten step run again, or bring a tensor back."""
    library = step.get_concrete_function(*batch).graph.as_graph_def().library.function
    names = [node.name for function in library for node in function.node_def]
    return sum(name.startswith("memtrade/") and "/reserve" not in name for name in names)


def measured(step: Any, batch: tuple[Any, ...]) -> int | None:
    """The highest peak of some steps, of all logical CPUs together; None where TensorFlow's
    allocator counts nothing."""
    found = []
    for _ in range(STEPS):
        try:
            tf.config.experimental.reset_memory_stats("CPU:0")
        except ValueError:
            return None
        flat(step(*batch)).numpy()
        found.append(tf.config.experimental.get_memory_info("CPU:0")["peak"])
    return max(found)


def compared(step: Any, batch: tuple[Any, ...], strategy: str, **options: Any) -> dict[str, Any]:
    """Whether the rewritten step is equal to the bit in all that it returns and changes."""
    with foreseen() as peaks, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        lean = memtrade.apply(step, batch, strategy, **options)
    variables = captured_variables(step.get_concrete_function(*batch))
    losses: tuple[list[float], list[float]] = ([], [])

    def returned(which: int, values: tuple[Any, ...]) -> tf.Tensor:
        numbers = flat((step, lean)[which](*values))
        losses[which].append(float(numbers[0] if numbers.shape.rank else numbers))
        return numbers

    comparison = compare_steps(
        lambda *values: returned(0, values),
        lambda *values: returned(1, values),
        variables,
        batch,
        steps=STEPS,
    )
    return {
        "losses": losses,
        "differing": [str(each) for each in comparison.beyond(0.0)],
        "variables": len(variables),
        "peaks": peaks,
        "measured": [measured(each, batch) for each in (step, lean)],
        "clones": clones(lean, batch),
        "said": [str(each.message) for each in said if each.category is UserWarning],
    }


def fitted(strategy: tf.distribute.Strategy, change: Callable[[Any], Any]) -> list[Any]:
    """Losses of each batch, and the weights, of an epoch with a smaller last batch."""
    with strategy.scope():
        model = network(norm=False)
        model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    change(model)
    rows = 2 * ROWS * strategy.num_replicas_in_sync + 6
    x, y = normal(rows, WIDTH).numpy(), normal(rows, 1, seed=3).numpy()
    seen: list[float] = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(float(logs["loss"]))
    )
    size = ROWS * strategy.num_replicas_in_sync
    history = model.fit(
        x, y, batch_size=size, epochs=1, verbose=0, shuffle=False, callbacks=[callback]
    )
    made = history.history
    return [seen, made["loss"], made["mae"], [float(np.sum(v.numpy())) for v in model.variables]]


def planted(strategy: tf.distribute.Strategy) -> list[str]:
    """What is said of plans as they are, and of others, by which the second replica comes to its
    collectives backwards."""
    step, batch = by_hand(strategy), per_replica(strategy)
    specs = tuple(tf.TensorSpec(t.shape, t.dtype) for t in tensors_of(batch))
    traced = TrainStep("planted", step, specs, tuple, tuple)
    trace = trace_concrete(traced, step.get_concrete_function(*batch))
    right, other = parts_of(trace)
    said = []
    for parts in ([right, other], [right, replace(other, graph=backwards(other.graph))]):
        options, target = make_options("lms", {}), here_target("arena")
        plans = [find_planned("lms").plan(part.graph, options, target) for part in parts]
        try:
            apply_plans(trace, parts, plans, [transfer_from("arena")] * 2)
        except InvalidPlanError as error:
            said.append(str(error))
        else:
            said.append("")
    return said


def backwards(graph: StepGraph) -> StepGraph:
    """`graph` with its first collective behind its last one, and nothing that would forbid that."""
    meeting = [op for op in graph.ops if is_collective(op)]
    waiting = [op for op in graph.ops if op in meeting or op.type in HANDED_TYPES]
    ids = {op.id for op in waiting}
    ops = list(graph.ops)
    for op in waiting:
        kept = tuple(c for c in op.controls if c not in ids)
        ops[op.id] = msgspec.structs.replace(op, controls=kept)
    first, last = ops[meeting[0].id], meeting[-1].id
    ops[first.id] = msgspec.structs.replace(first, controls=(*first.controls, last))
    return StepGraph(msgspec.structs.replace(graph.data, ops=tuple(ops)))


def on_logical_cpus(case: str) -> dict[str, Any]:
    cpu = tf.config.list_physical_devices("CPU")[0]
    cpus = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(cpu, cpus)
    names = [f"CPU:{i}" for i in range(4)]
    if case == "4":  # alone: TensorFlow has one group of collectives that begins with CPU:0
        four = tf.distribute.MirroredStrategy(names)
        return {"four": compared(by_hand(four), per_replica(four), "lms")}
    two = tf.distribute.MirroredStrategy(names[:2])
    summing = tf.distribute.ReductionToOneDevice()
    on_one = tf.distribute.MirroredStrategy(names, cross_device_ops=summing)
    found: dict[str, Any] = {
        "two": compared(custom_loop(two, norm=True), per_replica(two), "ome", select="all"),
        "one of four sums": compared(by_hand(on_one), per_replica(on_one), "lms"),
        "by hand": compared(by_hand(two), per_replica(two), "lms"),
        "dataflow": compared(by_hand(two), per_replica(two), "lms", order="dataflow"),
        "planted": planted(two),
    }
    trained = [fitted(two, change) for change in (lambda model: None, memtrade.keras.optimize)]
    found["fit"] = {"theirs": trained[0], "ours": trained[1]}
    found["refused"] = largest(two)
    return found


def largest(strategy: tf.distribute.Strategy) -> str:
    """What a search for the largest batch of all replicas says."""

    @tf.function
    def train_step(x):
        return strategy.run(lambda: tf.reduce_sum(x))

    try:
        memtrade.largest_batch(train_step, lambda size: tf.TensorSpec([size, 2]))
    except UnsupportedGraphError as error:
        return str(error)
    return ""


def as_worker() -> dict[str, Any]:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    batch = per_replica(strategy)
    return {
        "ome": compared(custom_loop(strategy), batch, "ome", select="all"),
        "lms": compared(by_hand(strategy), batch, "lms"),
    }


if __name__ == "__main__":
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    case = sys.argv[1]
    print(json.dumps(as_worker() if case == "worker" else on_logical_cpus(case)))
