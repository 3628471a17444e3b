"""What was tried about InceptionV4: long filters, and copies with channels first."""

from typing import Any

from memtrade.costs import op_cost
from memtrade.graph import Op, StepGraph
from memtrade.papers.thesis_inception import WithCopies, is_long
from memtrade.papers.thesis_trace import trace_step
from memtrade.target import profile_target


def convolutions(graph: StepGraph) -> list[Op]:
    return [op for op in graph.ops if op.type == "Conv2D"]


def test_long_filters_are_inceptions_alone():
    resnet: Any = trace_step(18, 2, image_size=32)
    assert convolutions(resnet)
    assert not any(is_long(op, resnet) for op in resnet.ops)


def test_copies_are_made_where_channels_are_last():
    facts = profile_target("gtx-1070").facts
    for data_format, copies in (("NHWC", True), ("NCHW", False)):
        graph = trace_step(18, 2, image_size=32, data_format=data_format)
        op = convolutions(graph)[0]
        more = WithCopies(facts).of(op, graph).requests[len(facts.of(op, graph).requests) :]
        assert [each.size_bytes for each in more] == [
            op_cost(op, graph).transposed_bytes // 2
        ] * copies
