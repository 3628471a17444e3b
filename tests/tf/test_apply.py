"""memtrade.apply on steps as people write them: the same results, variables and slots."""

import functools
import logging
import os
import warnings
from dataclasses import replace

import pandas as pd
import pytest
import tensorflow as tf

import memtrade
from memtrade.errors import (
    InfeasibleBudgetError,
    MemtradeError,
    UnknownNameError,
    UnsupportedGraphError,
)
from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec
from memtrade.op_types import CALL_TYPES
from memtrade.simulate.memory import ROOMY_BYTES
from memtrade.simulate.predict import Predictor
from memtrade.strategies import PLANNED, make_options
from memtrade.target import profile_target
from memtrade.tf.extract import trace_concrete
from memtrade.tf.step import TrainStep
from memtrade.tf.verify import compare_steps
from tests import forks
from tests.tf.user_steps import BATCH, STEPS, WIDTH, UserStep, images


def differing(step: UserStep, rewritten, steps: int = 3):
    return compare_steps(
        lambda *batch: step.loss(step.function(*batch)),
        lambda *batch: step.loss(rewritten(*batch)),
        step.variables(),
        step.batch,
        steps=steps,
    ).beyond(0.0)


def clones(rewritten, batch) -> int:
    """How many ops the rewritten step runs again."""
    outer = rewritten.get_concrete_function(*batch).graph.as_graph_def()
    nodes = [node for function in outer.library.function for node in function.node_def]
    return sum(node.name.startswith("memtrade/again") for node in nodes)


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether oneDNN can here: where it cannot, TensorFlow ends the process."""
    ones = "import tensorflow as tf; a = tf.ones([64, 64], tf.bfloat16)"
    multiplied = f"{ones}; tf.function(tf.matmul)(a, a)"
    return forks.ran(["-c", multiplied], env=dict(os.environ)).returncode == 0


@pytest.mark.parametrize("name", STEPS)
def test_the_rewritten_step_computes_the_same(name):
    if name == "bfloat16" and not multiplies_bfloat16():
        pytest.skip("oneDNN has no product of bfloat16 for this processor, not for the original")
    step = STEPS[name]()
    rewritten = memtrade.apply(step.function, step.batch, strategy="ome", select="all")
    assert clones(rewritten, step.batch) >= 4
    assert differing(step, rewritten) == []


def test_the_comparison_notices_a_difference():
    step = STEPS["plain"]()
    weight = step.variables()[0]

    def disturbed(x):
        weight.assign_add(tf.fill(weight.shape, 1e-6))
        return step.function(x)

    assert {name for name, _ in differing(step, disturbed)} >= {"loss", "w0"}


def test_another_batch_size_is_planned_anew_and_the_same_one_is_not():
    step = STEPS["plain"]()
    rewritten = memtrade.apply(step.function, step.batch, strategy="checkpoints")
    for size in (BATCH, BATCH // 2, BATCH, BATCH // 2):
        other = replace(step, batch=(images(size),))
        assert differing(other, rewritten, steps=1) == []
    assert rewritten.experimental_get_tracing_count() == 2


def test_a_rewritten_step_is_planned_anew_from_what_it_was_made_of():
    step = STEPS["plain"]()
    lean = memtrade.apply(step.function, step.batch, select="all")
    leanest = memtrade.apply(lean, step.batch, "optimal", minimize="memory")
    peaks = [
        memtrade.summary(each, step.batch, show=False).peak_bytes
        for each in (step.function, lean, leanest)
    ]
    assert peaks[1] < peaks[0]
    assert peaks[2] <= peaks[1]
    with pytest.raises(MemtradeError, match="was planned last for"):
        memtrade.summary(lean, tf.ones([2, WIDTH]), show=False)


def test_what_can_be_an_array_is_one():
    step = STEPS["plain"]()
    frame = pd.DataFrame(step.batch[0].numpy())
    lean = memtrade.apply(step.function, frame, select="all")
    assert clones(lean, step.batch) >= 4


def test_the_original_stays_as_it_was():
    step = STEPS["plain"]()
    before = step.function.get_concrete_function(*step.batch).graph.as_graph_def()
    memtrade.apply(step.function, step.batch, strategy="checkpoints")
    assert step.function.experimental_get_tracing_count() == 1
    assert step.function.get_concrete_function(*step.batch).graph.as_graph_def() == before


def test_the_rewritten_step_can_be_called_in_a_function():
    step = STEPS["plain"]()
    rewritten = memtrade.apply(step.function, step.batch, strategy="checkpoints")

    def epoch(function):
        data = tf.data.Dataset.from_tensors(images()).repeat(3)

        @tf.function
        def run(x):
            total = function(x)
            for batch in data:
                total += function(tf.ensure_shape(batch, [BATCH, WIDTH]))
            return total

        return run

    inside = replace(step, function=epoch(step.function))
    assert differing(inside, epoch(rewritten), steps=1) == []


def test_a_python_function_and_open_shapes_will_do():
    step = STEPS["plain"]()
    python = step.function.python_function
    spec = tf.TensorSpec([None, WIDTH])
    open_step = tf.function(python, input_signature=[spec])
    for function in (python, open_step):
        rewritten = memtrade.apply(function, step.batch, strategy="checkpoints")
        assert clones(rewritten, step.batch)
        closed = replace(step, function=tf.function(python))
        assert differing(closed, rewritten, steps=2) == []


class Images(tf.experimental.ExtensionType):
    """A type of the user's own, as TensorFlow's guide has it."""

    pixels: tf.Tensor
    name: str = "digits"


def test_a_batch_may_be_of_a_type_of_ones_own():
    step = STEPS["plain"]()
    train = step.function
    typed = tf.function(lambda batch: train(batch.pixels))
    batch = (Images(pixels=step.batch[0]),)
    rewritten = memtrade.apply(typed, batch, strategy="ome", select="all")
    assert clones(rewritten, batch) >= 4
    own = replace(step, function=typed, batch=batch)
    assert differing(own, rewritten) == []


class Trainer(tf.Module):
    """A step as a module has it, which checkpoints and SavedModels can hold."""

    def __init__(self, *, lean: bool):
        super().__init__()
        step = STEPS["plain"]()
        self.layers, self.batch = step.variables(), step.batch
        self.step = step.function
        if lean:
            self.step = memtrade.apply(step.function, step.batch, strategy="ome", select="all")

    def train(self) -> list[float]:
        return [float(self.step(*self.batch)) for _ in range(2)]


def test_a_checkpoint_goes_from_one_to_the_other(tmp_path):
    lean, original = Trainer(lean=True), Trainer(lean=False)
    lean.train()
    path = tf.train.Checkpoint(lean).write(str(tmp_path / "lean"))
    tf.train.Checkpoint(original).read(path).assert_consumed()
    assert lean.train() == original.train()


def test_a_saved_model_trains_on(tmp_path):
    lean = Trainer(lean=True)
    lean.train()
    tf.saved_model.save(lean, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert [float(loaded.step(*lean.batch)) for _ in range(2)] == lean.train()
    for there, here in zip(loaded.layers, lean.layers, strict=True):
        tf.debugging.assert_equal(there, here)
    assert clones(loaded.step, lean.batch)


def test_xla_is_given_up_with_a_warning():
    step = STEPS["plain"]()
    compiled = tf.function(step.function.python_function, jit_compile=True)
    with pytest.warns(UserWarning, match="runs without jit_compile"):
        memtrade.apply(compiled, step.batch, strategy="checkpoints")


def test_xla_that_is_off_is_not_given_up():
    step = STEPS["plain"]()
    plain = tf.function(step.function.python_function, jit_compile=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memtrade.apply(plain, step.batch, strategy="checkpoints")


def test_a_step_that_takes_its_gradients_has_none():
    """But within a tape that looks away it runs."""
    step = STEPS["plain"]()
    rewritten = memtrade.apply(step.function, step.batch, strategy="checkpoints")
    with tf.GradientTape() as tape:
        with tape.stop_recording():
            rewritten(*step.batch)
        with pytest.raises(UnsupportedGraphError, match=r"within tape.stop_recording\(\)"):
            rewritten(*step.batch)


def test_a_step_left_as_it_is_is_called_and_not_inlined():
    """Its own calls are opened in the order of creation. Inlined into its caller, its ops run in
    another: CycleGAN's take half as much again."""
    step = STEPS["nested"]()
    left = memtrade.apply(step.function, step.batch, strategy="original")
    graph = left.get_concrete_function(*step.batch).graph.as_graph_def()
    library = {each.signature.name: each for each in graph.library.function}
    (called,) = [library[node.attr["f"].func.name] for node in graph.node if "f" in node.attr]
    assert called.attr["_noinline"].b
    assert not {node.op for node in called.node_def} & CALL_TYPES
    assert differing(step, left) == []
    with tf.GradientTape(), pytest.raises(UnsupportedGraphError, match="takes its own gradients"):
        left(*step.batch)


