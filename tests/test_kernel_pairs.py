"""A bias gradient moves behind its filter gradient, and what reads it behind both."""

from memtrade.graph import StepGraph
from memtrade.kernel_pairs import bias_gradients, side_by_side
from memtrade.plan import Action
from tests.graphs import Builder


def step(*, controls=(), waits: bool = False) -> StepGraph:
    """g goes to a bias gradient and its update, then to a filter gradient and its update.

    `waits`: the filter gradient waits for the bias's update.
    """
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[64])
    (loss,) = b.op("loss", "Sum", [x], sizes=[4])
    (g,) = b.op("g", "Mul", [loss, x], sizes=[64])
    (bias,) = b.op("bias", "BiasAddGrad", [g], sizes=[16], controls=controls)
    b.op("update bias", "AssignSubVariableOp", [bias], stateful=True)
    after = [len(b.ops) - 1]
    (filter_,) = b.op(
        "filter", "Conv2DBackpropFilter", [x, loss, g], sizes=[64], controls=after if waits else ()
    )
    b.op("update filter", "AssignSubVariableOp", [filter_], stateful=True)
    return b.build(
        inputs=[x], outputs=[loss], loss=loss, control_outputs=[after[0], len(b.ops) - 1]
    )


def moved(graph: StepGraph, *names: str) -> list[str]:
    """The names of the ops in the new order, if they run in the order of `names`."""
    ids = {op.name: op.id for op in graph.ops}
    actions = side_by_side(graph, [Action("run", ids[name]) for name in names])
    return [graph.ops[action.id].name for action in actions]


def test_the_bias_gradient_and_its_update_wait_for_the_filter_gradient():
    order = moved(step(), "x", "loss", "g", "bias", "update bias", "filter", "update filter")
    assert order == ["x", "loss", "g", "filter", "bias", "update bias", "update filter"]


def test_a_late_bias_gradient_comes_earlier():
    order = moved(step(), "x", "loss", "g", "filter", "update filter", "bias", "update bias")
    assert order == ["x", "loss", "g", "filter", "bias", "update filter", "update bias"]


def test_pairs_read_the_same_gradient_and_wait_for_the_same():
    graph = step()
    names = {op.id: op.name for op in graph.ops}
    assert [(names[a], names[b]) for a, b in bias_gradients(graph).items()] == [("filter", "bias")]
    assert bias_gradients(step(controls=[0])) == {}


def test_what_the_filter_gradient_waits_for_stays_before_it():
    graph = step(waits=True)
    # Their controls differ, so they are no pair to begin with.
    names = ["x", "loss", "g", "bias", "update bias", "filter", "update filter"]
    assert moved(graph, *names) == names


def test_recomputations_and_swaps_keep_their_places():
    graph = step()
    ids = {op.name: op.id for op in graph.ops}
    g = graph.find(["g"])[0]
    program = [
        Action("run", ids["x"]),
        Action("run", ids["loss"]),
        Action("run", ids["g"]),
        Action("run", ids["bias"]),
        Action("reserve", 4096),
        Action("swap_out", g),
        Action("swap_in", g),
        Action("recompute", ids["loss"]),
        Action("run", ids["filter"]),
        Action("run", ids["update filter"]),
        Action("run", ids["update bias"]),
    ]
    assert side_by_side(graph, program) == (
        *program[:3],
        *program[4:9],
        Action("run", ids["bias"]),
        *program[9:],
    )
