import pytest

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph
from tests.graphs import Builder, chain


def names(graph: StepGraph, op_ids) -> list[str]:
    return [graph.ops[op_id].name for op_id in sorted(op_ids)]


def test_phases_of_a_chain():
    graph = chain(3)
    assert names(graph, graph.forward) == ["x", "layer1", "layer2", "layer3", "loss"]
    assert graph.ops[graph.turn].name == "loss"
    assert "grad1" in names(graph, graph.backward)
    assert "update3" in names(graph, graph.backward)


def test_activations_are_what_the_backward_part_reads():
    graph = chain(3)
    found = [graph.label(t) for t in graph.activations]
    assert found == ["layer1:0", "layer2:0", "layer3:0", "loss:0"]


def test_metrics_that_read_the_loss_do_not_hide_the_turn():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[4096])
    (y,) = b.op("y", "Sin", [x], sizes=[4096])
    (loss,) = b.op("loss", "Sum", [y], sizes=[4])
    (gradient,) = b.op("grad", "SinGrad", [y, x], sizes=[4096])
    for i in range(4):
        (gradient,) = b.op(f"more{i}", "Sin", [gradient], sizes=[4096])
    b.op("update", "AssignAddVariableOp", [gradient], stateful=True)
    b.op("metric", "AssignAddVariableOp", [loss], stateful=True)
    graph = b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=[len(b.ops) - 1])
    assert graph.ops[graph.turn].name == "y"


def test_views_share_a_root():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[4096])
    (y,) = b.op("y", "Sin", [x], sizes=[4096])
    (flat,) = b.op("flat", "Reshape", [y], sizes=[4096])
    (same,) = b.op("same", "Identity", [flat], sizes=[4096])
    graph = b.build(inputs=[x], outputs=[same], loss=same)
    assert graph.root[same] == y
    assert graph.views(y) == [y, flat, same]
    assert graph.loss == y  # what is returned may be a view that waits for the updates


def test_bytes_round_trip_keeps_the_fingerprint():
    graph = chain(4)
    again = StepGraph.from_bytes(graph.to_bytes())
    assert again.fingerprint == graph.fingerprint
    assert chain(5).fingerprint != graph.fingerprint


def test_find_names_what_is_missing():
    graph = chain(2)
    assert graph.find(["layer1", "layer2:0"]) == [graph.ops[1].outputs[0], graph.ops[2].outputs[0]]
    with pytest.raises(UnsupportedGraphError, match="no tensor 'layer9'"):
        graph.find(["layer9"])


def test_a_loop_is_refused():
    b = Builder()
    b.op("late", "Sin", [0], sizes=[4])
    with pytest.raises(UnsupportedGraphError, match="loop"):
        b.build(inputs=[], outputs=[0], loss=0)
