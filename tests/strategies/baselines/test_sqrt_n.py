import pytest

from memtrade.errors import UnknownNameError, UnsupportedGraphError
from memtrade.plan import check_plan
from memtrade.simulate.memory import Simulator
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies import make_options
from memtrade.strategies.baselines import sqrt_n
from tests.graphs import ARENA, Builder, chain

MIB = 1 << 20


def checkpoints(graph, **options) -> list[str]:
    made = sqrt_n.plan(graph, sqrt_n.Options(**options), ARENA)
    check_plan(made, graph)
    return [graph.label(f.tensor) for f in made.fates if f.reason == "checkpoint"]


@pytest.mark.parametrize("layers", [8, 15, 24, 35])
def test_n_equal_layers_have_about_sqrt_n_equal_segments(layers):
    places = [
        int(label.removeprefix("layer").removesuffix(":0")) for label in checkpoints(chain(layers))
    ]
    root = round((layers + 1) ** 0.5)
    assert abs(len(places) + 1 - root) <= 1
    gaps = [b - a for a, b in zip([0, *places], [*places, layers], strict=True)]
    assert max(gaps) - min(gaps) <= 2


def test_memory_grows_with_the_root_of_n():
    """Chen et al.: four times the layers, twice the memory, not four times."""

    def peak(layers: int) -> int:
        graph = chain(layers)
        return Simulator(graph, ARENA).peak_live_bytes(
            sqrt_n.plan(graph, sqrt_n.Options(), ARENA).actions
        )

    assert 1.5 < peak(144) / peak(36) < 2.5


def test_segments_are_equal_in_time_and_not_in_number():
    """The first four layers are 16 times as large as the others."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[16 << 20])
    made = [x]
    for i in range(20):
        (y,) = b.op(f"layer{i}", "Sin", [made[-1]], sizes=[(16 if i < 4 else 1) << 20])
        made.append(y)
    (loss,) = b.op("loss", "Sum", [made[-1]], sizes=[4])
    (gradient,) = b.op("seed", "Mul", [loss, made[-1]], sizes=[1 << 20])
    for i in reversed(range(20)):
        size = b.tensors[made[i]].size_bytes
        (gradient,) = b.op(f"grad{i}", "SinGrad", [gradient, made[i]], sizes=[size])
    b.op("update", "AssignAddVariableOp", [gradient], stateful=True)
    graph = b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=[len(b.ops) - 1])
    times = TimeSimulator(graph, ARENA)
    early = [f for f in sqrt_n.choose(graph, times) if f.op <= 4]
    assert len(early) >= 2


def test_a_network_with_a_long_skip_is_cut_at_wider_frontiers():
    """The first layer's output is read again by the last one: articulation points at the ends."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (first,) = b.op("layer1", "Sin", [x], sizes=[MIB])
    made = [first]
    for i in range(2, 17):
        made += b.op(f"layer{i}", "Sin", [made[-1]], sizes=[MIB])
    (joined,) = b.op("join", "Mul", [made[-1], first], sizes=[MIB])
    (loss,) = b.op("loss", "Sum", [joined], sizes=[4])
    (gradient,) = b.op("seed", "Mul", [loss, joined], sizes=[MIB])
    for t in reversed(made):
        (gradient,) = b.op(f"grad{t}", "SinGrad", [gradient, t], sizes=[MIB])
    b.op("update", "AssignAddVariableOp", [gradient], stateful=True)
    graph = b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=[len(b.ops) - 1])
    found = sqrt_n.choose(graph, TimeSimulator(graph, ARENA))
    assert len(found) >= 3
    assert all(first in f.tensors and len(f.tensors) == 2 for f in found)
    check_plan(sqrt_n.plan(graph, sqrt_n.Options(), ARENA), graph)


def test_bad_input():
    with pytest.raises(UnknownNameError, match="unknown option"):
        make_options("sqrt_n", {"device": "arena"})  # the target says what ops cost
    with pytest.raises(UnsupportedGraphError, match="no place to cut"):
        sqrt_n.plan(chain(1, size=4096), sqrt_n.Options(), ARENA)
