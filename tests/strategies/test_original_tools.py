"""OpenAI's and TFLMS's own rules: what they choose, and the order of what they do."""

from __future__ import annotations

import math
from typing import Any

import pytest

from memtrade.errors import MemtradeError, UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.papers.executor import run_order, tasks_of
from memtrade.plan import Order, Plan, check_plan
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies import PLANNED, make_options
from memtrade.strategies.bottlenecks import Trained
from tests.graphs import Builder, target

SIZE = 1 << 20


def trained(layers: int, *, skips: frozenset[int] = frozenset()) -> StepGraph:
    """A chain of layers with a weight each; in front of a layer of `skips` stands a sum with what
    the layer before it read.

        x ─► layer1 ─► layer2 ─► [+ layer1] ─► layer3 ...
    """
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[SIZE])
    handles = [b.op(f"handle{i}", "VarHandleOp", sizes=[0])[0] for i in range(1, layers + 1)]
    outputs, sums = [x], []
    for i, handle in enumerate(handles, 1):
        (weight,) = b.op(f"read{i}", "ReadVariableOp", [handle], sizes=[256])
        if i in skips:
            outputs.append(b.op(f"sum{i}", "AddV2", [outputs[-1], outputs[-2]], sizes=[SIZE])[0])
            sums.append(outputs[-1])
        outputs.append(b.op(f"layer{i}", "BiasAdd", [outputs[-1], weight], sizes=[SIZE])[0])
    (loss,) = b.op("loss", "Sum", [outputs[-1]], sizes=[4])
    (gradient,) = b.op("start", "Mul", [loss, outputs[-1]], sizes=[SIZE])
    updates = []
    for i in range(len(outputs) - 1, 0, -1):
        (gradient,) = b.op(f"grad{i}", "SinGrad", [gradient, outputs[i - 1]], sizes=[SIZE])
        b.op(f"update{i}", "AssignAddVariableOp", [handles[0], gradient], stateful=True)
        updates.append(len(b.ops) - 1)
    return b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=updates)


def plan(graph: StepGraph, strategy: str, order: Order = "dataflow", **options) -> Plan:
    made = PLANNED[strategy].plan(graph, make_options(strategy, options), target("arena", order))
    check_plan(made, graph)
    return made


def names(graph: StepGraph, made: Plan, kind: str) -> list[str]:
    of_op = kind in ("run", "recompute")
    return [
        graph.ops[a.id].name if of_op else graph.label(a.id) for a in made.actions if a.kind == kind
    ]


# OpenAI's gradient-checkpointing


def test_every_kth_bottleneck_of_a_chain_is_kept():
    graph = trained(16)
    everything = Trained(graph)
    read = [t for t in sorted(everything.considered) if any(
        c in graph.backward for c in graph.consumers[t])]  # fmt: skip
    each = math.ceil(len(read) / math.sqrt(len(read)))
    assert everything.bottlenecks(read) == read
    assert everything.checkpoints() == read[each::each]
    assert [c.tensor for c in made_checkpoints(graph)] == read[each::each]


def made_checkpoints(graph: StepGraph, **options):
    found = plan(graph, "checkpoints", rule="openai", **options).fates
    return [fate for fate in found if fate.reason == "checkpoint"]


def test_what_a_shortcut_passes_by_is_no_bottleneck():
    graph = trained(9, skips=frozenset({3, 6, 9}))
    labels = {graph.label(t) for t in Trained(graph).bottlenecks(sorted(Trained(graph).considered))}
    assert {"sum3:0", "sum6:0"} <= labels
    assert not labels & {"layer2:0", "layer5:0"}


def test_a_segment_comes_back_as_a_whole_when_the_gradient_of_its_end_is_there():
    graph = trained(12)
    made = plan(graph, "checkpoints", mode="list", tensors="layer4,layer8", rule="openai")
    lines = [
        ("again " if a.kind == "recompute" else "") + graph.ops[a.id].name
        for a in made.actions
        if a.id not in graph.forward or a.kind == "recompute"
    ]
    clones = [line for line in lines if line.startswith("again")]
    assert clones == [
        *(f"again layer{i}" for i in (9, 10, 11, 12)),
        "again loss",
        *(f"again layer{i}" for i in (5, 6, 7)),
        *(f"again layer{i}" for i in (1, 2, 3)),
    ]
    # grad9 makes the gradient of layer8, and reads layer8 itself.
    assert lines.index("grad9") < lines.index("again layer5") < lines.index("grad8")
    assert lines.index("grad10") < lines.index("again layer5")


