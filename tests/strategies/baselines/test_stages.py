"""What stages hold and recompute, and that programs from them can be carried out."""

from memtrade.plan import Plan, check_plan
from memtrade.simulate.memory import Simulator
from memtrade.strategies.baselines.stages import BackwardStage, droppable, emit, fates, phases
from tests.graphs import ARENA, Builder, chain

MIB = 1 << 20


def op_named(graph, name: str) -> int:
    return next(op.id for op in graph.ops if op.name == name)


def output(graph, name: str) -> int:
    return graph.ops[op_named(graph, name)].outputs[0]


def recomputed(graph, actions) -> list[str]:
    return [graph.ops[a.id].name for a in actions if a.kind == "recompute"]


def one_op_stages(graph, backward, retained):
    return [BackwardStage([op_id], (), retained) for op_id in backward]


def test_what_is_held_is_not_recomputed_and_what_is_not_is():
    graph = chain(6)
    forward, backward = phases(graph, ())
    everything = droppable(graph)
    kept = emit(graph, [BackwardStage(forward, (), everything), BackwardStage(backward)])
    assert recomputed(graph, kept) == []
    none = emit(graph, [BackwardStage(forward), BackwardStage(backward)])
    # In one stage each comes back once, depth first, and stays.
    assert recomputed(graph, none) == [f"layer{i}" for i in range(1, 7)]


def test_a_tensor_comes_back_as_often_as_it_is_dropped():
    """With nothing held from op to op, grad_i needs layers 1 to i-1 again."""
    graph = chain(4)
    forward, backward = phases(graph, ())
    actions = emit(graph, [BackwardStage(forward), *one_op_stages(graph, backward, ())])
    assert recomputed(graph, actions) == [
        *("layer1", "layer2", "layer3", "layer4"),  # for the seed
        *("layer1", "layer2", "layer3"),
        *("layer1", "layer2"),
        "layer1",
    ]
    reasons = {graph.label(fate.tensor): fate.reason for fate in fates(graph, actions)}
    assert reasons["layer1:0"] == "4 times"
    assert reasons["layer4:0"] == "once"
    plan = Plan("stages", {}, graph.fingerprint, "pinned", (), actions)
    check_plan(plan, graph)
    assert Simulator(graph, ARENA).peak_live_bytes(actions) < Simulator(
        graph, ARENA
    ).peak_live_bytes(())


def test_rebuild_comes_first_and_is_held():
    graph = chain(6)
    forward, backward = phases(graph, ())
    third = output(graph, "layer3")
    actions = emit(
        graph,
        [
            BackwardStage(forward),
            BackwardStage(backward[:1], rebuild=[third], retained=[third]),
            BackwardStage(backward[1:]),
        ],
    )
    names = recomputed(graph, actions)
    # layer3, held, is where layer4 and later ones start from; layers 1 and 2 come again.
    assert names[:6] == [f"layer{i}" for i in range(1, 7)]
    assert names.count("layer3") == 1
    assert names.count("layer4") == names.count("layer1") == 2


def test_an_old_view_of_a_new_version_is_made_again():
    """Holding a tensor does not make a view of its former version current."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (y,) = b.op("y", "Sin", [x], sizes=[MIB])
    (view,) = b.op("view", "Reshape", [y], sizes=[MIB])
    (loss,) = b.op("loss", "Sum", [view], sizes=[4])
    (first,) = b.op("first", "Mul", [loss, y], sizes=[MIB])
    (second,) = b.op("second", "Mul", [first, view], sizes=[MIB])
    b.op("update", "AssignAddVariableOp", [second], stateful=True)
    graph = b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=[6])
    stages = [
        BackwardStage([0, 1, 2, 3]),
        BackwardStage([4], (), [y]),
        BackwardStage([5, 6], (), [y]),
    ]
    assert recomputed(graph, emit(graph, stages)) == ["y", "view"]


def test_stateful_and_small_outputs_stay():
    graph = chain(6, stateful=3)
    assert output(graph, "layer3") not in droppable(graph)
    assert graph.loss not in droppable(graph)
    forward, backward = phases(graph, ())
    actions = emit(graph, [BackwardStage(forward), BackwardStage(backward)])
    assert "layer3" not in recomputed(graph, actions)
    reasons = {graph.label(fate.tensor): fate.reason for fate in fates(graph, actions)}
    assert reasons["layer3:0"] == "its op is stateful"
