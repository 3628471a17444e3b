from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtrade.order import base_order
from memtrade.plan import Action, Decision, Plan, check_plan
from memtrade.schedule import Lowering, lower
from tests.graphs import Builder, chain
from tests.test_graph import late_step


def program(graph, actions) -> list[str]:
    """The actions in words: "run layer1", "swap_in layer1"."""
    words = []
    for action in actions:
        is_op = action.kind in ("run", "recompute")
        op = action.id if is_op else graph.tensors[action.id].op
        words.append(f"{action.kind} {graph.ops[op].name}")
    return words


def tensors(graph, *layers: str) -> list[int]:
    return graph.find(layers)


def test_base_order_runs_updates_as_soon_as_they_can():
    graph = chain(3)
    order = [graph.ops[op_id].name for op_id in base_order(graph)]
    assert order.index("update3") == order.index("grad3") + 1


@pytest.mark.parametrize("width", [1 << 17, 1 << 22])
def test_a_running_sum_takes_each_part_as_it_comes(width):
    """As in a loop over time: what each iteration adds to a weight's gradient is no larger, or is
    much larger, than what it is made of."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[1 << 17])
    (state,), times = [x], 5
    states = []
    for i in range(times):
        (state,) = b.op(f"layer{i}", "Sin", [state], sizes=[1 << 17])
        states.append(state)
    (loss,) = b.op("loss", "Sum", [state], sizes=[4])
    (gradient,) = b.op("seed", "Mul", [loss, state], sizes=[1 << 17])
    total = None
    for i in reversed(range(times)):
        (part,) = b.op(f"part{i}", "MatMul", [states[i], gradient], sizes=[width])
        if total is not None:
            (part,) = b.op(f"sum{i}", "AddN", [total, part], sizes=[width])
        total = part
        (gradient,) = b.op(f"grad{i}", "SinGrad", [gradient, states[i]], sizes=[1 << 17])
    b.op("update", "AssignAddVariableOp", [total], stateful=True)
    graph = b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=[len(b.ops) - 1])
    words = program(graph, lower(graph, {}))
    made = [word for word in words if word.startswith(("run part", "run sum"))]
    rest = [f"run {what}{i}" for i in reversed(range(times - 1)) for what in ("part", "sum")]
    assert made == [f"run part{times - 1}", *rest]
    assert words.index("run part3") < words.index("run grad3")


@pytest.mark.parametrize("views", [(), ("ExpandDims",), ("Reshape", "Identity"), ("Unpack",)])
def test_an_update_waits_for_the_readers_of_its_variable(views):
    """Those of a view too, which shares the variable's buffer: a 1-D convolution's filter, rows."""
    b = Builder()
    (handle,) = b.op("w", "Placeholder", sizes=[0])
    (x,) = b.op("x", "Placeholder", sizes=[1 << 20])
    (value,) = b.op("read", "ReadVariableOp", [handle], sizes=[1 << 20], stateful=True)
    for view in views:
        (value,) = b.op(view, view, [value], sizes=[1 << 20])
        b.tensors[b.ops[-1].inputs[0]] = msgspec.structs.replace(
            b.tensors[b.ops[-1].inputs[0]], shape=(1, 1 << 18)
        )
    (y,) = b.op("y", "Mul", [x, value], sizes=[1 << 20])
    (dw,) = b.op("dw", "Mul", [y, x], sizes=[1 << 20])
    (dx,) = b.op("dx", "Mul", [y, value], sizes=[1 << 20])
    b.op("update", "ResourceApplyGradientDescent", [handle, dw], stateful=True)
    graph = b.build(inputs=[x], outputs=[dx], loss=y, control_outputs=[6 + len(views)])
    order = [graph.ops[op_id].name for op_id in base_order(graph)]
    assert order.index("update") > order.index("dx")


def test_recompute_just_before_the_reader():
    graph = chain(3)
    kept, dropped = tensors(graph, "layer1", "layer2")
    words = program(graph, lower(graph, {kept: "keep", dropped: "recompute"}))
    at = words.index("recompute layer2")
    assert words[at + 1] == "run grad3"
    assert "recompute layer1" not in words


def test_a_chain_of_clones_goes_back_to_what_is_kept():
    graph = chain(4)
    decisions: dict[int, Decision] = dict.fromkeys(
        tensors(graph, "layer1", "layer2", "layer3", "layer4"), "recompute"
    )
    words = program(graph, lower(graph, decisions))
    clones = [word for word in words if word.startswith("recompute")]
    assert clones == [f"recompute layer{i}" for i in (1, 2, 3, 4)]


def test_fleeting_clones_are_made_for_each_reader():
    graph = chain(3)
    one, two = tensors(graph, "layer1", "layer2")
    decisions: dict[int, Decision] = {one: "recompute", two: "recompute"}
    lowering = Lowering(fleeting=frozenset({one}))
    counts = Counter(program(graph, lower(graph, decisions, lowering)))
    assert counts["recompute layer1"] == 2  # for layer2's clone and for grad2
    assert counts["recompute layer2"] == 1


def test_swapped_tensors_leave_after_their_op_and_return_before_their_reader():
    graph = chain(3)
    (t,) = tensors(graph, "layer1")
    words = program(graph, lower(graph, {t: "swap"}))
    assert words[words.index("run layer1") + 1] == "swap_out layer1"
    assert words[words.index("swap_in layer1") + 1] == "run grad2"


def test_stateful_ops_are_never_cloned():
    graph = chain(3, stateful=2)
    decisions: dict[int, Decision] = dict.fromkeys(tensors(graph, "layer1", "layer2"), "recompute")
    assert "recompute layer2" not in program(graph, lower(graph, decisions))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), layers=st.integers(1, 8))
def test_every_program_can_be_carried_out(data, layers):
    """Whatever is decided, each op runs once, after its inputs, and the same input gives the
    same program."""
    stateful = data.draw(st.one_of(st.none(), st.integers(1, layers)))
    graph = chain(layers, stateful=stateful)
    choices = st.sampled_from(["keep", "recompute", "swap"])
    decisions = {t: data.draw(choices) for t in graph.activations}
    brief = frozenset(t for t in graph.activations if data.draw(st.booleans()))
    actions = lower(graph, decisions, Lowering(fleeting=brief))
    check_plan(Plan("any", {}, graph.fingerprint, "pinned", (), actions), graph)
    assert actions == lower(graph, dict(reversed(decisions.items())), Lowering(fleeting=brief))


def test_one_branch_is_walked_to_its_end_before_the_next():
    """Two branches of one gradient: the small end of the first comes before the second starts."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[1 << 20])
    (y,) = b.op("y", "Sin", [x], sizes=[1 << 22])
    (loss,) = b.op("loss", "Sum", [y], sizes=[4])
    (top,) = b.op("top", "Mul", [loss, y], sizes=[1 << 22])
    (left,) = b.op("left", "Sin", [top], sizes=[1 << 22])
    (right,) = b.op("right", "Sin", [top], sizes=[1 << 22])
    (left_end,) = b.op("left_end", "Sum", [left], sizes=[1 << 18])
    (right_end,) = b.op("right_end", "Sum", [right], sizes=[1 << 18])
    graph = b.build(inputs=[x], outputs=[loss, left_end, right_end], loss=loss)
    words = program(graph, lower(graph, {}))
    assert words.index("run left_end") < words.index("run right")


