import msgspec
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


def variant(**changes) -> StepGraph:
    """A chain of three with something about its first layer, or about the whole, replaced."""
    data = chain(3).data
    for part in ("ops", "tensors"):
        given = changes.pop(part, None)
        if given:
            first, *rest = getattr(data, part)
            changed = msgspec.structs.replace(first, **given)
            data = msgspec.structs.replace(data, **{part: (changed, *rest)})
    return StepGraph(msgspec.structs.replace(data, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"tensors": {"dtype": "float16"}},
        {"tensors": {"shape": (7,)}},
        {"ops": {"attrs": {"strides": [2]}}},
        {"ops": {"stateful": True}},
        {"loss": 1},
        {"outputs": (1,)},
        {"inputs": ()},
        {"control_outputs": (0,)},
    ],
    ids=str,
)
def test_a_fingerprint_tells_steps_apart(changes):
    assert variant().fingerprint == chain(3).fingerprint
    assert variant(**changes).fingerprint != chain(3).fingerprint


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


def late_step() -> StepGraph:
    """Two layers as a GradientTape leaves them: the gradient reads y - x, which no gradient makes.

        x ─► y ─► z ─► loss        seed ─► gz ─► gy = gz * (y - x) ─► update
        └────┴──► late = y - x ─────────────────────┘
    count is the number of examples: everything is divided by it, but it is not where they turn.
    """
    b = Builder()
    big, size = 1 << 20, 4096
    (x,) = b.op("x", "Placeholder", sizes=[big])
    (y,) = b.op("y", "Sin", [x], sizes=[big])
    (z,) = b.op("z", "Sin", [y], sizes=[big])
    (count,) = b.op("count", "Const", sizes=[4])
    (share,) = b.op("share", "Cast", [count], sizes=[4])
    (loss,) = b.op("loss", "RealDiv", [z, share], sizes=[4])
    (seed,) = b.op("seed", "RealDiv", [share, share], sizes=[4])
    (gz,) = b.op("gz", "SinGrad", [seed, z], sizes=[big])
    (shape,) = b.op("shape", "Shape", [y], sizes=[16])
    (late,) = b.op("late", "Sub", [y, x], sizes=[big])
    (part,) = b.op("part", "Sum", [late], sizes=[size])
    (gy,) = b.op("gy", "Mul", [gz, late], sizes=[big])
    b.op("update", "AssignAddVariableOp", [gy, part, shape], stateful=True)
    return b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=[len(b.ops) - 1])


def test_the_turn_comes_from_the_batch():
    graph = late_step()
    assert names(graph, graph.from_batch) == ["y", "z", "loss"]
    assert graph.ops[graph.turn].name == "z"


def test_what_only_the_backward_part_needs_belongs_to_it():
    """If it is large. Shapes are made at once, or they would hold what they are the shape of."""
    graph = late_step()
    assert names(graph, graph.descendants) == ["gz", "gy", "update"]
    assert names(graph, graph.backward) == ["gz", "late", "part", "gy", "update"]
    assert [graph.label(t) for t in graph.activations] == ["y:0", "z:0"]


def test_each_output_of_identity_n_is_its_input():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[4096])
    (y,) = b.op("y", "Sin", [x], sizes=[4096])
    same = b.op("same", "IdentityN", [y, x], sizes=[4096, 4096])
    graph = b.build(inputs=[x], outputs=same, loss=same[0])
    assert [graph.root[t] for t in same] == [y, x]
    assert graph.views(y) == [y, same[0]]
