"""Kernels of real steps, asked: what they say is what the allocator counts when the step runs."""

# TensorFlow's own annotations say less than its functions take.
# pyright: reportOperatorIssue=false

from __future__ import annotations

import os

import pytest
import tensorflow as tf

from memtrade.facts.signature import signature_of
from memtrade.facts.surroundings import ONEDNN
from memtrade.measure.here import here_target, learned_target
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.trial import run_child
from memtrade.op_types import CALL_TYPES
from memtrade.tf.extract import trace
from memtrade.tf.kernel_log import (
    Granted,
    Other,
    Output,
    Returned,
    between,
    read_events,
    requests_of,
)
from memtrade.tf.step import TrainStep
from tests.tf.test_extract import step_of

RESNET = {"layers": 18, "image_size": 64, "num_classes": 10, "batch_size": 4}

LOG = """\
I0000 bfc.cc:328] AllocateRaw cpu  8 0x10
I0000 log_memory.cc:34] __LOG_MEMORY__ MemoryLogTensorOutput { step_id: -1 kernel_name: "a" tensor { dtype: DT_DOUBLE allocation_description { requested_bytes: 8 allocated_bytes: 256 ptr: 16 } } }
I0000 bfc.cc:281] AllocateRaw cpu  400
I0000 bfc.cc:328] AllocateRaw cpu  400 0x100
I0000 bfc.cc:328] AllocateRaw cpu  100 0x300
I0000 bfc.cc:693] DeallocateRaw cpu 100
I0000 log_memory.cc:34] __LOG_MEMORY__ MemoryLogTensorOutput { step_id: -1 kernel_name: "run" index: 1 tensor { dtype: DT_FLOAT allocation_description { requested_bytes: 400 allocated_bytes: 512 ptr: 256 } } }
I0000 bfc.cc:328] AllocateRaw cpu  8 0x20
I0000 log_memory.cc:34] __LOG_MEMORY__ MemoryLogTensorOutput { step_id: -1 kernel_name: "b" tensor { dtype: DT_DOUBLE allocation_description { requested_bytes: 8 allocated_bytes: 256 ptr: 32 } } }
"""  # noqa: E501


def test_the_log_tells_requests_outputs_and_what_was_given_back():
    events = list(read_events(LOG.splitlines()))
    own = between(events, "a", "b")
    assert own == [
        Other(), Granted(400, 256), Granted(100, 768), Returned(100), Output("run", 1, 256)
    ]  # fmt: skip
    assert requests_of(own, "run") == [(400, 1), (100, -1)]


def test_scratch_that_was_never_held_together_counts_once():
    one_after_the_other = [
        Granted(30, 3), Granted(100, 1), Returned(100), Granted(60, 2), Returned(60),
        Output("run", 0, 3),
    ]  # fmt: skip
    assert requests_of(one_after_the_other, "run") == [(30, 0), (100, -1)]


def test_scratch_is_in_the_pieces_in_which_most_of_it_was_held():
    """A product over several axes copies each of what it reads, and then what it makes."""
    copying = [
        Granted(30, 3), Granted(100, 1), Granted(50, 2), Returned(100), Returned(50),
        Granted(120, 4), Output("run", 0, 3),
    ]  # fmt: skip
    assert requests_of(copying, "run") == [(30, 0), (100, -1), (50, -1)]


def test_scratch_that_is_given_back_before_an_output_is_asked_for():
    """The output of a product that is transposed may lie where other scratch lay."""
    transposing = [
        Granted(100, 1), Granted(50, 2), Granted(30, 3), Granted(70, 4), Returned(70),
        Granted(30, 4), Returned(30), Returned(100), Returned(50), Output("run", 0, 4),
    ]  # fmt: skip
    assert requests_of(transposing, "run") == [
        (100, -1), (50, -1), (30, -1), (70, -1), (-70, -1), (30, 0)
    ]  # fmt: skip


def test_scratch_of_many_requests_is_told_as_what_was_held_at_most():
    many = [each for i in range(20) for each in (Granted(100 - i, i), Returned(100 - i))]
    own = [*many, Granted(30, 50), Output("run", 0, 50)]
    assert requests_of(own, "run") == [(70, -1), (30, 0)]


def test_what_another_gives_back_meanwhile_is_not_the_kernels():
    together = [Returned(8), Granted(100, 1), Granted(30, 3), Returned(100), Output("run", 0, 3)]
    assert requests_of(together, "run") == [(100, -1), (30, 0)]


@pytest.mark.parametrize("onednn", ["0", "1"])
@pytest.mark.parametrize("strategy", ["lms", "checkpoints"])
@pytest.mark.usefixtures("asking")
def test_pinned_peaks_are_predicted_with_either_kernels(request, monkeypatch, onednn, strategy):
    """To within 1%, and 0.2% below at the most, whichever kernels run."""
    if (strategy, onednn) == ("lms", "1"):
        request.getfixturevalue("started_anew")
    monkeypatch.setenv(ONEDNN, onednn)
    spec = TrialSpec(
        model="resnet", model_options=RESNET, strategy=strategy, steps=1,
        memory_limit_bytes=1 << 30,
    )  # fmt: skip
    record = run_child(spec)
    assert record.measured is not None, record.reason
    assert record.predicted is not None, record.reason
    assert record.runtime is not None
    assert record.runtime.onednn == (onednn == "1")
    off = record.predicted.peak_bytes / record.measured.peak_bytes - 1
    assert -0.002 <= off <= 0.01


