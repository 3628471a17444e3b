# pyright: reportArgumentType=false
# (TensorFlow annotates less than tf.Variable takes.)
"""Calls of functions are opened up without changing what is computed, or in which order."""

import pytest
import tensorflow as tf

from memtrade.facts.calls import DenseFilter, dense_filter
from memtrade.op_types import CALL_TYPES
from memtrade.simulate.unplanned import executor_order
from memtrade.tf.extract import opened, trace
from memtrade.tf.inline import Inlined
from tests.tf.test_extract import step_of
from tests.tf.user_steps import STEPS


def types(function, *specs) -> list[str]:
    return [op.type for op in trace(step_of(function, *specs)).graph.ops]


def opened_step(function, *specs):
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)  # pyright: ignore[reportFunctionMemberAccess]
    return concrete, opened(concrete, specs)


def test_calls_are_opened_down_to_the_last():
    @tf.function
    def inner(x):
        return tf.sin(x), tf.split(x, 2)

    @tf.function
    def middle(x):
        y, (left, right) = inner(x)
        return tf.cos(y), right, left

    found = types(lambda x: tf.reduce_sum(tf.concat(middle(x)[:2], 0)), tf.TensorSpec([4]))
    assert found.count("Sin") == found.count("Cos") == found.count("Split") == 1
    assert not any("Call" in each for each in found)


def test_what_a_function_computes_is_not_merged_with_the_same_outside():
    """TensorFlow hands arguments on through Identities and leaves these: calls of one function
    read through as many, other ops do not. Each count is what its log shows."""

    @tf.function
    def inner(x):
        return tf.sign(x) * x

    @tf.function
    def around(x):
        return inner(x)

    def signs(function) -> int:
        graph = trace(step_of(lambda x: tf.reduce_sum(function(x)), tf.TensorSpec([4]))).graph
        return [graph.ops[i].type for i in executor_order(graph)].count("Sign")

    assert signs(lambda x: inner(x) + tf.cos(inner(x))) == 1
    assert signs(lambda x: inner(x) + tf.sign(x)) == 2
    assert signs(lambda x: inner(x) + tf.cos(around(x))) == 2


def test_conditions_and_loops_that_depend_on_data_stay_whole():
    @tf.function
    def step(x):
        while tf.reduce_max(x) > 0.1:
            x = tf.sin(x) if tf.reduce_sum(x) > 0 else tf.cos(x)
        return tf.reduce_sum(tf.cond(x[0] > 0, lambda: tf.exp(x), lambda: x))

    found = types(lambda x: step(x), tf.TensorSpec([4]))
    assert {"While", "StatelessWhile"} & set(found)
    assert {"If", "StatelessIf"} & set(found)
    assert "Sin" not in found
    assert not any("Call" in each for each in found)


@pytest.mark.parametrize("attribute", ["_noinline", "_XlaMustCompile"])
def test_functions_that_must_stay_do(attribute):
    inner = tf.function(
        tf.sin,
        jit_compile=attribute == "_XlaMustCompile",
        experimental_attributes={"_noinline": True} if attribute == "_noinline" else None,
    )
    assert any(
        "Call" in each for each in types(lambda x: tf.reduce_sum(inner(x)), tf.TensorSpec([4]))
    )


def test_a_compiled_call_is_stateful_only_if_its_function_is():
    counter = tf.Variable(1.0)
    compute = tf.function(tf.sin, jit_compile=True)
    count = tf.function(lambda x: x + counter.assign_add(1.0), jit_compile=True, autograph=False)
    step = step_of(lambda x: tf.reduce_sum(count(compute(x))), tf.TensorSpec([4]))
    calls = [op for op in trace(step).graph.ops if op.type in CALL_TYPES]
    assert [op.stateful for op in calls] == [False, True]


def test_a_compiled_gradient_of_a_filter_in_groups_is_known():
    step = STEPS["compiled"]()
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in step.batch]
    graph = trace(step_of(step.function, *specs)).graph
    calls = [op for op in graph.ops if op.type in CALL_TYPES]
    dense = [found for op in calls if (found := dense_filter(op, graph))]
    assert len(calls) == 2 * len(dense) == 8
    assert set(dense) == {DenseFilter(3 * 3 * 8 * 8 * 4, 3 * 3 * 8 * 8, 8 * 16 * 16)}


