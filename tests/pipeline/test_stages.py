import pytest

from memtrade.errors import MemtradeError
from memtrade.graph import StepGraph
from memtrade.op_types import RECEIVE, SEND
from memtrade.order import base_order
from memtrade.pipeline.design.partitioner import Partitioner
from memtrade.pipeline.design.stages import ACCUMULATE, stage_graphs
from memtrade.pipeline.design.work import split_program, stage_bytes
from memtrade.plan import Action
from memtrade.simulate.memory import Simulator
from tests.graphs import target
from tests.pipeline.conftest import traced
from tests.pipeline.graphs import MIB, network

DEVICE = target("p40")


def cut(graph: StepGraph, *ends: str):
    return stage_graphs(graph, Partitioner(graph).cut_at(ends, DEVICE))


def types(graph: StepGraph) -> list[str]:
    return [op.type for op in graph.ops]


def test_a_stage_is_a_step_of_its_own():
    first, second = cut(network(4), "layer2")
    assert types(first.graph).count(SEND) == types(first.graph).count(RECEIVE) == 1
    assert first.graph.ops[first.graph.turn].type == SEND
    assert {SEND, RECEIVE}.isdisjoint(types(second.graph))
    assert second.graph.label(second.graph.loss) == "loss:0"
    for stage in (first, second):
        assert types(stage.graph).count(ACCUMULATE) == 2
        assert "ResourceApplyGradientDescent" not in types(stage.graph)
    assert (first.received_bytes, second.received_bytes) == (0, MIB)
    assert (first.batch_bytes, second.batch_bytes) == (MIB, 0)
    assert first.variable_bytes == first.gradient_bytes == 2 * 4096


def test_gradients_come_in_where_activations_went_out():
    whole = network(6, skips={6: 1})
    stages = cut(whole, "layer2", "layer4")
    received = [
        sorted(stage.graph.tensors[t].size_bytes for op in stage.graph.ops if op.type == RECEIVE
               for t in op.outputs)
        for stage in stages
    ]  # fmt: skip
    assert received == [[MIB, MIB], [MIB], []]
    sent = [len(stage.graph.data.outputs) - 1 for stage in stages]
    assert sent == [0, 1, 2]


def test_what_was_made_first_arrives_first_and_of_that_the_largest():
    whole = network(6, skips={5: 1, 6: 2}, sizes={1: MIB // 2, 4: 2 * MIB})
    *_, last = cut(whole, "layer2", "layer4")
    sizes = [last.graph.tensors[t].size_bytes for t in last.graph.data.inputs]
    assert sizes == [MIB, MIB // 2, 2 * MIB]  # of layers 2, 1 and 4


def test_one_stage_has_every_op_and_the_whole_steps_peak(small_gpt2: StepGraph):
    (only,) = cut(small_gpt2)
    assert len(only.graph.forward) == len(small_gpt2.forward)
    assert only.slot_bytes == only.gradient_bytes == only.variable_bytes
    accumulated = Simulator(only.graph, DEVICE).peak_live_bytes(())
    whole = Simulator(small_gpt2, DEVICE).peak_live_bytes(())
    assert accumulated == pytest.approx(whole + only.gradient_bytes, rel=0.02)


def test_what_a_control_edge_holds_back_waits_on_its_stage_too(small_gpt2: StepGraph):
    """Gradients of squares read nothing but forward tensors: run early, they would only lie about.
    TensorFlow holds them back through an op that does nothing and is on no stage."""
    made = Partitioner(small_gpt2).by_time(2, DEVICE, slack=0.1)
    for stage in stage_graphs(small_gpt2, made):
        program = [Action("run", op_id) for op_id in base_order(stage.graph)]
        names = [stage.graph.ops[action.id].name for action in program]
        places = [i for i, name in enumerate(names) if name.endswith("/Square_grad/Mul")]
        assert places
        assert min(places) >= split_program(stage.graph, program)


def test_the_stages_gradients_cross_once_each(small_gpt2: StepGraph):
    made = Partitioner(small_gpt2).cut_at(["block1/add_4", "block2/add_4"], DEVICE)
    for stage, graph in enumerate(stage_graphs(small_gpt2, made)):
        back = sum(
            graph.graph.tensors[t].size_bytes
            for op in graph.graph.ops
            if op.type == RECEIVE
            for t in op.outputs
        )
        assert back == sum(c.size_bytes for c in made.sends(stage))


def test_the_stages_hold_together_what_the_step_holds(small_unet: StepGraph):
    made = Partitioner(small_unet).by_time(3, DEVICE, slack=0.1)
    parts = [stage_bytes(stage, DEVICE) for stage in stage_graphs(small_unet, made)]
    (whole,) = [stage_bytes(stage, DEVICE) for stage in cut(small_unet)]
    crossing = sum(c.size_bytes for c in made.crossings)
    assert whole.held <= sum(part.held for part in parts) <= whole.held + 2 * crossing
    assert sum(part.parameters for part in parts) == whole.parameters


def test_a_partition_of_another_graph_is_refused():
    made = Partitioner(network(4)).cut_at(["layer2"], DEVICE)
    with pytest.raises(MemtradeError, match="made for another graph"):
        stage_graphs(network(5), made)


def test_shapes_that_only_gradients_read_are_made_where_these_run():
    """Of a block's shortcut that reads what the stage before has made: the shape of that."""
    whole = traced("resnet", "sgd", layers=18, image_size=32, num_classes=10, batch_size=2)
    *_, last = cut(whole, "stage4_block1/conv2/conv/Conv2D")
    assert "int32" not in {last.graph.tensors[t].dtype for t in last.graph.data.inputs}
    read = {op.inputs[0] for op in last.graph.ops if op.type == "Conv2DBackpropInput"}
    made = {op.outputs[0] for op in last.graph.ops if op.type == "ShapeN"}
    assert read <= made