@pytest.mark.usefixtures("asking")
def test_every_kernel_that_matters_is_asked(small_graph):
    target = learned_target(here_target("arena"), [small_graph], environment=os.environ)
    matters = [
        op
        for op in small_graph.ops
        if op.type in ("Conv2D", "Conv2DBackpropFilter", "FusedBatchNormGradV3", "Relu")
        and sum(small_graph.tensors[t].size_bytes for t in op.outputs) > 1 << 16
    ]
    assert matters
    for op in matters:
        fact = target.facts.of(op, small_graph)
        assert fact.source == "asked"
        assert fact.seconds is not None
        assert fact.seconds > 0


@pytest.fixture(scope="module")
def small_graph():
    from memtrade.models import make_model
    from memtrade.tf.build import make_step
    from memtrade.tf.extract import trace

    step = make_step(make_model("resnet", RESNET), optimizer="sgd", learning_rate=0.1)
    return trace(step).graph


def with_a_compiled_convolution(kernel: tf.Variable) -> TrainStep:
    """Convolutions in groups as Keras has them where there is no GPU, reading their variable."""

    @tf.function(jit_compile=True)
    def convolve(x):
        return tf.nn.convolution(x, kernel, padding="SAME")

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(convolve(tf.sin(x)) ** 2)
        (gradient,) = tape.gradient(loss, [kernel])
        kernel.assign_sub(0.1 * gradient)
        return loss

    return step_of(train_step, tf.TensorSpec([8, 32, 32, 8]))


def test_what_a_call_is_does_not_depend_on_the_tracing():
    kernel = tf.Variable(tf.ones([3, 3, 2, 8]))
    graphs = [trace(with_a_compiled_convolution(kernel)).graph for _ in range(2)]
    ops = [[op for op in graph.ops if op.type in CALL_TYPES] for graph in graphs]
    signed = [
        [signature_of(op, graph) for op in calls] for calls, graph in zip(ops, graphs, strict=True)
    ]
    assert len(signed[0]) == 2
    assert None not in signed[0]
    assert signed[0] == signed[1]


@pytest.mark.usefixtures("asking")
def test_a_compiled_call_is_asked_like_any_kernel():
    """XLA's requests, in its order: outputs, and then the room that it works in."""
    graph = trace(with_a_compiled_convolution(tf.Variable(tf.ones([3, 3, 2, 8])))).graph
    target = learned_target(here_target("arena"), [graph])
    for op in (op for op in graph.ops if op.type in CALL_TYPES):
        fact = target.facts.of(op, graph)
        assert fact.source == "asked"
        made = [request for request in fact.requests if request.output >= 0]
        sizes = [graph.tensors[t].size_bytes for t in op.outputs]
        assert sorted(each.output for each in made) == list(range(len(sizes)))
        assert all(each.size_bytes == sizes[each.output] for each in made)
        assert fact.requests[: len(made)] == tuple(made)
        assert fact.seconds is not None


def unpooling(x):
    """As SegNet: what a pool took goes back to where it was, in tensors as large as before."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        drawn, _, _ = tf.nn.fractional_max_pool(x, [1.0, 1.44, 1.44, 1.0], seed=1)
        pooled, at = tf.nn.max_pool_with_argmax(drawn, 2, 2, "SAME", include_batch_in_index=True)
        size = tf.cast(tf.reshape(tf.reduce_prod(tf.shape(drawn)), [1]), tf.int64)
        back = tf.scatter_nd(tf.reshape(at, [-1, 1]), tf.reshape(pooled, [-1]), size)
        loss = tf.reduce_sum(back**2)
    return loss, tape.gradient(loss, x)


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("kind", ["FractionalMaxPoolGrad", "MaxPoolGradWithArgmax", "ScatterNd"])
def test_a_kernel_whose_inputs_must_agree_is_asked_with_such(kind):
    graph = trace(step_of(unpooling, tf.TensorSpec([12, 48, 48, 24]))).graph
    target = learned_target(here_target("arena"), [graph])
    (op,) = (op for op in graph.ops if op.type == kind)
    fact = target.facts.of(op, graph)
    assert (fact.source, fact.margin_bytes) == ("asked", 0)
    assert graph.tensors[op.outputs[0]].size_bytes in [each.size_bytes for each in fact.requests]


def with_singular_inputs(x, matrix, number, at):
    """Whatever a kernel would not take if all its numbers were the same."""
    return (
        tf.histogram_fixed_width(x, [0.0, 1.0], 100),
        tf.math.invert_permutation(number),
        tf.linalg.inv(matrix),
        tf.linalg.solve(matrix, matrix[..., :16]),
        number // number,
        number % number,
        tf.truncatediv(number, number),
        tf.truncatemod(number, number),
        tf.sparse.to_dense(tf.SparseTensor(at, x, [400, 500])),
    )


@pytest.mark.usefixtures("asking")
def test_a_kernel_is_asked_with_numbers_that_it_takes():
    specs = tf.TensorSpec([8000]), tf.TensorSpec([8, 64, 64]), tf.TensorSpec([8000], tf.int32)
    at = tf.TensorSpec([8000, 2], tf.int64)
    graph = trace(step_of(with_singular_inputs, *specs, at)).graph
    target = learned_target(here_target("arena"), [graph])
    sources = {
        op.type: target.facts.of(op, graph).source
        for op in graph.ops
        if sum(graph.tensors[t].size_bytes for t in op.inputs) > 1 << 14
    }
    wanted = {"HistogramFixedWidth", "InvertPermutation", "MatrixInverse", "MatrixSolve"}
    wanted |= {"FloorDiv", "FloorMod", "SparseToDense", "TruncateDiv", "TruncateMod"}
    assert {sources.get(kind) for kind in wanted} == {"asked"}, sources
