"""Long sums in groups: the same bits, less at once."""

# TensorFlow's annotations say less than its functions take.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import logging

import pytest
import tensorflow as tf

import memtrade
from memtrade.plan import Action, Plan
from memtrade.simulate.summands import sums_as_they_came
from memtrade.tf.calling import step_to_read
from memtrade.tf.extract import trace_concrete
from memtrade.tf.rewrite import apply_plan
from memtrade.tf.sums import in_groups
from memtrade.tf.swap import SerializeTransfer
from memtrade.tf.verify import compare_steps
from tests.corpus.parts import descend, normal, weights
from tests.corpus.running import differing


@pytest.mark.parametrize("count", [9, 10, 16, 17, 18, 24, 25, 40])
def test_groups_make_the_same_bits(count):
    parts = normal(count, 40, 50) * tf.exp(6 * normal(count, 1, 1, seed=3))
    concrete = tf.function(lambda x: tf.add_n(tf.unstack(x))).get_concrete_function(parts)
    grouped = in_groups(concrete, [tf.TensorSpec(parts.shape)])
    types = [each.type for each in grouped.graph.get_operations()]
    assert types.count("AddV2") == (count - 2) // 8
    assert concrete(parts).numpy().tobytes() == grouped(parts).numpy().tobytes()


def test_other_bits_would_be_noticed():
    parts = normal(20, 40, 50) * tf.exp(6 * normal(20, 1, 1, seed=3))
    one_by_one = sum(tf.unstack(parts)[1:], parts[0])
    assert one_by_one.numpy().tobytes() != tf.add_n(tf.unstack(parts)).numpy().tobytes()


def sliced():
    """A loop in Python over the time of what was computed: 40 gradients as large as all of it."""
    first, second, out = weights([16, 48], [48, 48], [48, 4])

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            wide = tf.tanh(x @ first)
            state = tf.zeros([8, 48])
            for i in range(40):
                state = tf.tanh(state @ second + wide[:, i])
            loss = tf.reduce_mean((state @ out) ** 2)
        descend(tape, loss, [first, second, out])
        return loss

    return train_step, (normal(8, 40, 16),)


def test_a_loop_over_slices_takes_a_third(caplog):
    step, batch = sliced()
    with caplog.at_level(logging.INFO, "memtrade"):
        lean = memtrade.apply(step, batch, "checkpoints")
    predicted = caplog.records[-1].__dict__
    assert predicted["original_bytes"] > 40 * 8 * 40 * 48 * 4  # all parts at once
    assert predicted["peak_bytes"] < predicted["original_bytes"] / 3
    assert differing(step, lean, batch) == []


def written_twice():
    """TensorFlow computes both parts once, so the first sum must not take their buffers."""
    (w,) = weights([16, 48])
    third = tf.exp(normal(64, 48, seed=5))

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            y = x @ w

            def parts():
                return tf.exp(y), 7.3 * tf.sin(y)

            first = tf.add_n([*parts(), tf.tanh(third) * third])
            second = tf.add_n([*parts(), tf.sin(first)])
            loss = tf.reduce_mean(first * second)
        descend(tape, loss, [w])
        return loss, first

    return train_step, (normal(64, 16),)


@pytest.mark.parametrize("strategy", ["ome", "optimal"])
def test_sums_of_three_add_up_as_they_came(strategy):
    step, batch = written_twice()
    options = {"minimize": "memory"} if strategy == "optimal" else {}
    lean = memtrade.apply(step, batch, strategy, loss=0, **options)
    assert differing(step, lean, batch) == []


def test_what_a_plan_keeps_longer_is_added_first_all_the_same():
    """In the step as it came the kernel may take the first part's buffer. In this plan, which
    computes the sines from both parts again, of the three only the last."""
    (w,) = weights([16, 48])

    @tf.function
    def train_step(x):
        y = x @ w
        parts = [tf.exp(y), 7.3 * tf.cos(y), tf.tanh(y) * 3.1]
        sines = [tf.sin(parts[0]), tf.sin(parts[1])]
        with tf.control_dependencies(sines):
            total = tf.add_n(parts)
        w.assign_sub(1e-6 * tf.tensordot(x, total * sines[0] * sines[1], [[0], [0]]))
        return tf.reduce_sum(total)

    batch = (normal(64, 16),)
    traced = trace_concrete(*step_to_read(train_step, batch))
    graph = traced.graph
    again = [Action("recompute", op.id) for op in graph.ops if op.type == "Sin"]
    runs = [Action("run", op.id) for op in graph.ops]
    at = next(i for i, op in enumerate(graph.ops) if op.type == "AddN") + 1
    plan = Plan("mine", {}, graph.fingerprint, "pinned", (), (*runs[:at], *again, *runs[at:]))
    assert sums_as_they_came(graph, plan.actions)
    lean = apply_plan(traced, plan, SerializeTransfer())
    assert compare_steps(train_step, lean, (w,), batch, steps=2).beyond(0.0) == []


def test_a_later_group_begins_with_its_first_part():
    """Of ten parts the kernel adds up two, and then eight from left to right, whoever reads them;
    the third is the fourth, too, so a sum of these eight alone would begin with another."""
    (w,) = weights([16, 48])

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            y = x @ w
            parts = [tf.sin(i * y) for i in range(1, 10)]
            loss = tf.reduce_mean(tf.sin(tf.add_n([*parts[:3], *parts[2:]])))
        descend(tape, loss, [w])
        return loss

    batch = (normal(64, 16),)
    lean = memtrade.apply(train_step, batch, "ome", loss=0)
    assert differing(train_step, lean, batch) == []
