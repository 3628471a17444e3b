"""How often a loop runs, where its condition tells before it does."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from memtrade.graph import BOUND, TRIP_COUNT
from memtrade.tf.bodies import Argument, draw_body, original
from memtrade.tf.functions import chosen_functions


def trip_count(
    condition: tf.Tensor, value: Callable[[tf.Tensor], int | None], library: Any
) -> tuple[int | None, str]:
    """From `counter < limit`; where something else may end the loop (`break`), it is a bound.

    Args:
        value: a tensor's number, as the loop begins; None where that is not known.
    """
    counts, how = [], TRIP_COUNT
    stack = [condition]
    while stack:
        t = stack.pop()
        if t.op.type in ("Identity", "LogicalAnd"):
            stack.extend(t.op.inputs)
            continue
        first = last = None
        if t.op.type in ("Less", "Greater"):
            start, limit = t.op.inputs if t.op.type == "Less" else reversed(t.op.inputs)
            first, last = value(original(start)), value(original(limit))
        elif t.op.type in ("If", "StatelessIf") and _is_false_otherwise(t, library):
            stack.append(t.op.inputs[0])
        if first is None or last is None:
            how = BOUND
        else:
            counts.append(max(0, last - first))
    return min(counts, default=None), how


def _is_false_otherwise(chosen: tf.Tensor, library: Any) -> bool:
    """Of a branch. AutoGraph asks for a `break` in one: only before the limit is reached."""
    _, otherwise = chosen_functions(chosen.op.node_def)
    arguments = [Argument(t.dtype, t.shape) for t in [*chosen.op.inputs][1:]]
    found = draw_body(library, otherwise.name, arguments).results[chosen.value_index]
    known = tf.get_static_value(original(found))
    return known is not None and not known.any()
