import msgspec
import pytest

from memtrade.errors import InvalidPlanError
from memtrade.plan import Action, Fate, Plan, check_plan, load_plan
from memtrade.schedule import lower
from tests.graphs import chain


@pytest.fixture
def graph():
    return chain(3)


@pytest.fixture
def plan(graph):
    t, u = graph.find(["layer1", "layer2"])
    actions = lower(graph, {t: "swap", u: "recompute"})
    fates = (Fate(t, "swap", "large"), Fate(u, "recompute", "cheap"))
    return Plan("ome", {"count": 1}, graph.fingerprint, "pinned", fates, actions)


def replaced(plan, actions) -> Plan:
    return msgspec.structs.replace(plan, actions=tuple(actions))


def test_a_plan_survives_the_file(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


def test_an_unreadable_plan_says_why(tmp_path):
    for text in (b'{"strategy": 3}', b'{"strategy": "\xff"}'):
        (tmp_path / "plan.json").write_bytes(text)
        with pytest.raises(InvalidPlanError, match="cannot read a plan"):
            load_plan(tmp_path / "plan.json")
    with pytest.raises(InvalidPlanError, match="cannot read a plan"):
        load_plan(tmp_path / "absent.json")


def test_a_sound_plan_passes(plan, graph):
    check_plan(plan, graph)


def test_a_plan_of_another_graph_is_refused(plan):
    with pytest.raises(InvalidPlanError, match="another graph"):
        check_plan(plan, chain(4))


def without(plan, kind) -> Plan:
    return replaced(plan, [action for action in plan.actions if action.kind != kind])


def test_what_was_never_swapped_out_cannot_come_in(plan, graph):
    with pytest.raises(InvalidPlanError, match="never swapped it out"):
        check_plan(without(plan, "swap_out"), graph)


def test_what_is_decided_is_done(plan, graph):
    with pytest.raises(InvalidPlanError, match="says swap layer1:0, but has no actions: plan anew"):
        check_plan(replaced(plan, []), graph)
    keeps = tuple(Fate(fate.tensor, "keep") for fate in plan.fates)
    check_plan(msgspec.structs.replace(plan, fates=keeps, actions=()), graph)


def test_a_forgotten_op_is_named(plan, graph):
    last = plan.actions[-1]
    with pytest.raises(InvalidPlanError, match=f"never runs {graph.ops[last.id].name}"):
        check_plan(replaced(plan, plan.actions[:-1]), graph)


def test_an_op_before_its_input_is_named(plan, graph):
    with pytest.raises(InvalidPlanError, match="before its input"):
        check_plan(replaced(plan, reversed(plan.actions)), graph)


def test_an_op_runs_once(plan, graph):
    with pytest.raises(InvalidPlanError, match="twice"):
        check_plan(replaced(plan, [*plan.actions, plan.actions[-1]]), graph)


def test_nothing_stateful_is_recomputed(plan, graph):
    update = next(op for op in graph.ops if op.stateful)
    with pytest.raises(InvalidPlanError, match="stateful"):
        check_plan(replaced(plan, [*plan.actions, Action("recompute", update.id)]), graph)


@pytest.mark.parametrize("kind", ["run", "recompute", "swap_out", "wait", "swap_in"])
@pytest.mark.parametrize("far", [-1, -3, 10_000])
def test_an_id_that_the_graph_does_not_have_is_refused(plan, graph, kind, far):
    with pytest.raises(
        InvalidPlanError, match=rf"says {kind} {far}, but the graph's \w+s are 0 to"
    ):
        check_plan(replaced(plan, [*plan.actions, Action(kind, far)]), graph)


def test_a_decision_on_a_tensor_that_is_not_there_is_refused(plan, graph):
    with pytest.raises(InvalidPlanError, match="says keep -1, but the graph's tensors are 0 to"):
        check_plan(msgspec.structs.replace(plan, fates=(Fate(-1, "keep"),)), graph)


@pytest.mark.parametrize("size_bytes", [0, -4096])
def test_a_reservation_is_of_something(plan, graph, size_bytes):
    with pytest.raises(InvalidPlanError, match=f"reserves {size_bytes} bytes"):
        check_plan(replaced(plan, [Action("reserve", size_bytes), *plan.actions]), graph)


def test_waiting_for_what_stays_is_refused(plan, graph):
    made = replaced(plan, [*plan.actions, Action("wait", graph.find(["layer3"])[0])])
    with pytest.raises(InvalidPlanError, match=r"waits for .* never swapped it out"):
        check_plan(made, graph)