def test_the_executor_holds_segments_back_as_the_plan_does():
    graph = trained(12)
    made = plan(graph, "checkpoints", mode="list", tensors="layer4,layer8", rule="openai")
    simulator = TimeSimulator(graph, target("gtx-1070", "dataflow"))
    order = run_order(simulator, tasks_of(graph, made.actions))
    assert sorted(order, key=repr) == sorted(made.actions, key=repr)
    place = {(a.kind, graph.ops[a.id].name): i for i, a in enumerate(order)}
    assert place["run", "grad9"] < place["recompute", "layer5"] < place["run", "grad8"]


@pytest.mark.parametrize("order", ["pinned", "dataflow"])
def test_ome_swaps_what_is_read_once(order: Order):
    """layer3's output is read by a layer and by a sum; layer6's by one layer alone."""
    graph = trained(9, skips=frozenset({5}))
    made = plan(graph, "ome", order, mode="list", tensors="layer3,layer6", rule="openai",
                select="read_once")  # fmt: skip
    assert names(graph, made, "swap_out") == ["layer6:0"]
    assert names(graph, made, "swap_in") == ["layer6:0"]
    reasons = {graph.label(f.tensor): (f.decision, f.reason) for f in made.fates}
    assert reasons["layer6:0"] == ("swap", "checkpoint, one forward op alone reads it")
    assert reasons["layer3:0"] == ("keep", "checkpoint")


def test_read_once_is_a_choice_of_memtrade_s_own_rule_too():
    graph = trained(9, skips=frozenset({5}))
    made = plan(graph, "ome", mode="list", tensors="layer3,layer6", select="read_once")
    assert names(graph, made, "swap_out") == ["layer6:0"]


def test_a_net_without_a_bottleneck_is_refused_by_name():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[SIZE])
    (loss,) = b.op("loss", "Sum", [x], sizes=[4])
    (gradient,) = b.op("gradient", "Mul", [loss, x], sizes=[SIZE])
    graph = b.build(inputs=[x], outputs=[gradient], loss=loss)
    with pytest.raises(UnsupportedGraphError, match="no tensor that cuts hand-made in two"):
        plan(graph, "checkpoints", rule="openai")


# TFLMS