def test_effects_keep_their_order():
    """Each call of `bump` reads what the one before it wrote, and the caller what the last did."""
    counter = tf.Variable(1.0)

    @tf.function
    def bump(x):
        counter.assign(counter * 2.0)
        return x + counter

    @tf.function
    def silent():
        counter.assign_add(1.0)

    def step(x):
        a = bump(x)
        silent()
        b = bump(x)
        silent()
        return a, b, counter.read_value()

    concrete, inlined = opened_step(step, tf.TensorSpec([]))
    for run in (concrete, inlined):
        counter.assign(1.0)
        assert [float(each) for each in run(tf.constant(10.0))] == [12.0, 16.0, 7.0]
    calls = {op.type for op in inlined.graph.get_operations()}
    assert not any("Call" in each for each in calls)


def test_one_function_called_twice_gets_two_bodies():
    @tf.function
    def square(x):
        return x * x

    concrete, inlined = opened_step(lambda x: square(square(x)), tf.TensorSpec([]))
    assert float(inlined(tf.constant(3.0))) == float(concrete(tf.constant(3.0))) == 81.0
    names = [op.name for op in inlined.graph.get_operations() if op.type == "Mul"]
    assert len(set(names)) == 2


def test_what_is_returned_can_be_an_input_or_a_capture():
    constant = tf.constant([1.0, 2.0] * 100)

    @tf.function
    def same(x):
        return x, constant

    concrete, inlined = opened_step(lambda x: {"x": same(x)[0], "c": same(x)[1], "n": None},
                                    tf.TensorSpec([2]))  # fmt: skip
    found, expected = inlined(tf.ones([2])), concrete(tf.ones([2]))
    assert found["n"] is None
    tf.nest.map_structure(tf.debugging.assert_equal, found["x"], expected["x"])
    tf.nest.map_structure(tf.debugging.assert_equal, found["c"], expected["c"])


def test_functions_that_nobody_calls_any_more_are_left_out():
    @tf.function
    def inner(x):
        return tf.sin(x)

    concrete, _ = opened_step(lambda x: inner(x), tf.TensorSpec([2]))
    graph_def = concrete.graph.as_graph_def()
    assert len(graph_def.library.function) == 1
    assert not Inlined(graph_def).graph_def.library.function


def test_shapes_that_the_program_said_are_kept():
    @tf.function
    def inner(x):
        return tf.sin(x)

    def step(x):
        y = tf.boolean_mask(inner(x), x > 0)
        y.set_shape([2])
        return tf.exp(y)

    _, inlined = opened_step(step, tf.TensorSpec([4]))
    exp = next(op for op in inlined.graph.get_operations() if op.type == "Exp")
    assert exp.inputs[0].shape == [2]


def test_an_identity_of_several_holds_none_of_them_back():
    """Keras's optimizers hand all gradients through one: the first update need not wait."""

    def step(x, y):
        a, b = tf.identity_n([tf.sin(x), tf.cos(y)])
        return tf.reduce_sum(tf.exp(a)) + 0.0 * tf.reduce_sum(b)

    found = types(step, tf.TensorSpec([4]), tf.TensorSpec([4]))
    assert "IdentityN" not in found
    concrete, inlined = opened_step(step, tf.TensorSpec([4]), tf.TensorSpec([4]))
    exp = next(op for op in inlined.graph.get_operations() if op.type == "Exp")
    assert exp.inputs[0].op.type == "Sin"
    given = (tf.constant([1.0, 2.0, 3.0, 4.0]), tf.ones([4]))
    assert float(inlined(*given)) == float(concrete(*given))


def test_an_identity_that_waits_for_an_effect_stays():
    count = tf.Variable(1.0)

    def step(x):
        y = tf.sin(x)
        with tf.control_dependencies([count.assign_add(1.0)]):
            (a,) = tf.identity_n([y])
        return tf.reduce_sum(a)

    assert "IdentityN" in types(step, tf.TensorSpec([4]))
