from memtrade.costs import op_cost
from memtrade.pipeline.design.anchors import Anchors
from tests.graphs import target
from tests.pipeline.graphs import names, network


def anchored(graph) -> dict[str, str]:
    anchors = Anchors(graph)
    return {
        op.name: graph.ops[place].name
        for op, place in zip(graph.ops, anchors.at, strict=True)
        if place is not None
    }


def test_the_line_is_what_computes_from_the_batch():
    graph = network(3)
    assert names(graph, Anchors(graph).line) == ["layer1", "layer2", "layer3", "loss"]


def test_weights_gradients_and_updates_follow_their_layer():
    at = anchored(network(3))
    for i in (1, 2, 3):
        assert at[f"weight{i}"] == at[f"layer{i}/read"] == f"layer{i}"
        assert at[f"weight_grad{i}"] == at[f"update{i}"] == f"layer{i}"
    assert at["grad3_2"] == "layer3"
    assert at["grad2_1"] == "layer2"


def test_a_shared_weight_lives_with_its_first_reader():
    at = anchored(network(4, shared={4: 1}))
    assert at["weight1"] == at["layer4/read"] == at["update4"] == "layer1"


def test_a_sum_of_gradients_stays_where_the_last_of_them_came_from():
    at = anchored(network(5, skips={5: 2}))
    assert at["grad5_2"] == "layer5"
    assert at["sum2"] == "layer3"  # gradients came from layers 3 and 5; layer 3's came last


def test_gradients_of_a_real_model_are_anchored_where_tensorflow_says(small_gpt2):
    """TensorFlow names a gradient op after the op whose gradient it is. Few may be elsewhere, and
    those nearby: what counts is the time that a cut between the two would misplace."""
    anchors, device = Anchors(small_gpt2), target("p40").device
    position = {op_id: i for i, op_id in enumerate(anchors.line)}
    by_name = {small_gpt2.ops[op_id].name: op_id for op_id in anchors.line}
    total = off = 0.0
    distances = []
    for op in small_gpt2.ops:
        own, _, rest = op.name.removeprefix("gradients/").partition("_grad/")
        place = anchors.at[op.id]
        if op.id not in small_gpt2.backward or not rest or own not in by_name or place is None:
            continue
        seconds = device.seconds(op_cost(op, small_gpt2))
        total += seconds
        distance = abs(position[place] - position[by_name[own]])
        distances.append(distance)
        if distance > 8:
            off += seconds
    assert len(distances) > 300
    assert sorted(distances)[len(distances) // 2] == 0
    assert off <= 0.01 * total