def test_a_plan_that_is_no_better_is_left_out_with_a_warning():
    weight = tf.Variable(tf.ones([WIDTH, WIDTH]))

    @tf.function
    def tiny_step(x):
        weight.assign_add(x)
        return tf.reduce_sum(x)

    batch = images(WIDTH)
    with pytest.warns(UserWarning, match="tiny_step is not made smaller by ome: it runs as it is"):
        rewritten = memtrade.apply(tiny_step, batch)
    assert clones(rewritten, (batch,)) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memtrade.apply(tiny_step, batch, strategy="original")


def test_a_step_that_a_dataset_runs_is_left_as_it_is():
    """`for x in dataset` in a step: all is one op, whose time nobody knows."""
    weight = tf.Variable(tf.ones([WIDTH, WIDTH]))

    @tf.function
    def looping_step(x):
        total = 0.0
        for part in tf.data.Dataset.from_tensor_slices(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.relu(part @ weight) @ weight)
            weight.assign_sub(tape.gradient(loss, weight))
            total += loss
        return total

    batch = tf.reshape(images(), [2, -1, WIDTH])
    with pytest.warns(UserWarning, match="looping_step is not made smaller by optimal"):
        memtrade.apply(looping_step, batch, strategy="optimal", minimize="memory")


def test_the_loss_can_be_named():
    step = STEPS["nested"]()
    rewritten = memtrade.apply(step.function, step.batch, select="all", loss="losses/1")
    assert differing(step, rewritten) == []
    with pytest.raises(UnknownNameError, match="did you mean 'loss'"):
        memtrade.apply(step.function, step.batch, loss="lss")
    with pytest.raises(UnsupportedGraphError, match="one value, which has no name"):
        memtrade.apply(tf.function(tf.reduce_sum), tf.ones([4]), loss="lss")
    silent = tf.function(lambda x: None)
    with pytest.raises(UnsupportedGraphError, match="it returns nothing: leave loss= out"):
        memtrade.apply(silent, images(), loss=0)


