"""A step whose widest ops run in parts along the batch: below what each of them holds at once.

    FusedBatchNormGradV3      reads dy and x whole, and writes dx: three tensors of one size

    sums      for each part: slice dy, x ─► sum of dy (x - mean)           views, one part at a time
    dx        x - mean ─► times a factor ─► dy less that ─► ... ─► dx      each in x's buffer

x is nobody else's by then, so that its buffer becomes dx, op by op: two tensors and some parts. The
sums are added up in another order than the fused kernel's, so the step is equal to the original
within rounding, not to the bit (`--split reordered`).

    MaxPoolGrad ──┐           of x's size: x itself, that the one reads for the maxima and the other
    a convolution's ─ AddN    as a mask, a gradient of each of its readers, their sum, and the
              └── ReluGrad    pool's workspace

    in parts                  for each part of x: all these gradients ─► written over the part of x

These are the same to the bit: `--split exact` leaves batch norms whole. Where no batch norm is
wide, `reordered` has all that is wide in parts, forward and backward (`memtrade.tf.by_example`).
After TSPLIT (Nie et al., ICDE 2022), which splits tensors as a fourth decision beside keep,
recompute and swap; here which ops are split follows from the graph alone.

Only ops that TensorFlow has. StridedSlice of the first dimension is a view. ScatterNdNonAliasingAdd
adds in place where nobody else reads its input: first what was there, negative, and then what is to
be there, exactly. (TensorScatterUpdate would say it in one word, but tries to take over its third
input in place of its first, and so always copies.)
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.options import PARTS, REORDERED
from memtrade.tf.by_example import chosen_ways, split_by_example
from memtrade.tf.extract import opened
from memtrade.tf.graft import graft
from memtrade.tf.nodes import reached, readers
from memtrade.tf.rows import RULES
from memtrade.tf.step import TrainStep

# Of one example alone, MaxPool's gradient adds up what overlapping windows give in another order.
_LEAST_EXAMPLES = 2
# Of the widest, ops that make less than this share do not bound the step.
_WIDE = 2 / 3

_BATCH_NORM, _BATCH_NORM_GRADIENT = "FusedBatchNormV3", "FusedBatchNormGradV3"
_POOL_GRADIENT = "MaxPoolGrad"

# The gradients of activations, and which of their inputs are the gradient and x.
_MASKS = {
    "EluGrad": (0, 1),
    "LeakyReluGrad": (0, 1),
    "Relu6Grad": (0, 1),
    "ReluGrad": (0, 1),
    "SeluGrad": (0, 1),
    "SigmoidGrad": (1, 0),
    "TanhGrad": (1, 0),
}

# Of the ops that make each example of the same example (`memtrade.tf.rows`), those of a gradient
# behind a pool, which make the same bits of some examples.
_SAME_BITS = frozenset({"AddN", "AvgPoolGrad", "Conv2DBackpropInput", "Identity", _POOL_GRADIENT})


def split_step(step: TrainStep, split: str, parts: int = PARTS) -> TrainStep:
    """`step` with its widest gradients in so many parts, which differ by one example where the
    batch cannot be divided evenly; in fewer, where one would have a single example.

    Args:
        split: EXACT, or REORDERED for batch norms' too.

    Raises:
        UnsupportedGraphError: there is nothing to split, or nothing to divide.
    """
    concrete = step.function.get_concrete_function(*step.specs)
    function = in_parts(concrete, step.specs, step.name, split, parts)
    return dataclasses.replace(step, name=f"{step.name} in parts", function=function)


def in_parts(
    concrete: Any, specs: Sequence[tf.TensorSpec], name: str, split: str, parts: int = PARTS
) -> Callable[..., Any]:
    """A tf.function of `specs` that does as `concrete` does, see `split_step`."""
    concrete = opened(concrete, specs)
    wide = _widest(concrete.graph, split)
    norms = any(op.type == _BATCH_NORM_GRADIENT for op, _ in wide.values())
    batch = _batch(concrete.graph.inputs[: len(specs)])
    by_example = split == REORDERED and not norms and batch
    ways = chosen_ways(concrete.graph, batch) if by_example else {}
    if not wide and not ways:
        others = ""
        if split == REORDERED:
            others = ", no batch norm (float32, training) and no op that works example by example"
        raise UnsupportedGraphError(
            f"{name} has no gradient of an activation behind a pool, channels last{others}: "
            "nothing can be split, leave --split out"
        )
    if any(t.shape[0] == 1 for t in (*batch, *(op.outputs[0] for op, _ in wide.values()))):
        raise UnsupportedGraphError("a batch of 1 has no parts: leave --split out")
    if ways:
        return split_by_example(concrete, specs, ways, _ranges(batch[0], parts, least=1))
    graph_def = concrete.graph.as_graph_def()
    made = tf.compat.v1.GraphDef(library=graph_def.library, versions=graph_def.versions)
    renamed: dict[Any, Any] = {}  # references
    whole = {each.name for _, masked in wide.values() for each in masked}
    for node in graph_def.node:
        if node.name in whole:
            continue
        if node.name not in wide:
            made.node.append(node)
            continue
        op, masked = wide[node.name]
        if op.type == _BATCH_NORM_GRADIENT:
            made.node.extend(_batch_norm_in_parts(node, op, parts))
            for index, name in ((1, "scale"), (2, "offset")):
                renamed[f"{node.name}:{index}"] = f"{node.name}/split/{name}"
        else:
            made.node.extend(_mask_in_parts(node, op, masked, parts))
    for node in made.node:
        kept = [each for each in node.input if each.removeprefix("^") not in whole]
        node.input[:] = [renamed.get(reference, reference) for reference in kept]
    results = [renamed.get(t.name, t.name) for t in concrete.graph.outputs]
    return graft(concrete, made, specs, results=results)


class _Wide(NamedTuple):
    """An op that holds most, and, where that is a mask, what makes the gradient that it masks."""

    op: tf.Operation
    masked: Sequence[tf.Operation] = ()


def _widest(func_graph: Any, split: str) -> dict[str, _Wide]:
    """By name, the batch norms' gradients that hold most, and as wide gradients of activations that
    are made by example."""
    operations = func_graph.get_operations()
    norms = [_Wide(op) for op in operations if split == REORDERED and _is_splittable(op)]
    masks = [_Wide(op, _masked(op)) for op in operations if op.type in _MASKS]
    found = norms + [each for each in masks if each.masked]
    least = _WIDE * max((_elements(each.op) for each in norms or found), default=0)
    return {each.op.name: each for each in found if _elements(each.op) > least}


def _elements(op: tf.Operation) -> int:
    return op.outputs[0].shape.num_elements()


def _gradient_and_x(op: tf.Operation) -> tuple[tf.Tensor, tf.Tensor]:
    """What a gradient of an activation reads."""
    gradient, x = (op.inputs[i] for i in _MASKS[op.type])
    return gradient, x


def _masked(op: tf.Operation) -> list[tf.Operation]:
    """The ops of x's size that make nothing but the gradient that `op` masks, example by example,
    from inputs to outputs; none where no pool's is among them, as what others hold may leave
    meanwhile, and none where a size is not known."""
    found: list[tf.Operation] = []
    gradient, x = _gradient_and_x(op)
    waiting = [gradient] if x.shape.is_fully_defined() else []
    while waiting:
        tensor = waiting.pop()
        own = len(tensor.consumers()) == 1 and tensor.shape == x.shape
        if own and tensor.op.type in _SAME_BITS and _in_rows(tensor.op):
            found.append(tensor.op)
            waiting += _rows(tensor.op)
    pools = any(each.type == _POOL_GRADIENT for each in found)
    return found[::-1] if pools and not _is_read_behind(op, x) else []


def _is_read_behind(op: tf.Operation, x: tf.Tensor) -> bool:
    """Whether anybody reads x who needs the output of `op`: then x cannot be written over."""
    others = {each.name for each in x.consumers()} - {op.name}
    return not others.isdisjoint(reached([op], readers))


def _in_rows(op: tf.Operation) -> bool:
    """Whether it runs on some examples, and the images' channels come last, as far as the op looks
    at them."""
    last = op.type in ("AddN", "Identity") or op.get_attr("data_format") == b"NHWC"
    return last and RULES[op.type](op) is not None


def _rows(op: tf.Operation) -> list[tf.Tensor]:
    """The inputs of which an example of the output reads just its own."""
    way = RULES[op.type](op)
    return [op.inputs[i] for i in way.rows] if way else []


def _is_splittable(op: tf.Operation) -> bool:
    if op.type != _BATCH_NORM_GRADIENT:
        return False
    forward = op.inputs[3].op
    return (
        op.get_attr("is_training")
        and forward.type == _BATCH_NORM
        and forward.get_attr("exponential_avg_factor") == 1.0
        and op.get_attr("data_format") == b"NHWC"
        and op.inputs[0].dtype == tf.float32
        and op.inputs[1].shape.is_fully_defined()
    )


def _batch_norm_in_parts(node: Any, op: tf.Operation, parts: int) -> list[Any]:
    # What the forward op reserves for its gradient is the variance on CPUs and another number on
    # GPUs; what it returns beside is the same everywhere.
    forward = op.inputs[3].op.outputs
    with tf.Graph().as_default() as graph:
        given = _placeholders([*op.inputs[:3], *forward[1:3]])
        dx, scale, offset = _batch_norm_gradient(given, op.get_attr("epsilon"), parts)
        tf.identity(scale, "scale")
        tf.identity(offset, "offset")
        tf.identity(dx, "dx")
    references = [*node.input[:3], *(t.name for t in forward[1:3])]
    return _spliced(graph, node, references)


def _mask_in_parts(
    node: Any, op: tf.Operation, made: Sequence[tf.Operation], parts: int
) -> list[Any]:
    """`made`: see `_masked`."""
    own = {each.outputs[0].name for each in made}
    outside = {t.name: t for each in made for t in each.inputs if t.name not in own}
    _, x = _gradient_and_x(op)
    outside[x.name] = x
    rows = {t.name for each in made for t in _rows(each)} | {x.name}
    with tf.Graph().as_default() as graph:
        given = dict(zip(outside, _placeholders(list(outside.values())), strict=True))
        written = given[x.name]
        for start, end in _ranges(x, parts):
            here = {
                name: (t if name != x.name else written)[start:end] if name in rows else t
                for name, t in given.items()
            }
            for each in [*made, op]:
                here[each.outputs[0].name] = _on_part(graph, each, here, end - start)
            written = _written(written, here[op.outputs[0].name], start, end)
        tf.identity(written, "dx")
    # Who else reads x must have: it is written over.
    others = [each.name for each in x.consumers() if each is not op and each not in made]
    return _spliced(graph, node, list(outside), waits=others)


def _on_part(graph: Any, op: Any, here: dict[str, tf.Tensor], examples: int) -> tf.Tensor:
    """The same op on some examples; the shape that it may be told says how many."""
    inputs = [here[t.name] for t in op.inputs]
    way = RULES[op.type](op)
    if way and way.told is not None:
        inputs[way.told] = tf.constant([examples, *op.outputs[0].shape.as_list()[1:]])
    elif op.type == _POOL_GRADIENT:
        # Of a pool's own output it takes other steps than of a slice, which may round otherwise.
        with tf.control_dependencies([inputs[2]]):
            inputs[1] = _same(graph, "MaxPool", op, inputs[:1])
    return _same(graph, op.type, op, inputs)


def _same(graph: Any, kind: str, op: Any, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """A `kind` with the attributes of `op`."""
    attributes = dict(op.node_def.attr)
    return graph.create_op(kind, inputs, [op.outputs[0].dtype], attrs=attributes).outputs[0]


def _placeholders(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.compat.v1.placeholder(t.dtype, t.shape, f"given{i}") for i, t in enumerate(tensors)]


def _spliced(
    graph: Any, node: Any, references: Sequence[str], waits: Sequence[str] = ()
) -> list[Any]:
    """The nodes of `graph` in place of `node`: the last one, dx, has its name. Placeholders become
    the references; what else must have run is in `waits`."""
    outside = {f"given{i}": reference for i, reference in enumerate(references)}
    waits = [each for each in node.input if each.startswith("^")] + [f"^{each}" for each in waits]
    made = []
    for each in graph.as_graph_def().node:
        if each.op == "Placeholder":
            continue
        for i, one in enumerate(each.input):
            wait, own = ("^" if one.startswith("^") else ""), one.removeprefix("^")
            each.input[i] = outside.get(one) or f"{wait}{node.name}/split/{own}"
        if each.input:  # constants wait for nothing
            each.input.extend(waits)
        each.name = node.name if each.name == "dx" else f"{node.name}/split/{each.name}"
        each.device = node.device
        made.append(each)
    return made


def _batch(arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Those whose first dimension counts examples, as that of the first one that has any does."""
    having = [t for t in arguments if t.shape.rank]
    return [t for t in having if t.shape[0] == having[0].shape[0]]


