"""What users ask of a model: which layer takes how much memory (`memtrade.summary`), what decides
how it can be planned (`memtrade.inspect`), why there was not enough (`memtrade.explain_oom`)."""

import contextlib
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, get_args

import msgspec
import tensorflow as tf
from rich.console import Console

from memtrade.errors import MemtradeError, check_name
from memtrade.explain.cause import batch_size_of, of_error, of_process, of_step
from memtrade.explain.error import Failure, read_failure
from memtrade.explain.remedy import Remedy, remedy_for
from memtrade.findings import Finding
from memtrade.graph import StepGraph
from memtrade.measure.here import here_target, learned_target
from memtrade.plan import Plan
from memtrade.results.explanation import Page
from memtrade.results.layers import LayerSummary, summarize
from memtrade.settings import check_count, device_of, told_bytes
from memtrade.simulate.by_layer import By
from memtrade.target import ARENA, Target
from memtrade.tf.calling import (
    as_function,
    is_keras_model,
    made_from,
    step_to_read,
    trace_to_read,
)
from memtrade.tf.extract import Trace, inspected
from memtrade.tf.loss import Named
from memtrade.tf.process import beside_step, counted, models_alive
from memtrade.tf.structure import arguments_of, specs_of, tensors_of
from memtrade.units import limit_of


def summary(
    model: Any,
    example_batch: Any = None,
    *,
    batch_size: int = 32,
    by: By = "layer",
    top: int | None = None,
    loss: Named = None,
    device: str | None = None,
    profile: str | None = None,
    memory_limit: str | int | None = None,
    show: bool = True,
) -> LayerSummary:
    """`model.summary()` with bytes: each layer's weights, slots, activations and scratch, and what
    it holds when most memory is in use. Predicted from a trace; nothing is run.

    >>> import keras
    >>> model = keras.Sequential([keras.Input([64]), keras.layers.Dense(32, name="first")])
    >>> model.compile("adam", "mse", jit_compile=False)
    >>> found = summary(model, batch_size=16, show=False)
    >>> first = found.rows[0]
    >>> first.name, first.weight_bytes, first.slot_bytes
    ('first', 8320, 16640)

    Args:
        model: a compiled Keras model, or a training step as `memtrade.apply` takes it.
        example_batch: a batch as `model.train_step` gets it, such as (x, y); of a step its
            arguments. Tensors, arrays or `tf.TensorSpec`s. Of a Keras model it need not be given
            where inputs and a loss of Keras's say what belongs in it.
        batch_size: of the batch that is made up then.
        by: "layer", or "source": the line of the program.
        top: print only so many rows, those that hold most at the peak.
        loss: see `memtrade.apply`.
        device: see `memtrade.apply`.
        profile: see `memtrade.apply`.
        memory_limit: of the device, in bytes or as text ("6GB"); by default what its profile says.
        show: print it.

    Returns:
        All rows; `frame()` has them as a pandas.DataFrame, in bytes.

    Raises:
        MemtradeError: the model is not compiled, or what its batches look like is not known.
        UnsupportedGraphError: see `memtrade.apply`.
    """
    check_count("batch_size", batch_size)
    check_count("top", top, optional=True)
    traced, plan = (None, None) if is_keras_model(model) else _as_it_runs(model)
    if traced is None:
        traced = _traced(model, example_batch, batch_size=batch_size, loss=loss)
    elif example_batch is not None:
        _check_planned(model, traced, example_batch)
    target = _target_of(device, profile, memory_limit)
    found = summarize(_named(traced, plan), traced.graph, target, plan, by)
    if show:
        console = Console(markup=False, highlight=False, emoji=False)
        console.print(found.sheet(top, width=console.width).to_rich(width=console.width))
    return found


def inspect(train_step: Callable[..., Any], *example: Any, loss: Named = None) -> list[Finding]:
    """What is in a step that decides how it can be planned, and what follows from each.

    >>> found = inspect(lambda x: tf.reduce_sum(x * tf.random.normal([8])), tf.ones([4, 8]))
    >>> "random ops with a state" in [each.what for each in found]
    True

    Args:
        train_step: as `apply` takes it. example: its arguments.
        loss: as `apply` takes it.

    Raises:
        MemtradeError: it is no step, or takes other arguments.
        UnsupportedGraphError: an input has no fixed size.
    """
    example = arguments_of(as_function(train_step), example)
    step, concrete = step_to_read(train_step, example, loss)
    return inspected(step, concrete, tf.nest.flatten(example))