def test_a_default_that_is_a_variable_is_an_argument():
    step = STEPS["plain"]()
    first = tf.Variable(tf.eye(WIDTH))

    @tf.function
    def train_step(x, scale=0.5, *, weights=(first,)):
        return step.function(scale * x @ weights[0])

    inside = replace(step, function=train_step)
    rewritten = memtrade.apply(train_step, step.batch)
    assert clones(rewritten, step.batch)
    assert differing(inside, rewritten) == []


def test_a_budget_is_kept_or_refused():
    step = STEPS["plain"]()
    memtrade.apply(step.function, step.batch, strategy="checkpoints", budget="1GB")
    with pytest.raises(InfeasibleBudgetError, match=r"no plan fits a budget of 0\.1 MB"):
        memtrade.apply(step.function, step.batch, strategy="checkpoints", budget=100_000)
    with pytest.raises(InfeasibleBudgetError):
        memtrade.apply(step.function, step.batch, strategy="optimal", budget="100KB")


def test_branches_that_threads_may_run_abreast_get_an_order_that_keeps_the_budget(caplog):
    """One after the other they take a quarter of what they take at once."""
    weight = tf.Variable(tf.ones([WIDTH]))

    @tf.function
    def branching(x):
        total = tf.add_n([tf.reduce_mean(tf.exp(tf.sin(x * i))) for i in (1.0, 2.0, 3.0, 4.0)])
        weight.assign_sub(total * weight)
        return total

    batch = (tf.ones([2048, WIDTH]),)
    with caplog.at_level(logging.INFO, "memtrade"):
        lean = memtrade.apply(branching, batch, strategy="auto", budget="2MB")
    assert differing(UserStep(branching, batch, lambda: [weight]), lean) == []
    as_it_is, *_, planned = caplog.records
    assert as_it_is.getMessage().startswith("branching as it is: predicted peak ≈ 1.1 to 3.1 MB")
    assert planned.getMessage().startswith("optimal of branching: predicted peak 1.1 MB")


def test_a_profile_is_the_target_that_judges():
    """A GPU's plan is judged by its own allocator and kernels, not by the arena's."""
    step = STEPS["averaged"]()
    function = step.function.get_concrete_function(*step.batch)
    specs = tuple(map(tf.TensorSpec.from_tensor, step.batch))
    given = TrainStep("step", step.function, specs, lambda: step.batch, tuple)
    graph = trace_concrete(given, function).graph
    needed = {}
    for name in ("arena", "h100"):
        target = profile_target(name)
        made = PLANNED["lms"].plan(graph, make_options("lms"), target)
        needed[name] = Predictor(graph, target).predict(made, limit_bytes=ROOMY_BYTES).peak_bytes
        with pytest.raises(InfeasibleBudgetError) as refused:
            memtrade.apply(step.function, step.batch, strategy="lms", budget=1, profile=name)
        assert refused.value.needed_bytes == needed[name]
    assert needed["arena"] != needed["h100"]
    with pytest.raises(UnknownNameError, match="did you mean 'h100'"):
        memtrade.apply(step.function, step.batch, profile="h10")


ARENA = """
import sys
import tensorflow as tf
from memtrade.tf.device import Arena
arena = Arena(400 << 20)
arena.start()
import memtrade
weights = [tf.Variable(tf.fill([64, 64], 0.02)) for _ in range(24)]

@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        for w in weights:
            x = tf.nn.tanh(x @ w)
        loss = tf.reduce_mean(x)
    for w, gradient in zip(weights, tape.gradient(loss, weights)):
        w.assign_sub(0.1 * gradient)
    return loss

batch = tf.ones([8192, 64])
for step in (train_step, memtrade.apply(train_step, batch, strategy="checkpoints")):
    step(batch)
    arena.reset_peak()
    step(batch)
    print(arena.peak_bytes())
"""


def test_clones_survive_tensorflows_optimizer():
    """With its default settings, as users have them, it merges equal ops. The peak tells."""
    environment = child_environment(TrialSpec(memory_limit_bytes=400 << 20))
    done = forks.ran(["-c", ARENA], env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    original, lean = map(int, done.stdout.split())
    assert lean < 0.5 * original
