"""What was tried about InceptionV4: long filters, and copies with channels first."""

from functools import cache

from memtrade.costs import op_cost
from memtrade.graph import Op, StepGraph
from memtrade.papers.thesis_inception import WithCopies, is_long
from memtrade.papers.thesis_trace import trace_step
from memtrade.target import profile_target
from tests.tf.small_models import shallow


@cache
def resnet(data_format: str) -> StepGraph:
    """With one block of each width: more of them are no other convolutions."""
    with shallow():
        return trace_step(18, 2, image_size=32, data_format=data_format)


def convolutions(graph: StepGraph) -> list[Op]:
    return [op for op in graph.ops if op.type == "Conv2D"]


def test_long_filters_are_inceptions_alone():
    graph = resnet("NCHW")
    assert convolutions(graph)
    assert not any(is_long(op, graph) for op in graph.ops)


def test_copies_are_made_where_channels_are_last():
    facts = profile_target("gtx-1070").facts
    for data_format, copies in (("NHWC", True), ("NCHW", False)):
        graph = resnet(data_format)
        op = convolutions(graph)[0]
        more = WithCopies(facts).of(op, graph).requests[len(facts.of(op, graph).requests) :]
        assert [each.size_bytes for each in more] == [
            op_cost(op, graph).transposed_bytes // 2
        ] * copies
