"""Blocks that repeat: a deep network without most of them is the shallow one, and plans as well."""

import functools
from collections import Counter

import msgspec
import pytest
import tensorflow as tf

from memtrade.graph import StepGraph
from memtrade.models import make_model
from memtrade.plan import Plan, check_plan
from memtrade.simulate.predict import Predictor
from memtrade.strategies import make_options
from memtrade.strategies.optimal import blocks, search
from memtrade.strategies.optimal.blocks import KEPT, folded
from memtrade.strategies.optimal.strategy import plan
from memtrade.target import profile_target
from memtrade.tf.build import make_step
from memtrade.tf.extract import trace
from tests.graphs import chain

ARENA = profile_target("arena")
LAYERS = 8


def gpt2(layers: int, optimizer: str = "sgd") -> StepGraph:
    return traced(layers, optimizer)


@functools.cache
def traced(layers: int, optimizer: str) -> StepGraph:
    options = {"layers": layers, "width": 64, "heads": 2, "positions": 64, "batch_size": 8}
    with tf.Graph().as_default():
        return trace(make_step(make_model("gpt2", options), optimizer=optimizer)).graph


def kinds(graph: StepGraph) -> Counter[object]:
    """What it is made of: each op's type, and what it reads and makes."""

    def sizes(tensors: tuple[int, ...]) -> tuple[object, ...]:
        return tuple(graph.tensors[t].shape for t in tensors)

    return Counter((op.type, sizes(op.inputs), sizes(op.outputs)) for op in graph.ops)


@pytest.mark.parametrize(("optimizer", "layers"), [("sgd", LAYERS), ("adam", LAYERS)])
def test_what_is_left_is_the_network_with_fewer_layers(optimizer: str, layers: int) -> None:
    """With slots of each variable, and without any."""
    deep = gpt2(layers, optimizer)
    made = folded(deep)
    assert made is not None
    left = layers - made.blocks
    assert KEPT <= left <= KEPT + 1  # the first may differ a little, as may the last
    shallow = gpt2(left, optimizer)
    assert kinds(made.graph) == kinds(shallow)
    assert [made.graph.tensors[t].shape for t in made.graph.activations] == [
        shallow.tensors[t].shape for t in shallow.activations
    ]
    assert made.graph.data.capture_bytes == shallow.data.capture_bytes


def test_each_tensor_is_one_of_its_kind() -> None:
    deep = gpt2(LAYERS)
    made = folded(deep)
    assert made is not None
    stood_for = Counter(made.of[t] for t in deep.activations)
    for t in deep.activations:
        one = made.graph.tensors[made.of[t]]
        assert (one.shape, one.dtype) == (deep.tensors[t].shape, deep.tensors[t].dtype)
        assert made.graph.ops[one.op].type == deep.ops[deep.tensors[t].op].type
    # The block before the gap stands for itself and for all that are left out.
    assert set(stood_for) == set(made.graph.activations)
    assert set(stood_for.values()) == {1, 1 + made.blocks}


def test_a_network_of_few_blocks_stays_as_it_is() -> None:
    assert folded(gpt2(KEPT)) is None
    assert folded(chain(40)) is None


def test_blocks_that_all_meet_in_one_op_stay() -> None:
    """As where gradients are clipped by the norm of all of them."""
    deep = gpt2(LAYERS)
    data = deep.data
    gradients = tuple(op.inputs[2] for op in deep.ops if op.type == "ResourceApplyGradientDescent")
    first = data.tensors[deep.loss]
    norm = msgspec.structs.replace(first, id=len(data.tensors), op=len(data.ops), index=0)
    meeting = msgspec.structs.replace(
        deep.ops[-1],
        id=norm.op,
        name="norm",
        type="AddN",
        inputs=gradients,
        controls=(),
        outputs=(norm.id,),
        node=-1,
    )
    grown = msgspec.structs.replace(
        data, ops=(*data.ops, meeting), tensors=(*data.tensors, norm), outputs=(norm.id,)
    )
    assert folded(StepGraph(grown)) is None


def leanest(monkeypatch: pytest.MonkeyPatch, *, by_blocks: bool) -> Plan:
    with monkeypatch.context() as patched:
        # As if it were too large to be searched whole, or never so; and deep enough to gain by it.
        patched.setattr(search, "PROGRAMS", search.MOST_ROWS if by_blocks else 0)
        patched.setattr(search, "WORTH", 1.0)
        return plan(gpt2(LAYERS), make_options("optimal"), ARENA)


def test_what_was_solved_once_is_as_lean_as_what_was_solved_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    solve = search.Search.run

    def noting(self: search.Search) -> object:
        sizes.append(len(self.graph.ops))
        return solve(self)

    monkeypatch.setattr(search.Search, "run", noting)
    whole = leanest(monkeypatch, by_blocks=False)
    made = leanest(monkeypatch, by_blocks=True)
    assert sizes[-1] < blocks.KEPT / LAYERS * 1.5 * sizes[0]
    check_plan(made, gpt2(LAYERS))
    predictor = Predictor(gpt2(LAYERS), ARENA)
    peaks = [predictor.predict(each).peak_bytes for each in (made, whole)]
    assert peaks[0] <= 1.01 * peaks[1]
    assert made.gap is not None
