"""What a traced function closes over: tensors, and values that are asked for anew at each call.

The keys by which collectives of different replicas find each other are of the second kind. To ask
for one is to use it up, so only calls may: `ConcreteFunction.captured_inputs` asks, too, outside
of a function that is being traced, and replicas in other processes would wait for the key.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def captures(concrete: Any) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """For each input of the function's graph behind its arguments, itself and what it stands for;
    itself again where each call asks for that."""
    graph = concrete.graph
    found = list(zip(graph.internal_captures, graph.external_captures, strict=True))
    asked = tf.nest.flatten(graph.deferred_internal_captures, expand_composites=True)
    return found + [(each, each) for each in asked]
