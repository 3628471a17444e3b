"""What ops are, apart from their names and where they stand."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from memtrade.op_types import ALIAS_TYPES, CALL_TYPES, READ_TYPES, SOURCE_TYPES
from memtrade.tf.calls import Calls


class Definitions:
    """The distinct definitions of kernels, without what makes each node its own.

    Attributes:
        places: definition, and what it calls -> its place, in the order of first use.
    """

    def __init__(self, graph_def: Any, calls: Calls | None = None):
        self.places: dict[tuple[bytes, bytes], int] = {}
        self._place_of: dict[str, int] = {}
        for node in graph_def.node:
            if node.op in ALIAS_TYPES | READ_TYPES | SOURCE_TYPES:
                continue
            if node.op in CALL_TYPES:
                definition = calls.alone(node) if calls else None
                if definition is None:
                    continue
            else:
                bare = tf.compat.v1.NodeDef(op=node.op)
                for key, value in node.attr.items():
                    if not key.startswith("_"):
                        bare.attr[key].CopyFrom(value)
                definition = bare.SerializeToString(deterministic=True), b""
            self._place_of[node.name] = self.places.setdefault(definition, len(self.places))

    @property
    def functions(self) -> dict[int, bytes]:
        return {place: called for (_, called), place in self.places.items() if called}

    def place_of(self, name: str) -> int:
        return self._place_of.get(name, -1)


def simple_attrs(node: Any) -> dict[str, Any]:
    """The attributes that cost models read: numbers, strings, types and lists of them."""
    simple: dict[str, Any] = {}
    for key, value in node.attr.items():
        kind = value.WhichOneof("value")
        if key.startswith("_") or kind is None:
            continue
        if kind in ("i", "f", "b"):
            simple[key] = getattr(value, kind)
        elif kind == "s":
            simple[key] = value.s.decode(errors="replace")
        elif kind == "type":
            simple[key] = tf.as_dtype(value.type).name
        elif kind == "list" and value.list.i:
            simple[key] = list(value.list.i)
    return simple
