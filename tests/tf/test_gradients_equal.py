"""Every strategy on every small model gives the original's losses and variables, to the bit.

Momentum slots and batch-norm moving averages are among the variables; two models have dropout.
And the check can fail: planted wrong plans and wrong graphs turn it red.
"""

# pyright: reportOperatorIssue=false

import dataclasses
import functools
import os

import msgspec
import pytest
import tensorflow as tf

from memtrade.comparison import Comparison, Values, by_name
from memtrade.graph import StepGraph
from memtrade.plan import Decision, Plan
from memtrade.schedule import lower
from memtrade.strategies import PLANNED, make_options
from memtrade.tf.calling import step_to_read
from memtrade.tf.extract import trace, trace_concrete
from memtrade.tf.rewrite import apply_plan, import_step, rewrite
from memtrade.tf.swap import SerializeTransfer
from memtrade.tf.verify import history
from tests import forks
from tests.graphs import ARENA, target
from tests.tf.small_models import SMALL, small_step

pytestmark = pytest.mark.usefixtures("small_models")

CASES = [
    ("original", {}),
    ("checkpoints", {}),
    ("checkpoints", {"mode": "speed"}),
    ("checkpoints", {"mode": "collection"}),
    ("lms", {}),
    ("lms", {"ctrld_strategy": "direct_order", "lb": 3, "swap_branches": True,
             "fuse_swapins": True}),
    ("ome", {}),
    ("ome", {"select": "all"}),
    ("ome", {"mode": "collection", "select": "largest", "count": 2}),
    ("optimal", {"time_limit": 3}),
    ("sqrt_n", {}),
    ("greedy", {}),
    ("rotor", {}),
    ("checkmate", {}),
]  # fmt: skip
# The larger graphs take seconds a case, most of it for their weights. They have ops of their own,
# which every action and either order meets in these; the modes are the smaller graphs' to hold.
FEWER = {
    "resnet-18-v2": [1],
    "resnet-50": [1, 7],
    "inception-v4": [7],
    "amoebanet-d": [1, 4, 7, 9],
}


@functools.cache
def traced(name: str):
    step = small_step(name)
    found = trace(step)
    return found, step.variables(), step.make_batch()


@functools.lru_cache(maxsize=1)
def original(name: str) -> tuple[Values, list[Values]]:
    """The variables as they are, and what two steps make of them: the same for all cases."""
    found, variables, batch = traced(name)
    initial = by_name([each.name for each in variables], [each.numpy() for each in variables])
    own = dict(zip(initial, variables, strict=True))
    return initial, history(found.step.function, own, initial, batch, steps=2)


def compare(name: str, rewritten) -> Comparison:
    _, variables, batch = traced(name)
    initial, expected = original(name)
    own = dict(zip(initial, variables, strict=True))
    comparison = Comparison(initial)
    for each in zip(expected, history(rewritten, own, initial, batch, steps=2), strict=True):
        comparison.add(*each)
    return comparison


def matrix():
    for name in SMALL:
        for i, (strategy, options) in enumerate(CASES):
            if i not in FEWER.get(name, range(len(CASES))):
                continue
            for order in ("pinned", "dataflow") if i in (1, 4, 6) else ("pinned",):
                words = ",".join(f"{key}={value}" for key, value in options.items())
                yield pytest.param(
                    name, strategy, options, order, id=f"{name}-{strategy}[{words}]-{order}"
                )


@pytest.mark.parametrize(("name", "strategy", "options", "order"), list(matrix()))
def test_same_losses_and_variables(name, strategy, options, order):
    found, _, _ = traced(name)
    options = make_options(strategy, options)
    plan = PLANNED[strategy].plan(found.graph, options, target("arena", order))
    # Small slices, so that large tensors' way of travelling is taken too.
    transfer = SerializeTransfer(max_slice_bytes=20_000 if strategy == "lms" else 1 << 30)
    comparison = compare(name, apply_plan(found, plan, transfer))
    assert comparison.beyond(0.0) == []


