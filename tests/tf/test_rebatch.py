"""Graphs at other batch sizes, against real traces of the same model there."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest
import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import GraphData, StepGraph
from memtrade.models import make_model
from memtrade.options import PARTS, REORDERED
from memtrade.rebatch import Rebatcher
from memtrade.tf.build import make_step
from memtrade.tf.calling import step_to_read
from memtrade.tf.extract import trace, trace_concrete
from memtrade.tf.split import split_step
from tests.tf.small_models import SMALL

pytestmark = pytest.mark.usefixtures("small_models")


@cache
def traced(name: str, batch: int, *, in_parts: bool = False) -> StepGraph:
    family, options = SMALL[name]
    model = make_model(family, options | {"batch_size": batch})
    with tf.Graph().as_default():
        step = make_step(model, optimizer="momentum")
        return trace(split_step(step, REORDERED) if in_parts else step).graph


def comparable(data: GraphData) -> GraphData:
    """TensorFlow numbers what it captures: the fingerprint does not count these names, either.
    Definitions of kernels, and numbers on no line, are those of the traces, or not known."""
    ops = tuple(
        msgspec.structs.replace(op, name="" if op.type == "Placeholder" else op.name, node=-1)
        for op in data.ops
    )
    return msgspec.structs.replace(data, ops=ops, nodes=(), values={}, uniform={})


# Inception-v4 takes as long as the others together, and has no op that they have not.
@pytest.mark.parametrize("name", [name for name in SMALL if name != "inception-v4"])
def test_a_rebatched_graph_is_the_traced_one(name: str) -> None:
    made = Rebatcher(traced(name, 2), 2, traced(name, 3), 3).at(7)
    real = traced(name, 7)
    assert made.fingerprint == real.fingerprint
    assert comparable(made.data) == comparable(real.data)
    assert made.data.values.items() <= real.data.values.items()
    assert made.data.uniform.items() <= real.data.uniform.items()


def test_a_graph_in_parts_is_had_at_multiples_of_their_number() -> None:
    first, second, real = (traced("resnet-18", n * PARTS, in_parts=True) for n in (2, 3, 5))
    rebatcher = Rebatcher(first, 2 * PARTS, second, 3 * PARTS)
    assert rebatcher.at(5 * PARTS).fingerprint == real.fingerprint
    with pytest.raises(UnsupportedGraphError, match="differs between batch 16 and batch 24"):
        rebatcher.at(5 * PARTS + 1)


def test_far_from_the_traces_too() -> None:
    rebatcher = Rebatcher(traced("resnet-18", 7), 7, traced("resnet-18", 2), 2)
    assert rebatcher.at(512).fingerprint == traced("resnet-18", 512).fingerprint


def test_at_batch_1_only_what_is_summed_over_differs() -> None:
    made = Rebatcher(traced("unet", 2), 2, traced("unet", 3), 3).at(1)
    real = traced("unet", 1)
    assert made.fingerprint != real.fingerprint
    differing = [
        real.ops[theirs.op].name.split("/")[-1]
        for ours, theirs in zip(made.tensors, real.tensors, strict=True)
        if ours.size_bytes != theirs.size_bytes
    ]
    assert set(differing) == {"reduction_indices"}


def test_another_model_is_refused() -> None:
    with pytest.raises(UnsupportedGraphError, match="number of ops"):
        Rebatcher(traced("resnet-18", 2), 2, traced("resnet-50", 3), 3)


def changed(graph: StepGraph, op_type: str, **changes: object) -> StepGraph:
    """The graph with its first op of a type changed."""
    place = next(op.id for op in graph.ops if op.type == op_type)
    ops = list(graph.ops)
    ops[place] = msgspec.structs.replace(ops[place], **changes)
    return StepGraph(msgspec.structs.replace(graph.data, ops=tuple(ops)))


def test_what_differs_is_named() -> None:
    first, second = traced("resnet-18", 2), traced("resnet-18", 3)
    with pytest.raises(UnsupportedGraphError, match=r"op \S*Relu differs"):
        Rebatcher(first, 2, changed(second, "Relu", type="Relu6"), 3)
    odd = changed(second, "Conv2D", attrs={"padding": "VALID"})
    with pytest.raises(UnsupportedGraphError, match="the attributes of"):
        Rebatcher(first, 2, odd, 3)
    attrs = next(op.attrs for op in second.ops if op.type == "Conv2D") | {"padding": "FULL"}
    with pytest.raises(UnsupportedGraphError, match="padding of"):
        Rebatcher(first, 2, changed(second, "Conv2D", attrs=attrs), 3).at(4)


def test_a_dimension_that_is_not_affine_is_refused() -> None:
    """From 2 to 7 the slope is not whole."""
    first, second = traced("resnet-18", 2), traced("resnet-18", 7)
    tensors = list(second.tensors)
    place = next(t.id for t in first.tensors if t.shape and t.shape[0] == 2)
    shape = (8, *(tensors[place].shape or ())[1:])
    tensors[place] = msgspec.structs.replace(tensors[place], shape=shape)
    bent = StepGraph(msgspec.structs.replace(second.data, tensors=tuple(tensors)))
    with pytest.raises(UnsupportedGraphError, match="by more than dimensions"):
        Rebatcher(first, 2, bent, 7).at(4)
    with pytest.raises(ValueError, match="at least one example"):
        Rebatcher(first, 2, second, 7).at(0)


def test_zeros_that_are_constants_in_small_batches_are_told_of() -> None:
    """TensorFlow makes up to 1,000 zeros as a constant, and more by an op: another graph."""
    kernel = tf.Variable(tf.ones([16, 16]))

    def traced_at(batch: int, zeros: int) -> StepGraph:
        @tf.function(autograph=False)
        def step(x):
            loss = tf.reduce_sum((x + tf.zeros([zeros, 16])) @ kernel)
            kernel.assign_sub(tf.gradients(loss, [kernel])[0])
            return loss

        return trace_concrete(*step_to_read(step, (tf.TensorSpec([batch, 16]),))).graph

    assert Rebatcher(traced_at(2, 2), 2, traced_at(3, 3), 3).grows_constants
    assert not Rebatcher(traced_at(2, 1), 2, traced_at(3, 1), 3).grows_constants
    assert not Rebatcher(traced_at(80, 80), 80, traced_at(81, 81), 81).grows_constants
