import pytest
import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.facts.variables import placed
from memtrade.simulate.walk import STRING_BYTES
from memtrade.tf.extract import trace
from memtrade.tf.step import TrainStep
from tests.tf.small_models import small_step


def step_of(function, *specs) -> TrainStep:
    return TrainStep(
        name="toy",
        function=tf.function(function, autograph=False, input_signature=specs),
        specs=specs,
        make_batch=lambda: tuple(tf.zeros(spec.shape, spec.dtype) for spec in specs),
        variables=tuple,
    )


def test_bytes_of_variables_come_from_their_handles():
    """The one private attribute that is read, FuncGraph's handle data: it must not move."""
    weight = tf.Variable(tf.ones([3, 5]))
    step = step_of(lambda x: tf.reduce_sum(x @ weight), tf.TensorSpec([2, 3]))
    data = trace(step).graph.data
    assert data.capture_bytes == (60,)


def test_bytes_of_variables_without_allocating_them():
    with tf.Graph().as_default():
        data = trace(small_step("resnet-18")).graph.data
    eager = trace(small_step("resnet-18")).graph.data
    assert data.capture_bytes == eager.capture_bytes
    assert sum(data.capture_bytes) > 40e6


def test_shapes_behind_variables_are_known():
    graph = trace(small_step("resnet-18")).graph
    unknown = {graph.ops[t.op].type for t in graph.tensors if t.shape is None}
    # A placeholder of a handle has none, and batch norm leaves its third reserve space open.
    assert unknown <= {"Placeholder", "FusedBatchNormV3"}


def test_ops_that_lead_nowhere_are_left_out():
    def function(x):
        tf.sin(x)  # nobody reads it
        return tf.reduce_sum(tf.cos(x))

    types = [op.type for op in trace(step_of(function, tf.TensorSpec([2, 3]))).graph.ops]
    assert "Cos" in types
    assert "Sin" not in types


def test_a_step_without_a_loss_says_what_to_return():
    step = step_of(lambda x: None, tf.TensorSpec([2, 3]))
    with pytest.raises(UnsupportedGraphError, match=r"no loss found.*Return the loss"):
        trace(step)


def test_values_that_follow_from_known_ones_are_known():
    """A transposition's gradient reads its axes backwards; a kernel is asked with such numbers."""

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.transpose(x, [2, 0, 1]) ** 2)
        return loss, tape.gradient(loss, x)

    graph = trace(step_of(step, tf.TensorSpec([2, 3, 4]))).graph
    inverse = next(op for op in graph.ops if op.type == "InvertPermutation")
    assert graph.data.values[inverse.outputs[0]] == (1, 2, 0)


def test_a_gather_from_each_example_transposes_by_known_axes():
    """Its gradient counts them out; a kernel that gets other axes than the step's would be asked
    in vain."""

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            rows = tf.gather(x, tf.zeros([2, 3, 1], tf.int32), batch_dims=2)
            loss = tf.reduce_sum(rows**2)
        return loss, tape.gradient(loss, x)

    graph = trace(step_of(step, tf.TensorSpec([2, 3, 4]))).graph
    moved = [op for op in graph.ops if op.type == "Transpose"]
    assert moved
    assert all(graph.data.values[op.inputs[1]] == (0, 1, 2) for op in moved)


def test_values_that_hang_on_truth_values_are_known():
    """`vectorized_map` chooses a transposition's axes by what a shape is, in the step itself."""

    def step(x):
        w = tf.vectorized_map(lambda w: tf.ones([5, 3]) @ w, x)
        return tf.reduce_sum(w)

    graph = trace(step_of(step, tf.TensorSpec([2, 3, 4]))).graph
    moved = [op for op in graph.ops if op.type == "Transpose"]
    assert moved
    assert all(op.inputs[1] in graph.data.values for op in moved)


def test_parts_and_joints_of_masked_rows_are_bounded():
    def function(x):
        kept = tf.boolean_mask(x, x[:, 0] > 0)
        joined = tf.concat([x, kept], 0)
        return tf.reduce_sum(tf.slice(joined, [0, 0], [tf.shape(kept)[0], 4]))

    graph = trace(step_of(function, tf.TensorSpec([32, 4]))).graph
    (joined,) = (op for op in graph.ops if op.name.startswith("concat") and len(op.inputs) == 3)
    (part,) = (op for op in graph.ops if op.type == "Slice")
    assert not graph.data.unsized
    for op in (joined, part):
        assert graph.tensors[op.outputs[0]].size_bytes == 2 * 32 * 4 * 4


def test_what_branches_compute_of_constants_alone_is_kept():
    """Keras's gradient accumulation begins anew with zeros: in a branch, and there for good."""

    def function(x):
        grown = tf.cond(x[0, 0] > 0, lambda: tf.zeros([32, 64]), lambda: x + 1)
        return tf.reduce_sum(grown)

    graph = trace(step_of(function, tf.TensorSpec([32, 64]))).graph
    (branch,) = (op for op in graph.ops if op.attrs.get("scratch_bytes") is not None)
    assert max(branch.attrs["kept_bytes"]) == 32 * 64 * 4
    assert sum(branch.attrs["kept_bytes"]) < 1.5 * 32 * 64 * 4
    # While it is computed, the constants that it is made of lie there, too.
    assert 32 * 64 * 4 in branch.attrs["folding_bytes"]
    assert len(branch.attrs["folding_bytes"]) > 1