def read_twice(layers: int = 6) -> StepGraph:
    """A chain whose every output two gradient ops read: its own, and its weight's."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[SIZE])
    (handle,) = b.op("handle", "VarHandleOp", sizes=[0])
    outputs = [x]
    for i in range(1, layers + 1):
        outputs.append(b.op(f"net/layer{i}", "Sin", [outputs[-1]], sizes=[SIZE])[0])
    (small,) = b.op("net/small", "Rsqrt", [outputs[-1]], sizes=[64])
    (spared,) = b.op("net/spared", "Mul", [outputs[-1]], sizes=[SIZE])
    (loss,) = b.op("loss", "Sum", [small, spared], sizes=[4])
    (gradient,) = b.op("g/start", "Mul", [loss, small, spared], sizes=[SIZE])
    updates = []
    for i in range(layers, 0, -1):
        (weight,) = b.op(f"g/weight{i}", "SinGrad", [gradient, outputs[i]], sizes=[SIZE])
        (gradient,) = b.op(f"g/input{i}", "ReluGrad", [gradient, outputs[i]], sizes=[SIZE])
        b.op(f"g/update{i}", "AssignAddVariableOp", [handle, weight], stateful=True)
        updates.append(len(b.ops) - 1)
    return b.build(inputs=[x], outputs=[loss, gradient], loss=loss, control_outputs=updates)


@pytest.mark.parametrize("order", ["pinned", "dataflow"])
def test_a_swap_in_for_each_reader(order: Order):
    graph = read_twice()
    made = plan(graph, "lms", order, rule="tflms")
    outs, ins = (names(graph, made, kind) for kind in ("swap_out", "swap_in"))
    assert "net/spared:0" not in outs
    assert "net/small:0" in outs  # TFLMS asks for no size
    for i in range(1, 7):
        assert (outs.count(f"net/layer{i}:0"), ins.count(f"net/layer{i}:0")) == (1, 2)
    ours = plan(graph, "lms", order)
    assert names(graph, ours, "swap_in").count("net/layer3:0") == 1


def test_each_reader_reads_its_own_copy():
    graph = read_twice()
    made = plan(graph, "lms", rule="tflms")
    (layer3,) = graph.find(["net/layer3"])
    readers = [c for c in graph.consumers[layer3] if c in graph.backward]
    own = [
        (a.kind, a.id)
        for a in made.actions
        if (a.kind == "swap_in" and a.id == layer3) or (a.kind == "run" and a.id in readers)
    ]
    assert [kind for kind, _ in own] == ["swap_in", "run", "swap_in", "run"]


def test_a_view_keeps_what_it_shows_where_it_is():
    """As in the stem of ResNet v2: a gradient op reads the pool's output, another an identity of
    it, which TFLMS leaves alone."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[SIZE])
    (pool,) = b.op("pool", "Sin", [x], sizes=[SIZE])
    (view,) = b.op("view", "Identity", [pool], sizes=[SIZE])
    (last,) = b.op("last", "Sin", [view], sizes=[SIZE])
    (loss,) = b.op("loss", "Sum", [last], sizes=[4])
    (start,) = b.op("start", "Mul", [loss, last], sizes=[SIZE])
    (first,) = b.op("of_view", "SinGrad", [start, view], sizes=[SIZE])
    (second,) = b.op("of_pool", "SinGrad", [first, pool], sizes=[SIZE])
    graph = b.build(inputs=[x], outputs=[loss, second], loss=loss)
    made = plan(graph, "lms", rule="tflms")
    assert names(graph, made, "recompute") == []
    assert names(graph, made, "swap_in").count("pool:0") == 1


def test_fused_swap_ins_are_one_for_all():
    made = plan(read_twice(), "lms", rule="tflms", fuse_swapins=True)
    assert len(names(read_twice(), made, "swap_in")) == len(names(read_twice(), made, "swap_out"))


def test_n_tensors_counts_as_tflms_comes_to_them():
    """Breadth first from where it starts: layer4 and on, although layer1 was made before."""
    graph = read_twice()
    made = plan(graph, "lms", rule="tflms", n_tensors=2, starting_op_names="net/layer4")
    assert names(graph, made, "swap_out") == ["net/layer4:0", "net/layer5:0"]
    first = plan(graph, "lms", rule="tflms", n_tensors=2)
    assert names(graph, first, "swap_out") == ["net/layer1:0", "net/layer2:0"]
    scoped = plan(graph, "lms", rule="tflms", starting_scope="net", n_tensors=1)
    assert names(graph, scoped, "swap_out") == ["net/layer1:0"]


def test_gradient_ops_are_those_of_the_optimizer_s_scopes():
    graph = read_twice()
    named = plan(graph, "lms", rule="tflms", optimizer_scopes="g")
    assert names(graph, named, "swap_out") == names(
        graph, plan(graph, "lms", rule="tflms"), "swap_out"
    )
    some = plan(graph, "lms", rule="tflms", optimizer_scopes="g/weight6,g/weight5")
    assert set(names(graph, some, "swap_out")) == {"net/layer5:0", "net/layer6:0"}


def test_options_of_the_tool_need_its_rule_and_name_something():
    with pytest.raises(MemtradeError, match="starting_scope is the tool's own: give rule=tflms"):
        make_options("lms", {"starting_scope": "net"})
    for name in ("optimizer_scopes", "starting_scope", "starting_op_names"):
        given: Any = {name: "nothing"}
        with pytest.raises(UnsupportedGraphError, match=f"{name} names no op of hand-made: 'noth"):
            plan(read_twice(), "lms", rule="tflms", **given)
