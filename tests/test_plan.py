from collections.abc import Sequence

import msgspec
import pytest

from memtrade.errors import InvalidPlanError
from memtrade.graph import StepGraph
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


def broken(how: str, plan: Plan, graph: StepGraph) -> Sequence[Action]:
    """The plan's actions with one mistake."""
    actions, last = plan.actions, plan.actions[-1]
    update = next(op for op in graph.ops if op.stateful)
    return {
        "never swaps out": [action for action in actions if action.kind != "swap_out"],
        "does nothing": [],
        "forgets the last": actions[:-1],
        "goes backwards": actions[::-1],
        "runs one twice": [*actions, last],
        "repeats an update": [*actions, Action("recompute", update.id)],
        "reserves nothing": [Action("reserve", 0), *actions],
        "reserves less": [Action("reserve", -4096), *actions],
        "waits for what stays": [*actions, Action("wait", graph.find(["layer3"])[0])],
    }[how]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("never swaps out", "never swapped it out"),
        ("does nothing", "says swap layer1:0, but has no actions: plan anew"),
        ("forgets the last", "never runs {last}"),
        ("goes backwards", "before its input"),
        ("runs one twice", "twice"),
        ("repeats an update", "stateful"),
        ("reserves nothing", "reserves 0 bytes"),
        ("reserves less", "reserves -4096 bytes"),
        ("waits for what stays", r"waits for .* never swapped it out"),
    ],
)
def test_a_mistake_is_named(plan, graph, how, why):
    last = graph.ops[plan.actions[-1].id].name
    with pytest.raises(InvalidPlanError, match=why.format(last=last)):
        check_plan(replaced(plan, broken(how, plan, graph)), graph)


def test_a_plan_that_keeps_all_has_nothing_to_do(plan, graph):
    keeps = tuple(Fate(fate.tensor, "keep") for fate in plan.fates)
    check_plan(msgspec.structs.replace(plan, fates=keeps, actions=()), graph)


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