@pytest.mark.parametrize("order", ["pinned", "dataflow"])
@pytest.mark.parametrize(
    ("strategy", "options"),
    [("checkpoints", {"rule": "openai"}), ("lms", {"rule": "tflms"}),
     ("ome", {"rule": "openai", "select": "read_once"})],
)  # fmt: skip
def test_the_original_tools_rules_give_the_same(strategy, options, order):
    test_same_losses_and_variables("resnet-18-v2", strategy, options, order)


@pytest.mark.parametrize("strategy", ["lms", "ome"])
def test_pools_with_overlapping_windows_give_the_same(strategy):
    """oneDNN adds up what a value gets from several windows in an order that depends on whether the
    gradient reads the pool's own output."""
    filters = [tf.Variable(tf.random.stateless_normal([3, 3, 8, 8], (0, i)) / 8) for i in range(3)]
    batch = tf.random.stateless_normal([4, 24, 24, 8], (1, 0))

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            for i, each in enumerate(filters):
                x = tf.nn.relu(tf.nn.conv2d(x, each, 1, "SAME"))
                x = tf.nn.max_pool2d(x, 3, 1 + i % 2, "SAME")
            loss = tf.reduce_sum(x**2)
        for each, gradient in zip(filters, tape.gradient(loss, filters), strict=True):
            each.assign_sub(1e-4 * gradient)
        return loss

    found = trace_concrete(*step_to_read(train_step, (batch,)))
    options = make_options(strategy, {"select": "all"} if strategy == "ome" else {})
    plan = PLANNED[strategy].plan(found.graph, options, ARENA)
    lean = apply_plan(found, plan, SerializeTransfer())
    own = {str(i): each for i, each in enumerate(filters)}
    initial = {name: each.numpy() for name, each in own.items()}
    comparison = Comparison(initial)
    ran = [history(each, own, initial, (batch,), steps=2) for each in (train_step, lean)]
    for pair in zip(*ran, strict=True):
        comparison.add(*pair)
    assert comparison.beyond(0.0) == []


def test_the_plans_under_test_do_something():
    """Or equality would prove nothing."""
    for name in SMALL:
        graph = traced(name)[0].graph
        plan = PLANNED["ome"].plan(graph, make_options("ome", {"select": "all"}), ARENA)
        kinds = {action.kind for action in plan.actions}
        assert kinds >= {"run", "recompute", "swap_out", "swap_in"}


# --- planted faults ---------------------------------------------------------------------------


def swapped_graph_def(name: str = "resnet-18"):
    found, _, _ = traced(name)
    plan = PLANNED["lms"].plan(found.graph, make_options("lms", {}), ARENA)
    return found, rewrite(found, plan, SerializeTransfer())


def reds(name: str, found, graph_def) -> list:
    return compare(name, import_step(found, graph_def)).beyond(0.0)


def test_a_stale_swap_turns_red():
    """A swap-in that reads another tensor of the same shape."""
    found, graph_def = swapped_graph_def()
    shapes = {found.graph.label(t.id).replace(":", "_"): t.shape for t in found.graph.tensors}
    outs = [node.name for node in graph_def.node if node.op == "SerializeTensor"]
    a, b = next(
        (a, b)
        for i, a in enumerate(outs)
        for b in outs[i + 1 :]
        if shapes[a.split("out/")[1]] == shapes[b.split("out/")[1]]
    )
    reader = next(n for n in graph_def.node if n.op == "ParseTensor" and n.input[0] == b)
    reader.input[0] = a
    assert reds("resnet-18", found, graph_def)


def test_a_forgotten_update_turns_red():
    found, graph_def = swapped_graph_def()
    update = next(n for n in graph_def.node if n.op == "ResourceApplyMomentum")
    del update.input[:]
    update.op = "NoOp"
    update.ClearField("attr")
    assert reds("resnet-18", found, graph_def)


