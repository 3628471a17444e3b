"""Lists of a step as it came: copies of elements, and the zeros that gradients begin with."""

from __future__ import annotations

import msgspec

from memtrade.graph import StepGraph
from memtrade.plan import Action
from memtrade.simulate.bfc import MIB
from memtrade.simulate.lists import with_lists
from memtrade.simulate.memory import Simulator
from tests.graphs import ARENA, Builder

TIMES = 4


def looped(*, gradient_adds: bool = True) -> StepGraph:
    """Each row's sine, in a loop, and its gradient in another, which stacks them."""
    b = Builder()
    (given,) = b.op("given", "Placeholder", sizes=[TIMES * MIB])
    (x,) = b.op("x", "Neg", [given], sizes=[TIMES * MIB])
    (zero,) = b.op("zero", "Const", sizes=[4])
    (one,) = b.op("one", "Const", sizes=[4])
    rows = [
        b.op(f"x/row{i}", "StridedSlice", [x, one, one, one], sizes=[MIB])[0] for i in range(TIMES)
    ]
    sines = [b.op(f"l/{i}/body/s", "Sin", [rows[i]], sizes=[MIB])[0] for i in range(TIMES)]
    (loss,) = b.op("loss", "AddN", sines, sizes=[4])
    made = []
    for i in range(TIMES):
        (d,) = b.op(f"g/{i}/body/d", "SinGrad", [sines[-1 - i], loss], sizes=[MIB])
        if gradient_adds:
            (d,) = b.op(f"g/{i}/body/AddN/{TIMES - 1 - i}", "AddV2", [zero, d], sizes=[MIB])
        made.append(d)
    (dx,) = b.op("dx", "Pack", made, sizes=[TIMES * MIB])
    for t, shape in ((zero, ()), (x, (TIMES, MIB // 4)), (dx, (TIMES, MIB // 4))):
        b.tensors[t] = msgspec.structs.replace(b.tensors[t], shape=shape)
    return b.build(inputs=[given], outputs=[loss, dx], loss=loss)


def in_use(graph: StepGraph, plan: tuple[Action, ...] = ()) -> dict[str, int]:
    """MiB while each op runs, beside what always lies there: in the order in which they run."""
    simulator = Simulator(graph, ARENA)
    actions = simulator.actions(plan)
    used = [round((each - simulator.laid_bytes) / MIB) for each in simulator.live_bytes(plan)]
    return {graph.ops[each.id].name: use for each, use in zip(actions, used, strict=True)}


def of(used: dict[str, int], ops: str) -> list[int]:
    return [use for name, use in used.items() if ops in name]


def test_a_list_holds_copies_of_its_elements_until_the_loop_is_done() -> None:
    used = in_use(looped(gradient_adds=False))
    assert of(used, "x/row")[0] == 2 * TIMES  # x, which goes then, and all copies
    assert of(used, "l/") == [TIMES + 1, TIMES + 2, TIMES + 3, TIMES + 4]
    assert used["loss"] == TIMES
    assert of(used, "g/") == [TIMES + 1] * TIMES  # a gradient in the place of a sine
    assert used["dx"] == 2 * TIMES


def test_zeros_for_all_elements_are_made_once_the_loop_is_done_and_go_with_their_sums() -> None:
    used = in_use(looped())
    assert used["loss"] == 2 * TIMES  # sines and zeros
    gradient, total = of(used, "body/d"), of(used, "AddN")
    assert gradient[0] == 2 * TIMES + 1
    assert total[0] == 2 * TIMES + 1  # the sum, the gradient and zeros, in the place of a sine
    assert total[-1] == TIMES + 2
    assert used["dx"] == 2 * TIMES


def test_a_plan_has_neither() -> None:
    graph = looped()
    used = in_use(graph, tuple(Action("run", op.id) for op in graph.ops))
    assert of(used, "l/") == [TIMES] * TIMES
    assert used["loss"] == TIMES


def test_what_is_not_in_a_loop_is_left_as_it_is() -> None:
    graph = looped()
    ops = tuple(
        msgspec.structs.replace(op, name=op.name.replace("body", "part").replace("row", "part"))
        for op in graph.ops
    )
    graph = StepGraph(msgspec.structs.replace(graph.data, ops=ops))
    simulator = Simulator(graph, ARENA)
    actions = simulator.actions(())
    program = simulator.link(actions)
    assert with_lists(program, actions, graph) is program
