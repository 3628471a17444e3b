import pytest

from memtrade.plan import Decision, check_plan
from memtrade.simulate.overlap import overlap
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.baselines import greedy
from memtrade.strategies.budget import peak_of
from tests.graphs import ARENA, Builder, chain, target

MIB = 1 << 20


def plan(graph, on=ARENA, **options):
    made = greedy.plan(graph, greedy.Options(**options), on)
    check_plan(made, graph)
    return made


def label(graph, fates) -> list[str]:
    return [graph.label(fate.tensor) for fate in fates]


def test_hidden_swaps_come_first_and_by_free_time():
    """In a chain, an early layer's output is free for longest."""
    graph = chain(40, size=8 * MIB)
    times = TimeSimulator(graph, target("gtx-1070"))
    chosen = greedy.choose(graph, times)
    hidden = [fate for fate in chosen if fate.reason.startswith("hidden")]
    assert 2 <= len(hidden) < len(chosen)
    assert chosen[: len(hidden)] == hidden
    assert label(graph, hidden) == [f"layer{i}:0" for i in range(1, len(hidden) + 1)]
    spare = [float(fate.reason.split()[1]) for fate in hidden]
    assert spare == sorted(spare, reverse=True)


def test_hidden_swaps_cost_no_time():
    graph = chain(40, size=8 * MIB)
    clock = TimeSimulator(graph, target("gtx-1070"))
    one = greedy.choose(graph, clock)[:1]
    decisions: dict[int, Decision] = {fate.tensor: fate.decision for fate in one}
    actions = overlap(clock, greedy.lower(graph, decisions), 1 << 40)
    assert any(action.kind == "swap_in" for action in actions)
    # But for the host's time to start the copies' neighbours.
    assert clock.step_seconds(actions) == pytest.approx(clock.step_seconds(()), rel=1e-3)


def test_copies_block_in_the_arena_so_none_is_hidden():
    graph = chain(40, size=8 * MIB)
    chosen = greedy.choose(graph, TimeSimulator(graph, ARENA))
    assert not [fate for fate in chosen if fate.reason.startswith("hidden")]


def two_branches():
    """An expensive and a cheap tensor of one size; the cheap one is made from a small source."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (source,) = b.op("source", "Sin", [x], sizes=[MIB])
    (cheap,) = b.op("cheap", "Relu", [source], sizes=[8 * MIB])
    (large,) = b.op("large", "Sin", [source], sizes=[64 * MIB])
    (dear,) = b.op("dear", "Sin", [large], sizes=[8 * MIB])
    (loss,) = b.op("loss", "Sum", [cheap, dear], sizes=[4])
    (g,) = b.op("seed", "Fill", [loss], sizes=[8 * MIB])
    (g1,) = b.op("grad_dear", "MatMul", [g, dear], sizes=[8 * MIB])
    (g2,) = b.op("grad_cheap", "MatMul", [g1, cheap], sizes=[8 * MIB])
    (g3,) = b.op("grad_source", "MatMul", [g2, source], sizes=[MIB])
    b.op("update", "AssignAddVariableOp", [g3], stateful=True)
    return b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=[len(b.ops) - 1])


def test_the_rest_goes_by_memory_saved_per_second():
    graph = two_branches()
    chosen = greedy.choose(graph, TimeSimulator(graph, ARENA))
    order = label(graph, chosen)
    assert order.index("cheap:0") < order.index("dear:0")
    decisions = dict(zip(order, (fate.decision for fate in chosen), strict=True))
    assert decisions["cheap:0"] == "recompute"
    # To recompute it takes the 64 MiB in between; its own copies are cheaper.
    assert decisions["dear:0"] == "swap"


def test_a_dropped_source_makes_what_is_made_from_it_dearer():
    graph = chain(12)
    times = TimeSimulator(graph, ARENA)
    sources = greedy._Sources(graph, times)
    layers = [t for t in graph.activations if graph.label(t).startswith("layer")]
    fourth, fifth, sixth = layers[3:6]
    alone = {t: sources.seconds(t) for t in layers}
    assert fifth in sources.sources[sixth]
    changed = sources.drop(fifth)
    assert set(changed) >= {fourth, sixth}
    # The sixth now needs two ops; the fourth is the source of one more that is recomputed.
    assert sources.seconds(sixth) == pytest.approx(2 * alone[sixth])
    assert sources.seconds(fourth) == pytest.approx(2 * alone[fourth])
    untouched = layers[8]
    assert untouched not in changed
    assert sources.seconds(untouched) == alone[untouched]


def test_on_a_device_with_its_own_copy_channels_the_host_waits_where_memory_is_short():
    graph = chain(40, size=8 * MIB)
    clock = TimeSimulator(graph, target("gtx-1070"))
    budget = peak_of(clock, ()).peak_bytes * 6 // 10
    made = plan(graph, clock.target, budget=f"{budget}B")
    kinds = {action.kind for action in made.actions}
    assert {"swap_out", "swap_in", "wait"} <= kinds
    memory = clock.timeline(made, limit_bytes=1 << 42).memory
    assert memory is not None
    assert memory.peak_bytes <= budget
    without = tuple(action for action in made.actions if action.kind != "wait")
    ahead = clock.timeline(without, limit_bytes=1 << 42).memory
    assert ahead is not None
    assert ahead.peak_bytes > budget