@contextlib.contextmanager
def explain_oom(
    model: Any = None,
    example_batch: Any = None,
    *,
    batch_size: int | None = None,
    by: By = "layer",
    device: str | None = None,
    profile: str | None = None,
    memory_limit: str | int | None = None,
) -> Iterator[None]:
    """Around training: where TensorFlow runs out of memory, a page on stderr says why.

    Which op, layer and line asked for how much, what held the rest, and the nearest plan that
    fits. The error goes on its way behind that.

        with memtrade.explain_oom():
            model.fit(x, y, batch_size=512)

    Args:
        model: what is trained, a compiled Keras model or a step with its `example_batch`. Unless
            given, it is looked for: the compiled model that the error names.
        batch_size: unless given, it is read off the tensor that did not fit.
        by: what held the rest is told by "layer", or by "source", the line of the program.
        device: see `memtrade.apply`.
        profile: see `memtrade.apply`.
        memory_limit: of the device, in bytes or as text ("6GB"). Unless given, it is what
            TensorFlow was told, or the profile says.
    """
    check_count("batch_size", batch_size, optional=True)
    limit_of("memory_limit", memory_limit)
    check_name("by", by, get_args(By))
    try:
        yield
    except (tf.errors.ResourceExhaustedError, tf.errors.InternalError) as error:
        page = failure = None
        try:
            # With the stack, which says where an op was run that is none of a function's.
            failure = read_failure("".join(traceback.format_exception(error)))
            model = model if model is not None else _trained(failure)
            target = _target_of(device, profile, memory_limit)
            page = _explained(failure, model, example_batch, batch_size, target, by)
        except Exception as another:  # whatever goes wrong here, the user's own error counts
            if failure is not None or not isinstance(error, tf.errors.InternalError):
                print(f"memtrade could not explain all of it: {another}", file=sys.stderr)
            page = Page(of_error(failure), naming=_NAMING) if failure is not None else None
        if page is not None:
            Console(stderr=True, markup=False, highlight=False, emoji=False).print(page.to_rich())
        raise


def _explained(
    failure: Failure,
    model: Any,
    example_batch: Any,
    batch_size: int | None,
    target: Target,
    by: By,
) -> Page:
    device = "CPU:0" if target.copies_in_line else target.here.upper()
    count = counted(device)  # now: tracing may make variables
    if model is None:
        found = of_error(failure)
        if count is not None:
            found = of_process(failure, target, beside_step(None, device), count)
        return Page(found, naming=_NAMING)
    traced, plan = _as_it_runs(model)
    if traced is None:
        traced = _traced(model, example_batch, batch_size=batch_size or _GUESSED)
        if example_batch is None and batch_size is None:
            seen = _batch_seen(failure, traced.graph)
            if seen != _GUESSED:
                traced = _traced(model, None, batch_size=seen)
    batch_bytes = traced.graph.bytes_of(traced.graph.data.inputs)
    ahead = -batch_bytes  # Python holds the batch, and the step counts it as its own
    if is_keras_model(model):  # its iterator makes the next batch ahead, which Python does not see
        ahead = batch_bytes if target.copies_in_line else 0
    beside = beside_step(traced.concrete, device, ahead_bytes=ahead)
    if count is not None:
        count = msgspec.structs.replace(count, in_use_bytes=count.in_use_bytes + ahead)
    target = learned_target(target, [traced.graph], environment=os.environ, on_progress=_asking)
    found = of_step(
        _named(traced, plan, model.name if is_keras_model(model) else None),
        traced.graph,
        target,
        plan=plan,
        failure=failure,
        beside=beside,
        counted=count,
        by=by,
    )
    remedy, python = remedy_for(found, traced.graph, target), ""
    if isinstance(remedy, Remedy):
        python = remedy.python
        if is_keras_model(model):
            size = f"batch_size={found.batch_size}"
            python = f"memtrade.keras.optimize(model, {size}, {remedy.arguments})"
    return Page(found, remedy, python=python)


def _as_it_runs(model: Any) -> tuple[Trace | None, Plan | None]:
    """A step that `memtrade.apply` has rewritten, as it was traced, and the plan it runs by."""
    rewritten = model
    if is_keras_model(model):  # `memtrade.keras.optimize` leaves it there
        rewritten = getattr(model.train_function, "step", None)
    last = made_from[rewritten][1] if rewritten in made_from else []
    return last[0] if len(last) == 1 else (None, None)


def _check_planned(model: Any, traced: Trace, example_batch: Any) -> None:
    """Raises MemtradeError where a step was planned last for a batch of other shapes."""
    example = tensors_of(specs_of(arguments_of(as_function(model), example_batch)))
    shapes = [sorted(str(spec.shape) for spec in each) for each in (traced.step.specs, example)]
    if shapes[0] != shapes[1]:
        raise MemtradeError(
            f"{traced.step.name} was planned last for {', '.join(shapes[0])}, not for "
            f"{', '.join(shapes[1])}: apply it to the step as it was, for this batch"
        )


def _asking(done: int, of: int) -> None:
    if done == 1:
        print(f"memtrade asks {of} kernels what they take, once", file=sys.stderr)