@pytest.mark.parametrize("kind", ["run", "recompute"])
def test_actions_compare_by_value(kind):
    assert Action(kind, 3) == Action(kind, 3)


def test_what_needs_no_gradient_runs_just_before_its_reader():
    """y - x could run, and bring y back, before any gradient; it waits until it is needed."""
    graph = late_step()
    (y,) = tensors(graph, "y")
    words = program(graph, lower(graph, {y: "recompute"}))
    at = words.index("run late")
    assert words[at - 1 : at + 1] == ["recompute y", "run late"]
    assert words.index("run gz") < at < words.index("run gy")
    assert words.index("run shape") < words.index("run gz")


def test_ops_on_demand_keep_their_control_edges():
    """The decay of a weight: what assigns it stands before the update, as its control edge says."""
    b = Builder()
    big = 1 << 20
    (handle,) = b.op("w", "Placeholder", sizes=[0])
    (x,) = b.op("x", "Placeholder", sizes=[big])
    (value,) = b.op("read", "ReadVariableOp", [handle], sizes=[big], stateful=True)
    (y,) = b.op("y", "Mul", [x, value], sizes=[big])
    (loss,) = b.op("loss", "Sum", [y], sizes=[4])
    (gy,) = b.op("gy", "Mul", [loss, y], sizes=[big])
    (half,) = b.op("half", "Neg", [value], sizes=[big])
    (less,) = b.op("less", "AddV2", [half, value], sizes=[big])
    b.op("decay", "AssignVariableOp", [handle, less], stateful=True, controls=[2])
    (dw,) = b.op("dw", "Mul", [gy, value], sizes=[big])
    b.op("update", "AssignSubVariableOp", [handle, dw], stateful=True, controls=[8])
    graph = b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=[8, 10])
    actions = lower(graph, {})
    check_plan(Plan("any", {}, graph.fingerprint, "pinned", (), actions), graph)
    words = program(graph, actions)
    decay = words.index("run decay")
    assert words[decay - 2 : decay] == ["run half", "run less"]
    assert decay < words.index("run update")