def _ranges(x: tf.Tensor, parts: int, least: int = _LEAST_EXAMPLES) -> list[tuple[int, int]]:
    """First and last row, exclusive, of each part, which has at least so many."""
    batch = x.shape.as_list()[0] or 1
    count = max(1, min(parts, batch // least))
    return list(itertools.pairwise(batch * i // count for i in range(count + 1)))


def _written(x: tf.Tensor, part: tf.Tensor, start: int, end: int) -> tf.Tensor:
    """`x` with other rows: in its own place where nobody else reads it."""
    rows = tf.constant([[row] for row in range(start, end)])
    nothing = -x[start:end]
    with tf.control_dependencies([part]):  # or the slices that it reads would still be there
        x = tf.raw_ops.ScatterNdNonAliasingAdd(input=x, indices=rows, updates=nothing)
    return tf.raw_ops.ScatterNdNonAliasingAdd(input=x, indices=rows, updates=part)


def _batch_norm_gradient(
    given: Sequence[tf.Tensor], epsilon: float, parts: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Of `x`, of the scale, of the offset."""
    dy, x, weight, mean, variance = given
    values = x.shape.num_elements() // x.shape[-1]
    offset = tf.reduce_sum(dy, [0, 1, 2])
    moments = [
        tf.reduce_sum((x[start:end] - mean) * dy[start:end], [0, 1, 2])
        for start, end in _ranges(x, parts)
    ]
    moment = tf.add_n(moments)
    # What is returned is corrected for moving averages (n / (n - 1)).
    inverse = tf.math.rsqrt(variance * ((values - 1) / values) + epsilon)
    # dx = weight / sigma (dy - mean of dy - (x - mean) / sigma^2 x mean of dy (x - mean)), from
    # the inside out, so that each op finds x's buffer free for what it makes.
    slope, shift = inverse * inverse * moment / values, offset / values
    with tf.control_dependencies([offset, moment]):
        dx = x - mean
    dx = (dy - dx * slope - shift) * (weight * inverse)
    return dx, moment * inverse, offset
