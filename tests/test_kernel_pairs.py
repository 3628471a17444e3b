"""A bias gradient moves behind its filter gradient, and what reads it behind both; a convolution
runs right before its BiasAdd; a pool runs again beside its gradient."""

from memtrade.graph import StepGraph
from memtrade.kernel_pairs import as_kernels, bias_gradients, biases, side_by_side
from memtrade.plan import Action, ActionKind
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


def pooling() -> StepGraph:
    """x ─► pool ─► loss, whose gradient is read by the pool's gradient and, with y, by another."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[64])
    (y,) = b.op("pool", "MaxPool", [x], sizes=[16])
    (loss,) = b.op("loss", "Sum", [y], sizes=[4])
    (g,) = b.op("filter", "Mul", [loss, y], sizes=[16])
    (made,) = b.op("pool gradient", "MaxPoolGrad", [x, y, g], sizes=[64])
    b.op("update", "AssignSubVariableOp", [made], stateful=True)
    return b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=[len(b.ops) - 1])


def pooled_words(*words: str, leaves: bool = True) -> list[str]:
    graph = pooling()
    (y,) = graph.find(["pool"])
    ids = {op.name: op.id for op in graph.ops}
    kinds = {"out": Action("swap_out", y), "wait": Action("wait", y), "in": Action("swap_in", y)}
    program = [kinds.get(word) or Action("run", ids[word]) for word in words]
    told = {action: word for word, action in kinds.items()}
    made = as_kernels(graph, program, {y} if leaves else ())
    names = {Action("run", op.id): op.name for op in graph.ops}
    names |= {Action("recompute", op.id): f"again {op.name}" for op in graph.ops}
    return [(told | names)[action] for action in made]


LEFT = ("x", "pool", "loss", "out", "wait", "in", "filter", "pool gradient", "update")


def test_a_pool_whose_output_left_runs_again_before_its_gradient():
    again = ["wait", "in", "filter", "again pool", "pool gradient", "update"]
    assert pooled_words(*LEFT)[4:] == again
    assert pooled_words(*LEFT, leaves=False) == [*LEFT]  # it has no workspace


def test_a_copy_that_only_the_pools_gradient_would_read_is_not_made():
    words = ("x", "pool", "loss", "filter", "out", "wait", "in", "pool gradient", "update")
    assert pooled_words(*words)[3:] == ["filter", "again pool", "pool gradient", "update"]


def test_a_pool_that_the_plan_makes_again_is_not_made_twice():
    graph = pooling()
    ids = {op.name: op.id for op in graph.ops}
    program = [Action("run", ids[name]) for name in ("x", "pool", "loss", "filter")]
    program += [Action("recompute", ids["pool"]), Action("run", ids["pool gradient"])]
    assert as_kernels(graph, program, set(graph.find(["pool"]))) == tuple(program)


def biased(*, awaited: bool = False, twice: bool = False) -> StepGraph:
    """conv ─ bias ─ relu, then relu's gradient.

    `awaited`: another op waits for the convolution. `twice`: another one reads it.
    """
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[64])
    (conv,) = b.op("conv", "Conv2D", [x, x], sizes=[64])
    (read,) = b.op("read", "ReadVariableOp", sizes=[4], controls=[1] if awaited else ())
    (bias,) = b.op("bias", "BiasAdd", [conv, read], sizes=[64])
    (relu,) = b.op("relu", "Relu", [conv if twice else bias], sizes=[64])
    (loss,) = b.op("loss", "Sum", [relu], sizes=[4])
    (gradient,) = b.op("gradient", "ReluGrad", [relu, bias], sizes=[64])
    return b.build(inputs=[x], outputs=[loss, gradient], loss=loss)


def kernels(graph: StepGraph, *words: str) -> list[str]:
    """What becomes of actions "op", "again op", "out op" and "in op", in the same words."""
    ids = {op.name: op.id for op in graph.ops}
    kinds: dict[str, ActionKind] = {
        "": "run",
        "again": "recompute",
        "out": "swap_out",
        "in": "swap_in",
    }
    actions = []
    for word in words:
        *how, name = word.split()
        kind, op = kinds[" ".join(how)], graph.ops[ids[name]]
        actions.append(Action(kind, op.outputs[0] if kind.startswith("swap") else op.id))
    names = {kind: word for word, kind in kinds.items()}
    made = as_kernels(graph, actions, frozenset())
    return [f"{names[each.kind]} {graph.ops[each.id].name}".strip() for each in made]


def test_a_convolution_runs_right_before_its_bias():
    made = kernels(biased(), "x", "conv", "read", "bias", "relu", "loss", "gradient")
    assert made == ["x", "read", "conv", "bias", "relu", "loss", "gradient"]


def test_what_stays_of_a_convolution_stays_with_its_bias():
    before = ("x", "conv", "read", "bias", "relu", "loss")
    begun = ["x", "read", "conv", "bias", "relu", "loss"]
    assert kernels(biased(), *before, "again bias", "gradient") == [*begun, "gradient"]
    again = ("again conv", "again bias", "gradient")
    assert kernels(biased(), *before, *again) == [*begun, *again]


def test_what_leaves_of_a_convolution_leaves_with_its_bias():
    words = ("x", "conv", "out conv", "read", "bias", "relu", "loss", "in conv", "again bias")
    made = ["x", "read", "conv", "bias", "out bias", "relu", "loss", "in bias", "gradient"]
    assert kernels(biased(), *words, "gradient") == made


def test_convolutions_that_others_look_at_are_left_alone():
    assert [len(biases(each)) for each in (biased(), biased(awaited=True), biased(twice=True))] == [
        1, 0, 0,
    ]  # fmt: skip
