import msgspec
import pytest

from memtrade.errors import MemtradeError, UnknownNameError, UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.models import options_of
from memtrade.plan import Decision, Fate, Order, check_plan
from memtrade.schedule import Lowering, lower
from memtrade.simulate.memory import Simulator
from memtrade.strategies import PLANNED, STRATEGIES, find_strategy, make_options
from memtrade.strategies.base import assemble, clock_of
from memtrade.strategies.saving import no_worse, that_saves
from memtrade.strategies.segments import cuts
from tests.graphs import ARENA, Builder, chain, target

MIB = 1 << 20


@pytest.fixture(scope="module")
def graph():
    return chain(16)


def plan(graph, strategy, order: Order = "pinned", device: str = "arena", **options):
    return PLANNED[strategy].plan(graph, make_options(strategy, options), target(device, order))


def peak_bytes(graph, strategy, **options) -> int:
    return Simulator(graph, ARENA).peak_live_bytes(plan(graph, strategy, **options))


@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.parametrize("order", ["pinned", "dataflow"])
def test_every_plan_can_be_carried_out_and_repeated(strategy, order):
    graph = chain(6)
    made = plan(graph, strategy, order)
    check_plan(made, graph)
    assert made == plan(chain(6), strategy, order)  # of which nothing is known yet
    assert {fate.tensor for fate in made.fates} >= set(graph.activations) - {graph.loss}


def test_options_are_documented():
    for strategy in STRATEGIES.values():
        assert all(option.doc for option in options_of(strategy.options))


def test_names_and_values_are_checked():
    with pytest.raises(UnknownNameError, match="did you mean 'ome'"):
        find_strategy("omee")
    with pytest.raises(UnknownNameError, match="did you mean 'n_tensors'"):
        make_options("lms", {"ntensors": "3"})
    with pytest.raises(MemtradeError, match="whole number"):
        make_options("lms", {"n_tensors": "many"})
    with pytest.raises(MemtradeError, match="lb must not exceed ub"):
        make_options("lms", {"lb": 5, "ub": 2})
    with pytest.raises(MemtradeError, match="go together"):
        make_options("checkpoints", {"mode": "list"})


def test_checkpoints_of_a_chain_are_about_sqrt_n(graph):
    """Chen et al. 2016: n layers of one size need about 2 sqrt(n) of memory."""
    kept = [fate for fate in plan(graph, "checkpoints").fates if fate.reason == "checkpoint"]
    assert 2 <= len(kept) <= 6
    assert peak_bytes(graph, "checkpoints") < 0.7 * peak_bytes(graph, "original")


def test_swapped_checkpoints_cost_less_than_kept_ones(graph):
    assert peak_bytes(graph, "ome", select="all") < peak_bytes(graph, "checkpoints")


def test_lms_leaves_what_one_op_needs(graph):
    assert peak_bytes(graph, "lms") <= 6 * MIB


def test_lms_swaps_as_many_as_it_is_told(graph):
    assert len(plan(graph, "lms", n_tensors=3).tensors("swap")) == 3
    assert plan(graph, "lms", n_tensors=0).tensors("swap") == []


def test_lms_includes_and_excludes(graph):
    names = {
        graph.label(t) for t in plan(graph, "lms", excl_scopes="layer3,layer4").tensors("swap")
    }
    assert names
    assert not names & {"layer3:0", "layer4:0"}
    none = plan(graph, "lms", incl_types="Conv2D")
    assert none.tensors("swap") == []
    assert none.remarks == ("incl_types names nothing that could be swapped: 'Conv2D'",)
    some = plan(graph, "lms", excl_scopes="layer3, layer33")
    assert some.remarks == ("excl_scopes names nothing that could be swapped: 'layer33'",)


def test_lms_starts_swap_ins_as_early_as_told(graph):
    def ahead(actions) -> list[int]:
        """Backward ops between each swap-in and the reader of its tensor."""
        found = []
        for i, action in enumerate(actions):
            if action.kind == "swap_in":
                readers = graph.consumers[action.id]
                ran = [a.id for a in actions[i + 1 :] if a.kind == "run"]
                found.append(next(k for k, op_id in enumerate(ran) if op_id in readers))
        return found

    near = plan(graph, "lms", "dataflow", ctrld_strategy="direct_order", lb=1).actions
    far = plan(graph, "lms", "dataflow", ctrld_strategy="direct_order", lb=4).actions
    assert set(ahead(near)[1:]) == {1}
    assert min(ahead(far)[4:]) >= 4


def test_ome_says_what_it_swaps_and_why(graph):
    made = plan(graph, "ome", select="largest", count=2)
    reasons = {fate.reason for fate in made.fates if fate.decision == "swap"}
    assert len(made.tensors("swap")) == 2
    assert reasons == {"checkpoint, one of the 2 largest"}
    assert any(fate.reason == "checkpoint, not largest" for fate in made.fates)


def test_ome_takes_another_rule_where_its_own_leaves_much():
    """In a short chain, checkpoints and one segment are most of it; what is swapped is gone."""
    short = chain(4)
    clock = clock_of(short, target("arena", "pinned"))
    found = {name: clock.needed(plan(short, name)).peak_bytes for name in ("ome", "lms")}
    assert found["ome"] <= max(0.6 * clock.original_bytes, found["lms"] / 0.85)


def test_ome_swaps_what_cannot_be_recomputed():
    graph, named = chain(16, stateful=6), "layer4,layer8"
    made = plan(graph, "ome", mode="list", tensors=named, select="all")
    swapped = {graph.label(f.tensor): f.reason for f in made.fates if f.decision == "swap"}
    assert swapped == {
        "layer4:0": "checkpoint, all are swapped",
        "layer6:0": "its op is stateful, all are swapped",
        "layer8:0": "checkpoint, all are swapped",
    }
    kept = plan(graph, "ome", mode="list", tensors=named, select="none")
    assert kept.tensors("swap") == []