_NAMING = "explain_oom(model) or explain_oom(step, batch)"

# What a model is traced with first, to see what the error's tensor has to say of the batch.
_GUESSED = 32


def _batch_seen(failure: Failure, graph: StepGraph) -> int:
    """The batch size at which the op's output has as many elements as the error says."""
    if failure.shape and not failure.temporary:
        for op in graph.ops:
            for t in op.outputs if failure.names(op.name) else ():
                elements = math.prod(graph.tensors[t].shape or (0,))
                asked = _GUESSED * math.prod(failure.shape)
                if elements and asked % elements == 0:
                    return asked // elements
    return _GUESSED


def _trained(failure: Failure) -> Any:
    """The compiled model that the error's op belongs to; the only one, if there is but one."""
    models = models_alive()
    # A scope is called as the model, or so with a number: a name is made anew each time.
    named = [
        model
        for model in models
        if re.search(rf"(^|/){re.escape(model.name)}(_\d+)?(/|$)", failure.op)
    ]
    found = named if len(named) == 1 else models
    return found[0] if len(found) == 1 else None


def _traced(model: Any, example_batch: Any, *, batch_size: int, loss: Named = None) -> Trace:
    """The step of a model, or a step."""
    if example_batch is None and is_keras_model(model):
        example_batch = made_up_batch(model, batch_size)
    elif example_batch is None:
        raise MemtradeError(
            "a step's memory depends on its batch: give an example of it, as in "
            "memtrade.summary(train_step, (x, y))"
        )
    return trace_to_read(model, example_batch, loss)


def _named(traced: Trace, plan: Plan | None, name: str | None = None) -> str:
    """The step with its batch size, and the strategy that it runs by."""
    batch = batch_size_of(traced.graph)
    parts = (name or traced.graph.name, batch and f"batch {batch}", plan and plan.strategy)
    return ", ".join(part for part in parts if part)


def _target_of(
    device: str | None, profile: str | None, memory_limit: str | int | None = None
) -> Target:
    """What is predicted for, with what is known of kernels without asking any."""
    here = device_of(device)
    limit_bytes = limit_of("memory_limit", memory_limit) or _limit_told(here)
    return here_target(here, profile=profile, limit_bytes=limit_bytes)


def _limit_told(device: str) -> int | None:
    """The limit that TensorFlow was given of a device, in bytes."""
    if device == ARENA:
        told = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "")
        return int(told) << 20 if told.isdecimal() else None
    return told_bytes(int(device.partition(":")[2] or 0))


def made_up_batch(model: Any, batch_size: int) -> tuple[Any, Any]:
    """Specs of (x, y) as a Keras model's inputs, outputs and loss want them."""
    inputs, outputs = getattr(model, "inputs", None), getattr(model, "outputs", None)
    if not inputs or not outputs:
        inputs, outputs = _as_built(model)
    unsaid = "look like: give example_batch=(x, y), tensors or tf.TensorSpecs"
    if not inputs:
        raise MemtradeError(f"{model.name} does not say what its inputs {unsaid}")
    named, names = model.loss, getattr(model, "output_names", None)
    if isinstance(named, dict) and names and set(named) == set(names):
        named = [named[each] for each in names]  # in the outputs' order, and not by the alphabet
    losses = tf.nest.flatten(named)
    if any(each is None for each in losses) or len(losses) not in (1, len(outputs)):
        raise MemtradeError(f"{model.name} does not say what its targets {unsaid}")
    x = [tf.TensorSpec([batch_size, *t.shape[1:]], t.dtype) for t in inputs]
    y = []
    for t, each in zip(outputs, losses * (len(outputs) // len(losses)), strict=True):
        word = each if isinstance(each, str) else getattr(each, "name", None) or _name_of(each)
        sparse = "sparse" in word  # whole numbers in place of one-hot rows
        shape, dtype = (t.shape[1:-1], tf.int32) if sparse else (t.shape[1:], t.dtype)
        y.append(tf.TensorSpec([batch_size, *shape], dtype))
    return (x if len(x) > 1 else x[0], y if len(y) > 1 else y[0])


def _name_of(function: Any) -> str:
    """Of a loss that is a function, or a part of one; "" where it has none."""
    return getattr(getattr(function, "func", function), "__name__", "")


def _as_built(model: Any) -> tuple[list[Any], list[Any]]:
    """The inputs and outputs of a subclassed model that has been called; floats, for no more than
    shapes is known of them."""
    shape = (model.get_build_config() or {}).get("input_shape") if model.built else None
    if not shape or not all(each is None or isinstance(each, int) for each in shape):
        return [], []
    keras: Any = sys.modules["keras"]
    x = keras.KerasTensor((None, *shape[1:]), keras.config.floatx())
    return [x], tf.nest.flatten(model.compute_output_spec(x))