def test_a_second_update_turns_red():
    """A stateful op that was cloned: the moving average moves twice."""
    found, graph_def = swapped_graph_def()
    # What waits for the update can wait for its clone, too, without a cycle.
    update, follower = next(
        (node, other)
        for node in graph_def.node
        if node.op == "AssignSubVariableOp"
        for other in graph_def.node
        if f"^{node.name}" in other.input
    )
    again = tf.compat.v1.NodeDef()
    again.CopyFrom(update)
    again.name = "planted/update"
    graph_def.node.append(again)
    follower.input.append("^planted/update")
    assert reds("resnet-18", found, graph_def)


def test_a_cloned_random_op_turns_red():
    """The clone draws another mask than the forward pass did."""
    name = "gpt2-dropout"
    found, _, _ = traced(name)
    # A graph that calls its random ops stateless, so that they are recomputed like any other.
    lying = [
        msgspec.structs.replace(op, stateful=op.stateful and op.type != "RandomUniform")
        for op in found.graph.ops
    ]
    graph = StepGraph(msgspec.structs.replace(found.graph.data, ops=tuple(lying)))
    graph.folded = [op.type == "Const" for op in graph.ops]  # nor constant, for all their inputs
    decisions: dict[int, Decision] = dict.fromkeys(graph.activations, "recompute")
    plan = Plan("planted", {}, graph.fingerprint, "pinned", (), lower(graph, decisions))
    graph_def = rewrite(dataclasses.replace(found, graph=graph), plan, SerializeTransfer())
    clones = [
        node
        for node in graph_def.node
        if node.op == "RandomUniform" and node.name.startswith("memtrade/again")
    ]
    assert clones
    for clone in clones:  # as users' unseeded ops are; a seeded one's clone draws the same
        clone.attr["seed"].i = clone.attr["seed2"].i = 0
    assert reds(name, found, graph_def)


def test_a_wrong_clone_turns_red():
    """A recomputation that gives other values."""
    found, _, _ = traced("resnet-18")
    plan = PLANNED["checkpoints"].plan(found.graph, make_options("checkpoints", {}), ARENA)
    graph_def = rewrite(found, plan, SerializeTransfer())
    clones = [n for n in graph_def.node if n.name.startswith("memtrade/again") and n.op == "Relu"]
    clones[-1].op = "Abs"
    assert reds("resnet-18", found, graph_def)


BIASED = """
import tensorflow as tf
import memtrade
from memtrade.tf.verify import compare_steps

tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
shapes = [(3, 3, 3, 8), (3, 3, 8, 8), (3, 3, 8, 8)]
normal = tf.random.stateless_normal
filters = [tf.Variable(normal(shape, (0, i)) / 4) for i, shape in enumerate(shapes)]
biases = [tf.Variable(normal([8], (1, i))) for i in range(3)]
batch = normal([4, 17, 17, 3], (2, 0))

@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        for each, bias in zip(filters, biases):
            x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, each, 1, "SAME"), bias))
        loss = tf.reduce_sum(x**2)
    weights = filters + biases
    for each, gradient in zip(weights, tape.gradient(loss, weights)):
        each.assign_sub(1e-6 * gradient)
    return loss

def mode(strategy):
    return {} if strategy == "lms" else {"mode": "speed"}

for order in ("pinned", "dataflow"):
    for strategy in ("checkpoints", "lms", "ome"):
        lean = memtrade.apply(train_step, batch, strategy, order=order, **mode(strategy))
        found = compare_steps(train_step, lean, filters + biases, (batch,), steps=2)
        print(order, strategy, found.verified(0.0).equal)
"""


def test_convolutions_with_biases_give_the_same():
    """On a CPU with SSE4.1 alone, a convolution that begins with its bias rounds otherwise than one
    with the bias added behind it."""
    environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    child = forks.ran(["-c", BIASED], env=environment)
    assert child.returncode == 0, child.stderr[-2000:]
    lines = child.stdout.splitlines()
    assert len(lines) == 6
    assert [line for line in lines if not line.endswith("True")] == []