def test_hidable_asks_whether_the_gap_hides_the_copies(graph, tmp_path):
    """On a device with slow copies nothing is hidden; on one with fast copies, early ones are."""
    slow = plan(graph, "ome", device="gtx-1070").tensors("swap")
    fast = plan(graph, "ome", device="arena").tensors("swap")
    assert set(slow) <= set(fast)


def test_named_checkpoints(graph):
    made = plan(graph, "checkpoints", mode="list", tensors="layer4,layer8:0")
    kept = [graph.label(f.tensor) for f in made.fates if f.reason == "checkpoint"]
    assert kept == ["layer4:0", "layer8:0"]
    with pytest.raises(UnsupportedGraphError, match="no tensor 'nothing'"):
        plan(graph, "checkpoints", mode="list", tensors="nothing")
    with pytest.raises(UnsupportedGraphError, match="names no forward tensor"):
        plan(graph, "checkpoints", mode="collection")


def test_a_short_graph_has_nothing_to_cut_and_is_left_alone():
    graph = chain(1, size=4096)
    for strategy in ("checkpoints", "ome"):
        made = plan(graph, strategy)
        check_plan(made, graph)
        left = no_worse(made, clock_of(graph, ARENA))
        check_plan(left, graph)
        assert left.actions == ()
        assert left.remarks[-1].startswith("its predicted peak of")
        assert no_worse(left, clock_of(graph, ARENA)) == left


@pytest.mark.parametrize(("unsized", "kept"), [((), True), (("op:0",), False)])
def test_a_plan_must_save_a_third_where_nothing_tells_some_sizes(unsized, kept):
    graph = chain(6)
    graph = StepGraph(msgspec.structs.replace(graph.data, unsized=unsized))
    clock = clock_of(graph, ARENA)
    made = plan(graph, "lms", n_tensors=1)
    assert 2 / 3 * clock.original_bytes < clock.needed(made).peak_bytes < clock.original_bytes
    assert bool(no_worse(made, clock).actions) == kept


@pytest.mark.parametrize(
    ("own", "other", "taken"),
    [("swap", "recompute", "other"), ("recompute", "swap", "own")],
)
def test_of_two_rules_a_little_leaner_counts_where_it_is_no_slower(graph, own, other, taken):
    """The other rule has one activation of sixteen less; copies in line cost more than kernels."""
    activations = graph.activations

    def rule(decision: Decision, count: int) -> list[Fate]:
        return [Fate(t, decision) for t in activations[1 : 1 + count]]

    rules = {"own": rule(own, 6), "other": rule(other, 7)}
    options = make_options("ome", {})
    made = that_saves(
        "ome", graph, options, ARENA, lambda: rules["own"], [lambda: rules["other"]], enough=0.1
    )
    dropped = [fate for fate in made.fates if fate.decision != "keep"]
    assert len(dropped) == len(rules[taken])


@pytest.mark.parametrize("swaps", [False, True])
def test_what_rests_at_the_peak_leaves_where_rules_leave_too_much(graph, swaps):
    options = make_options("ome", {})
    clock = clock_of(graph, ARENA)
    made = that_saves("ome", graph, options, ARENA, list, [], enough=0.6, swaps=swaps)
    check_plan(made, graph)
    assert (clock.needed(made).peak_bytes < 0.65 * clock.original_bytes) == swaps
    assert {fate.tensor for fate in made.fates} == set(made.tensors("swap"))


def test_reservations_are_placed_only_for_plans_that_may_be_taken(graph, monkeypatch):
    """They take most of the time that a plan takes; what asks for too much anyway needs none."""
    made: list[int] = []

    def counting(*arguments):
        made.append(1)
        return assemble(*arguments)

    monkeypatch.setattr("memtrade.strategies.saving.assemble", counting)
    that_saves("ome", graph, make_options("ome", {}), ARENA, list, [], enough=0.6, swaps=True)
    assert len(made) == 1  # of the rule's, another's and the spilled one


def test_without_any_place_to_cut_other_rules_save():
    """What is trained is the input (a picture, a prompt): nothing comes from a batch."""
    graph = StepGraph(msgspec.structs.replace(chain(16).data, inputs=()))
    assert cuts(graph, resident=True) == cuts(graph, resident=False, wide=True) == []
    for strategy in ("checkpoints", "ome"):
        made = plan(graph, strategy)
        check_plan(made, graph)
        assert made.tensors("recompute") or made.tensors("swap")
        assert no_worse(made, clock_of(graph, ARENA)) == made


def test_the_forward_part_may_run_in_another_order():
    """Created breadth first, eight wide tensors lie there at once; depth first, one does."""
    b, size = Builder(), 1 << 20
    [x] = b.op("x", "Placeholder", sizes=[1 << 16])
    wide = [b.op(f"wide{i}", "Tile", [x], sizes=[size])[0] for i in range(8)]
    narrow = [b.op(f"narrow{i}", "Sum", [t], sizes=[1 << 17])[0] for i, t in enumerate(wide)]
    [loss] = b.op("loss", "AddN", narrow, sizes=[1 << 17])
    [gradient] = b.op("gradient", "Mul", [loss, *narrow], sizes=[1 << 17])
    graph = b.build(inputs=[x], outputs=[loss, gradient], loss=loss)
    peaks = [
        Simulator(graph, ARENA).peak_live_bytes(lower(graph, {}, Lowering(lean_forward=lean)))
        for lean in (False, True)
    ]
    assert peaks[1] < peaks[0] / 3
