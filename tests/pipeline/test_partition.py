import itertools
import random

import msgspec
import pytest

from memtrade.errors import MemtradeError
from memtrade.graph import StepGraph
from memtrade.pipeline.design.partition import Partition
from memtrade.pipeline.design.partitioner import Partitioner
from tests.graphs import target
from tests.pipeline.graphs import MIB, names, network

DEVICE = target("p40")


def random_network(seed: int) -> StepGraph:
    chance = random.Random(seed)
    layers = 9
    sizes = {i: chance.randrange(1, 9) * MIB // 4 for i in range(1, layers + 1)}
    skips = {i: chance.randrange(1, i - 1) for i in (4, 7, 9) if chance.random() < 0.8}
    return network(layers, skips=skips, sizes=sizes)


def traffic(partition: Partition) -> int:
    return sum(c.size_bytes * len(c.targets) for c in partition.crossings)


def every_partition(partitioner: Partitioner, stages: int) -> list[Partition]:
    places = names(partitioner.graph, partitioner.places)
    return [partitioner.cut_at(ends, DEVICE) for ends in itertools.combinations(places, stages - 1)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("stages", [2, 3])
def test_against_all_partitions_of_a_small_graph(seed: int, stages: int):
    """Slack 0: the lightest heaviest stage, and of those partitions the least traffic."""
    partitioner = Partitioner(random_network(seed))
    found = partitioner.by_time(stages, DEVICE)
    everything = every_partition(partitioner, stages)
    heaviest = [max(s.cost for s in p.stages) for p in everything]
    assert max(s.cost for s in found.stages) == found.optimum == min(heaviest)
    best = [p for p, h in zip(everything, heaviest, strict=True) if h == min(heaviest)]
    assert traffic(found) == min(map(traffic, best))
    loose = partitioner.by_time(stages, DEVICE, slack=0.3)
    allowed = [
        p for p, h in zip(everything, heaviest, strict=True) if h <= int(min(heaviest) * 1.3)
    ]
    assert traffic(loose) == min(map(traffic, allowed))


def test_a_long_skip_goes_straight_to_its_reader():
    graph = network(6, skips={6: 1})
    made = Partitioner(graph).cut_at(["layer2", "layer4"], DEVICE)
    crossings = {graph.label(c.tensor): (c.source, c.targets) for c in made.crossings}
    assert crossings == {"layer1:0": (0, (2,)), "layer2:0": (0, (1,)), "layer4:0": (1, (2,))}
    assert all(c.has_gradient for c in made.crossings)
    assert [graph.label(t) for t in made.stages[2].received] == ["layer1:0", "layer4:0"]
    assert made.stages[1].inputs == ()


def test_each_stage_has_its_ops_variables_and_nothing_twice():
    graph = network(4)
    made = Partitioner(graph).cut_at(["layer2"], DEVICE)
    first, second = made.stages
    assert names(graph, first.ops) == ["layer1/read", "layer1", "layer2/read", "layer2"]
    assert names(graph, second.ops) == [
        "layer3/read", "layer3", "layer4/read", "layer4", "loss"
    ]  # fmt: skip
    handles = [graph.ops[graph.tensors[t].op].name for t in (*first.variables, *second.variables)]
    assert handles == ["weight1", "weight2", "weight3", "weight4"]
    assert first.trainable == first.variables


def test_a_shared_weight_has_one_home_and_its_value_crosses():
    graph = network(4, shared={4: 1})
    made = Partitioner(graph).cut_at(["layer2"], DEVICE)
    assert "layer4/read:0" in {graph.label(c.tensor) for c in made.crossings}
    assert len(made.stages[0].variables) == 2
    assert len(made.stages[1].variables) == 1


def test_stages_never_decrease_along_the_forward_edges(small_unet: StepGraph):
    made = Partitioner(small_unet).by_time(4, DEVICE, slack=0.1)
    for op_id in small_unet.forward:
        for t in small_unet.ops[op_id].inputs:
            before, after = (
                made.stage_of[small_unet.tensors[t].op],
                made.stage_of[op_id],
            )
            assert before is None or after is None or before <= after
    built = [op_id for stage in made.stages for op_id in stage.ops]
    placeholders = {o.id for o in small_unet.ops if o.type == "Placeholder"}
    assert set(built) == small_unet.forward - placeholders
    assert made.stages[-1].inputs == (small_unet.data.inputs[1],)  # the targets


def test_optimizer_slots_and_moving_averages_live_with_their_stage(small_amoebanet: StepGraph):
    graph = small_amoebanet
    made = Partitioner(graph).by_time(3, DEVICE, slack=0.1)
    homes = [t for stage in made.stages for t in stage.variables]
    assert sorted(homes) == sorted(
        t for t in graph.data.captures if graph.tensors[t].dtype == "resource"
    )
    for stage in made.stages:
        assert 2 * len(stage.trainable) < len(stage.variables)  # momentum, and moving averages
        assert any(graph.ops[o].type == "AssignSubVariableOp" for o in stage.side_ops)
        assert all(made.stage_of[o] == made.stage_of[stage.side_ops[-1]] or
                   made.stage_of[o] is None for o in stage.side_ops)  # fmt: skip


def test_tied_weights_of_a_real_model(tied_gpt2: StepGraph):
    made = Partitioner(tied_gpt2).by_time(3, DEVICE, slack=0.1)
    crossing = [c for c in made.crossings if "ReadVariableOp" in tied_gpt2.label(c.tensor)]
    assert [(c.source, c.targets, c.has_gradient) for c in crossing] == [(0, (2,), True)]


def test_memory_counts_gradients_and_activations_in_flight():
    graph = network(8, weight=4 * MIB, sizes={1: 8 * MIB})
    one = Partitioner(graph).by_memory(2)
    many = Partitioner(graph).by_memory(2, in_flight=64)
    weights, activations = 8 * 2 * 4 * MIB, (8 + 7) * MIB + 4  # the loss is read, too
    assert sum(s.cost for s in one.stages) == weights + activations
    assert sum(s.cost for s in many.stages) == weights + 64 * activations
    assert one.boundaries == ("layer4",)
    assert many.boundaries == ("layer2",)  # behind layer1 it is too wide to be cut


def test_the_same_graph_gives_the_same_partition_and_survives_json(small_gpt2: StepGraph):
    first = Partitioner(small_gpt2).by_time(4, DEVICE, slack=0.1)
    again = Partitioner(StepGraph.from_bytes(small_gpt2.to_bytes())).by_time(4, DEVICE, slack=0.1)
    assert msgspec.json.encode(first) == msgspec.json.encode(again)
    assert msgspec.json.decode(msgspec.json.encode(first), type=Partition) == first


def test_its_boundaries_make_the_same_partition(small_unet: StepGraph):
    made = Partitioner(small_unet).by_time(4, DEVICE)
    again = Partitioner(small_unet).cut_at(made.boundaries[::-1], DEVICE)
    assert again.stages == made.stages
    assert again.optimum == made.optimum


@pytest.mark.parametrize(
    ("stages", "said"), [(99, "1 to 5 stages, not 99"), (0, "not 0"), (-1, "not -1")]
)
def test_too_many_or_too_few_stages(stages: int, said: str):
    with pytest.raises(MemtradeError, match=said):
        Partitioner(network(5)).by_time(stages, DEVICE)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["layer33"], "'layer33' is no op .*did you mean layer3"),
        (["layer3/read"], "'layer3/read' is no op .* computes from the batch"),
        (["layer2", "layer2"], "'layer2' is given twice"),
        (["loss"], "'loss' is the last op"),
    ],
)
def test_boundaries_that_are_none(given: list[str], said: str):
    with pytest.raises(MemtradeError, match=said):
        Partitioner(network(5)).cut_at(given, DEVICE)


def test_a_negative_slack_is_refused():
    with pytest.raises(MemtradeError, match=r"at least 0, not -0\.1"):
        Partitioner(network(5)).by_memory(2, slack=-0.1)


def test_nested_layers_stay_whole_from_a_depth_on(small_gpt2: StepGraph):
    blocks = Partitioner(small_gpt2, depth=1)
    # Behind the embedding and each of four blocks, behind the head, and the loss.
    scopes = [name.split("/")[0] for name in names(small_gpt2, blocks.places)]
    assert [s for s in scopes if "block" in s or s in ("embedding", "head")] == [
        "embedding", "block1", "block2", "block3", "block4", "head"
    ]  # fmt: skip
    layers = Partitioner(small_gpt2, depth=2)
    assert set(blocks.places) < set(layers.places)
    made = layers.by_time(3, DEVICE)
    assert any(name.startswith("block") and "mlp" in name for name in made.boundaries)
    ends = {name.split("/")[0] for name in blocks.by_time(3, DEVICE).boundaries}
    assert len(ends) == 2
    with pytest.raises(MemtradeError, match="can be cut into 1 to"):
        blocks.by_time(len(layers.places), DEVICE)
