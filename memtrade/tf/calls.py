"""Calls that stay one op of the graph: what can be told of them by their functions' bodies."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from memtrade.graph import CALL_TYPES
from memtrade.tf.inline import called_body, op_defs
from memtrade.tf.nodes import NodeDef

_CONVOLVES = ("Conv2D", "Conv2DBackpropInput")
_FILTER_GRADIENT = "Conv2DBackpropFilter"


class Calls:
    """The calls among the nodes of a GraphDef."""

    def __init__(self, graph_def: Any):
        self._graph_def = graph_def
        self._library = {each.signature.name: each for each in graph_def.library.function}

    def about(self, node: NodeDef) -> dict[str, Any]:
        """Attributes for cost models: which inputs are the filter and the images of a convolution
        that the function makes or differentiates, and whether it makes the filter's gradient."""
        function = called_body(node, self._library)
        if function is None or node.op not in CALL_TYPES:
            return {}
        position = {each.name: i for i, each in enumerate(function.signature.input_arg)}
        found: dict[str, Any] = {}
        for each in function.node_def:
            if each.op in _CONVOLVES and each.input[1] in position:
                found["filter"] = position[each.input[1]]
            if each.op in ("Conv2D", _FILTER_GRADIENT) and each.input[0] in position:
                found["images"] = position[each.input[0]]
        if not {"filter", "images"} <= found.keys():
            return {}
        return found | {"filter_gradient": any(n.op == _FILTER_GRADIENT for n in function.node_def)}

    @cached_property
    def pure(self) -> frozenset[str]:
        """The names of calls whose functions do nothing but compute, all the way down. TensorFlow
        takes any function that XLA compiles for a stateful one."""
        calls = [node for node in self._graph_def.node if node.op in CALL_TYPES]
        if not calls:
            return frozenset()
        defined = op_defs(self._graph_def)

        def computes(node: NodeDef) -> bool:
            body = called_body(node, self._library)
            if body is None:
                return not defined[node.op].is_stateful
            return all(computes(each) for each in body.node_def)

        return frozenset(node.name for node in calls if computes(node))
