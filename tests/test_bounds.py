"""What predictions say of themselves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from memtrade.bounds import bound_of
from memtrade.graph import BOUND, WATCHED, StepGraph
from memtrade.plan import Plan
from memtrade.simulate.predict import Predictor
from memtrade.target import profile_target
from tests.graphs import PINNED, Builder

SIZE = 4096


def made(name: str = "loss", kind: str = "Sum", *, size: int = SIZE, **attrs: Any) -> StepGraph:
    """One op, whose output's size is bounded from above."""
    b = Builder()
    handle = b.op("variable", "VarHandleOp", sizes=[8])
    (loss,) = b.op(name, kind, handle, sizes=[size])
    b.ops[1] = msgspec.structs.replace(b.ops[1], attrs=attrs)
    graph = b.build(inputs=[], outputs=[loss], loss=loss)
    return StepGraph(msgspec.structs.replace(graph.data, sized={loss: BOUND}))


def known(graph: StepGraph, **changes: Any) -> StepGraph:
    return StepGraph(msgspec.structs.replace(graph.data, **changes))


@pytest.mark.parametrize(
    ("graph", "bound"),
    [
        (known(made(), sized={}), ""),
        (made(), "≤"),
        (made(size=0), ""),  # a batch norm's third reserved space
        (known(made(), sized={0: WATCHED}), "≈"),
        (known(made(), unsized=("loss:0",)), "≥"),
        (known(made(kind="IteratorGetNext"), sized={}), "≈"),
        (made(kind="If", relief=((SIZE, -1),)), "≈"),
        (known(made(kind="If", relief=((SIZE, -1),)), sized={}), ""),  # it updates variables
        (known(made(kind="If", touched=((0, "AssignVariableOp"),)), sized={}), "≈"),
        (known(made(kind="If", touched=((0, "ResourceApplyAdam"),)), sized={}), ""),
        (known(made(kind="If", scratch_bytes=SIZE), sized={}), "≈"),
        (made(kind="While", scratch_bytes=SIZE), "≈"),
        (made(kind="While", scratch_bytes=SIZE // 8), "≤"),
    ],
)
def test_how_exact_a_prediction_is(graph: StepGraph, bound: str) -> None:
    assert bound_of(graph, PINNED) == bound


@pytest.mark.parametrize(("source", "bound"), [("Const", "≈"), ("Placeholder", "")])
def test_kernels_keep_filters_that_are_constants_wherever_there_is_room(source: str, bound: str):
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[SIZE])
    (filters,) = b.op("filters", source, sizes=[SIZE])
    (y,) = b.op("y", "DepthwiseConv2dNative", [x, filters], sizes=[SIZE])
    assert bound_of(b.build(inputs=[x], outputs=[y], loss=y), PINNED) == bound


@pytest.mark.parametrize(("size", "bound"), [(SIZE, "≈"), (SIZE // 8, "≤")])
def test_elements_of_a_list_lie_apart(size: int, bound: str) -> None:
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[SIZE])
    (held,) = b.op("held", "TensorListFromTensor", [x], sizes=[size])
    b.tensors[held] = msgspec.structs.replace(b.tensors[held], dtype="variant", shape=())
    (y,) = b.op("y", "TensorListStack", [held], sizes=[SIZE])
    graph = b.build(inputs=[x], outputs=[y], loss=y)
    assert bound_of(known(graph, sized={held: BOUND}), PINNED) == bound


def test_where_variables_lie_elsewhere_after_each_step_so_does_what_is_free() -> None:
    assert bound_of(known(made(), sized={}), PINNED, moves=True) == "≈"


def test_what_is_set_aside_another_plan_need_not_take() -> None:
    graph, target = known(made(), sized={}), profile_target("arena")
    bounds = [
        Predictor(graph, target.replace(margin_bytes=aside)).predict(PINNED).bound
        for aside in (0, 1_000_000)
    ]
    assert bounds == ["", "≤"]


@pytest.mark.parametrize(
    "plan",
    [
        None,
        msgspec.structs.replace(PINNED, actions=()),
        msgspec.structs.replace(PINNED, order="dataflow"),
    ],
)
def test_tensorflows_own_order_differs_from_one_process_to_the_next(plan: Plan | None) -> None:
    exact, unsized = known(made(), sized={}), known(made(), unsized=("loss:0",))
    assert (bound_of(exact, plan), bound_of(unsized, plan)) == ("≈", "≥")
