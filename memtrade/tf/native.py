"""Carries out TensorFlow's own ways: memtrade.strategies.native says what they are."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.op_types import SOURCE_TYPES
from memtrade.strategies.checkpoints import EXPENSIVE_TYPES
from memtrade.strategies.native import (
    GRAPPLER_MODES,
    Accumulate,
    Grappler,
    KerasRemat,
    NativeOptions,
    RecomputeGrad,
    Xla,
)
from memtrade.tf.construction import AS_USUAL, Construction
from memtrade.tf.extract import Trace, trace
from memtrade.tf.graft import called_as_it_is
from memtrade.tf.rewrite import import_step
from memtrade.tf.step import TrainStep

# Where gradients stand: those of tf.gradients, those of a GradientTape.
_GRADIENT_SCOPES = ("gradients/", "gradient_tape/")


def make_native_step(
    options: NativeOptions, build: Callable[[Construction], TrainStep]
) -> TrainStep:
    """The step that a native strategy makes. Its function may be another callable than a
    `tf.function`.

    Args:
        build: makes the step anew, with variables of its own.

    Raises:
        UnsupportedGraphError: the step cannot be built or run that way.
    """
    match options:
        case RecomputeGrad():
            return build(Construction(recompute_blocks=True))
        case Accumulate():
            return build(Construction(micro_batches=options.micro_batches))
        case KerasRemat():
            return build(Construction(remat=options))
        case Xla():
            return compiled(build(AS_USUAL))
        case Grappler():
            step = build(AS_USUAL)
            return dataclasses.replace(step, function=optimized(trace(step), options))
    raise TypeError(f"no native strategy has options of {type(options).__name__}")


def compiled(step: TrainStep) -> TrainStep:
    """The step compiled by XLA, whole, when it is first called."""
    step.variables()  # none may be made while XLA compiles

    @tf.function(autograph=False, input_signature=step.specs, jit_compile=True)
    def train_step(*batch: tf.Tensor) -> Any:
        return step.function(*batch)

    return dataclasses.replace(step, function=train_step)


def optimized(traced: Trace, options: Grappler) -> Callable[..., Any]:
    """The step under Grappler's memory optimizer.

    TensorFlow 2 has no public setting for it. But a function is optimized by the configuration of
    the op that calls it, and that op can be called as it is.
    """
    graph_def = tf.compat.v1.GraphDef()
    graph_def.CopyFrom(traced.graph_def)
    hinted = _hinted(traced.graph) if options.hints == "cheap" else set()
    for node in graph_def.node:
        if node.name in hinted:
            node.attr["_recompute_hint"].i = 0  # that it is there is enough
    concrete = import_step(traced, graph_def).get_concrete_function()
    scope = _gradient_scope(traced.graph) if options.scope == "auto" else options.scope
    config = grappler_config(options.mode, scope)
    return lambda *batch: called_as_it_is(concrete, batch, config)


def grappler_config(mode: str, scope: str) -> Any:
    """A ConfigProto under which Grappler does nothing but `memory_optimization`.

    Its other passes would make this a comparison of several things at once, and the original runs
    without them.
    """
    config = tf.compat.v1.ConfigProto()
    rewrite = config.graph_options.rewrite_options
    off = rewrite.OFF
    for field in rewrite.DESCRIPTOR.fields:
        is_toggle = field.enum_type is not None and field.enum_type.name == "Toggle"
        if is_toggle:
            setattr(rewrite, field.name, off)
    rewrite.disable_model_pruning = True
    rewrite.meta_optimizer_iterations = rewrite.ONE
    rewrite.min_graph_nodes = -1  # however small the graph
    rewrite.memory_optimization = GRAPPLER_MODES[mode]
    rewrite.memory_optimizer_target_node_name_scope = scope
    return config


def _hinted(graph: StepGraph) -> set[str]:
    """The forward ops that are cheap to run again."""
    ops = (graph.ops[op_id] for op_id in graph.forward)
    return {
        op.name
        for op in ops
        if not op.stateful and op.type not in EXPENSIVE_TYPES and op.type not in SOURCE_TYPES
    }


def _gradient_scope(graph: StepGraph) -> str:
    """The name scope of the gradients, as Grappler looks for it: at the start or behind a "/"."""
    counts = {
        scope: sum(f"/{scope}" in f"/{graph.ops[op_id].name}" for op_id in graph.backward)
        for scope in _GRADIENT_SCOPES
    }
    scope = max(counts, key=lambda each: counts[each])
    if not counts[scope]:
        raise UnsupportedGraphError(
            f"Grappler finds gradients by their name scope, and {graph.name} has neither "
            f"{' nor '.join(_GRADIENT_SCOPES)}: name it by the option scope"
        )
    return scope