def test_numbers_that_shapes_are_inferred_with_in_branches_are_kept_by_graphs_alone():
    def function(x):
        return tf.reduce_sum(tf.cond(x[0, 0] > 0, lambda: tf.reshape(x, [64, 32]), lambda: x))

    graph = trace(step_of(function, tf.TensorSpec([32, 64]))).graph
    (branch,) = (op for op in graph.ops if op.attrs.get("scratch_bytes") is not None)
    assert branch.attrs["looked_at_bytes"] == (8,)
    assert branch.attrs["kept_bytes"] == (8,)


def test_constants_that_hold_the_same_are_told():
    def function(x):
        parts = [tf.constant([0.5, 1.5]), tf.constant([0.5, 1.5]), tf.constant([0.5, 2.5])]
        return tf.reduce_sum(x + tf.concat(parts, 0))

    graph = trace(step_of(function, tf.TensorSpec([2, 6]))).graph
    held = [op.outputs[0] for op in graph.ops if graph.tensors[op.outputs[0]].shape == (2,)][:3]
    equal = graph.data.equal
    assert (equal.get(held[1]), equal.get(held[0]), equal.get(held[2])) == (held[0], None, None)


def test_strings_that_a_step_holds_take_what_stands_for_them(tmp_path):
    """As names of summaries do; of what is computed, nothing is known."""
    weight = tf.Variable(tf.ones([4, 4]))
    writer = tf.summary.create_file_writer(str(tmp_path))

    def step(x):
        loss = tf.reduce_mean((x @ weight) ** 2)
        with writer.as_default():
            tf.summary.write("loss", loss, step=1)
            tf.summary.write("a name that is longer than what stands for it", loss, step=1)
        return loss

    graph = trace(step_of(step, tf.TensorSpec([8, 4]))).graph
    held = [graph.tensors[t] for op in graph.ops if op.type == "Const" for t in op.outputs]
    assert {t.size_bytes for t in held if t.dtype == "string"} == {STRING_BYTES}


def test_constants_that_hold_one_number_are_told():
    def function(x):
        zeros, two, both = tf.zeros([3]), tf.constant([[2.0]]), tf.constant([2.0, 3.0, 2.0])
        return tf.reduce_sum(x * zeros + two - both)

    graph = trace(step_of(function, tf.TensorSpec([2, 3]))).graph
    told = {graph.tensors[t].shape: number for t, number in graph.data.uniform.items()}
    assert (told[3,], told[1, 1]) == (b"float32" + bytes(4), b"float32" + b"\0\0\0\x40")
    assert len([t for t in graph.data.uniform if graph.tensors[t].dtype == "float32"]) == 2


def test_where_the_parts_of_a_concat_begin_is_known():
    """A flat gradient is cut into its parts there, those of the gradient of a concat."""
    parts = [tf.Variable(tf.ones([size])) for size in (16, 32)]

    def function(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.concat(parts, 0) * x)
        return tape.gradient(loss, parts)

    graph = trace(step_of(function, tf.TensorSpec([48]))).graph
    (offset,) = (op for op in graph.ops if op.type == "ConcatOffset")
    assert [graph.data.values[t] for t in offset.outputs] == [(0,), (16,)]


def test_small_tensors_that_a_step_captured_are_arguments():
    """TensorFlow shows them as constants, and computes with them in each step."""
    scale = tf.constant([4.0, 9.0])
    step = step_of(lambda x: tf.reduce_sum(x * tf.sqrt(scale)), tf.TensorSpec([3, 2]))
    graph = trace(step).graph
    (captured,) = (graph.tensors[t] for t in graph.data.captures)
    (root,) = (op for op in graph.ops if op.type == "Sqrt")
    assert root.inputs == (captured.id,)
    assert step.function.get_concrete_function().graph.get_operation_by_name(
        graph.ops[captured.op].name
    ).type == "Const"  # fmt: skip
    assert graph.ops[captured.op].type == "Placeholder"
    assert not graph.folded[root.id]


def test_what_is_drawn_in_a_captured_shape_is_the_batch():
    shape, weight = tf.constant([32, 16]), tf.Variable(tf.ones([16, 4]))
    graph = trace(step_of(lambda: tf.reduce_sum(tf.random.normal(shape) @ weight))).graph
    assert [graph.ops[graph.tensors[t].op].type for t in graph.batch] == ["RandomStandardNormal"]


@pytest.mark.parametrize("updated", [False, True])
def test_a_variable_that_is_updated_too_is_not_written_in_place(updated: bool):
    """TensorFlow copies what is read by copying before it adds to it: it would move each time."""
    average = tf.Variable(tf.zeros([4]))

    def step(x):
        average.assign(0.9 * average)
        if updated:
            average.assign_add(tf.reduce_mean(x, 0))
        return tf.reduce_sum(x)

    assert bool(placed(trace(step_of(step, tf.TensorSpec([2, 4]))).graph)) is not updated
