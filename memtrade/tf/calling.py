"""Calls of steps: with their tensors in the order of the arguments, and not inlined: among the ops
of a caller those of the step would run in another order."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from memtrade.errors import MemtradeError, UnsupportedGraphError
from memtrade.op_types import CALL_TYPES
from memtrade.plan import Plan
from memtrade.tf.extract import Trace, opened, trace_concrete
from memtrade.tf.failures import concrete_for
from memtrade.tf.findings import REWRITTEN
from memtrade.tf.graft import called_as_it_is, graft
from memtrade.tf.loss import Named
from memtrade.tf.replicas import refuse_mirrored
from memtrade.tf.step import TrainStep
from memtrade.tf.structure import (
    arguments_of,
    check_shapes,
    given_in,
    packed,
    specs_of,
    tensors_of,
)

# Of each step that `memtrade.apply` has made: of what, and what its last batch runs by, for each
# device the step as it was traced and the plan. Whoever explains an error asks.
made_from: WeakKeyDictionary[Any, tuple[Any, list[tuple[Trace, Plan]]]] = WeakKeyDictionary()


def check_traced() -> None:
    """Raises UnsupportedGraphError where functions make no graphs."""
    if tf.config.functions_run_eagerly():
        raise UnsupportedGraphError(
            "functions run eagerly, so there is no graph to rewrite: call "
            "tf.config.run_functions_eagerly(False) before"
        )


def as_function(train_step: Any) -> Any:
    """A tf.function, if it is none yet; for a step that `memtrade.apply` has made, what that was
    made from: it is planned anew."""
    check_traced()
    if hasattr(train_step, "get_concrete_function"):
        return made_from[train_step][0] if train_step in made_from else train_step
    is_class, is_model = isinstance(train_step, type), is_keras_model(train_step)
    if callable(train_step) and not is_class and not is_model:
        return tf.function(train_step)
    what = f"{train_step}" if is_class else type(train_step).__name__
    how = ": hand a Keras model to memtrade.keras.optimize" if is_model else ""
    raise MemtradeError(f"a training step is a tf.function or a Python function, not {what}{how}")


def is_keras_model(model: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Model)


def step_of_model(model: Any) -> Any:
    """The step of a compiled Keras model, a function of one batch: as Keras traces it, but for XLA.

    Raises:
        MemtradeError: the model is not compiled.
        UnsupportedGraphError: it trains on replicas.
    """
    if not model.compiled or model.optimizer is None:
        raise MemtradeError("the model has no optimizer yet: call model.compile(...) before")
    refuse_mirrored(model, "memory is told of one device")
    if model.built and model.distribute_strategy is not tf.distribute.get_strategy():
        with model.distribute_strategy.scope():  # slots are made where the model was
            model.optimizer.build(model.trainable_variables)
    return tf.function(model.train_step, autograph=False)


def argument_order(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    """For each input of the traced function, the number of the tensor among the arguments.

    Asked of a call of it: TensorFlow orders inputs by parameter, and that is for it to know.
    """
    specs = tensors_of((args, kwargs))
    graph = of_tensors(function, args, kwargs).graph
    number = {t.name: i for i, t in enumerate(graph.inputs)}
    check_traced()
    call = next(op for op in graph.get_operations() if op.type in CALL_TYPES)
    return [number[t.name] for t in call.inputs[: len(specs)]]


def of_tensors(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call of `function` as a concrete function of its tensors, in their order."""
    specs = tensors_of((args, kwargs))

    @tf.function(autograph=False, input_signature=specs)
    def caller(*tensors: tf.Tensor) -> Any:
        given, named = packed((args, kwargs), tensors)
        return function(*given, **named)

    return caller.get_concrete_function()  # pyright: ignore[reportFunctionMemberAccess]


def step_to_read(
    train_step: Any, example: tuple[Any, ...], loss: Named = None
) -> tuple[TrainStep, Any]:
    """A step that is looked at and not run, and its concrete function; `example` is its arguments.

    Raises:
        MemtradeError: its code cannot take the example.
        UnsupportedGraphError: an input has no fixed size.
    """
    function = as_function(train_step)
    specs = specs_of(example)
    check_shapes(function, specs, {})
    concrete_for(function, specs)  # makes variables, if there are any to make
    concrete = of_tensors(function, specs, {})
    return step_of(function, concrete, tensors_of(specs), loss, given_in(example)), concrete


def trace_to_read(model: Any, example_batch: Any, loss: Named = None) -> Trace:
    """The trace, to look at, of a step, or of a compiled Keras model's, which goes by its name.

    Raises as `step_to_read` and `step_of_model` do.
    """
    if not is_keras_model(model):
        function = as_function(model)
        return trace_concrete(*step_to_read(function, arguments_of(function, example_batch), loss))
    step, concrete = step_to_read(step_of_model(model), (example_batch,), loss)
    return trace_concrete(dataclasses.replace(step, name=model.name), concrete)


def step_of(
    function: Any,
    concrete: Any,
    specs: Sequence[tf.TensorSpec],
    loss: Named = None,
    example: Sequence[Any] = (),
) -> TrainStep:
    """The step that `concrete` is of `function`, for an `example` of its batch: tensors, arrays or,
    where there are none, specs."""
    there = not any(isinstance(each, tf.TensorSpec) for each in example)
    return TrainStep(
        name=getattr(function, "__name__", "train_step"),
        function=function,
        specs=tuple(specs),
        make_batch=lambda: tuple(tf.zeros(spec.shape, spec.dtype) for spec in specs),
        variables=lambda: tuple(concrete.variables),
        loss=loss,
        example=example if there and len(example) == len(specs) else None,
    )


@tf.RegisterGradient(REWRITTEN)
def _refuse_gradient(op: Any, *gradients: Any) -> Any:
    if op is None:  # as a SavedModel asks what the gradient would be
        return [None]
    raise UnsupportedGraphError(
        "a step of memtrade.apply takes its own gradients, and none can be taken of it: call it "
        "outside of tf.GradientTape, or within tape.stop_recording()"
    )


def unchanged(concrete: Any, specs: Sequence[tf.TensorSpec]) -> Any:
    """`concrete` as a concrete function of `specs` that nobody inlines.

    It calls nothing itself: inlined by TensorFlow, in whoever calls it or in its own graph, ops run
    in another order than they were created in (CycleGAN's step then takes 40 MB in place of 25).
    """
    alone = opened(concrete, specs)
    if alone is not concrete:
        return alone
    return graft(concrete, concrete.graph.as_graph_def(), specs).get_concrete_function()


def call_unchanged(concrete: Any, values: Sequence[tf.Tensor]) -> Any:
    """Calls what `unchanged` made; its graph is optimized as the original's is."""
    results = concrete(*values)
    with tf.compat.v1.get_default_graph().gradient_override_map({"Identity": REWRITTEN}):
        return tf.nest.map_structure(
            lambda each: tf.identity(each) if isinstance(each, tf.Tensor) else each,
            results,
            expand_composites=True,
        )


def call_alone(concrete: Any, values: Sequence[tf.Tensor]) -> Any:
    """Calls a function whose graph is to be run as it is, without TensorFlow's optimizer."""
    overridden = {"StatefulPartitionedCall": REWRITTEN}
    with tf.compat.v1.get_default_graph().gradient_override_map(overridden):
        return called_as_it_is(concrete, values)
