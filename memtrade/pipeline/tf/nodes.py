"""The nodes of a graph in the making, each on its stage's device, in its stage's order."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from memtrade.tf.nodes import NodeDef, copied, make_node, set_attributes


class NodeWriter:
    """Writes nodes. Those that are pinned form, stage by stage, one total order.

    A *reference* is a tensor as a node's input names it, "op" or "op:1".

    Attributes:
        devices: of the stages.
        nodes: by name.
    """

    def __init__(self, devices: Sequence[str]):
        self.devices = devices
        self.nodes: dict[str, NodeDef] = {}
        self._last = [""] * len(devices)  # the last op in each stage's order

    def add(
        self,
        stage: int,
        name: str,
        op: str | NodeDef,
        inputs: Iterable[str],
        attrs: dict[str, Any] | None = None,
        *,
        on_host: bool = False,
    ) -> NodeDef:
        """A node on the stage or its host, outside its order: of an op type, or a copy of a node
        of another graph."""
        make = make_node if isinstance(op, str) else copied
        node = make(op, name, inputs)
        node.device = host_of(self.devices[stage]) if on_host else self.devices[stage]
        set_attributes(node, attrs or {})
        self.nodes[name] = node
        return node

    def pin(self, stage: int, node: NodeDef) -> None:
        """Puts a node at the end of its stage's order."""
        if self._last[stage]:
            node.input.append("^" + self._last[stage])
        self._last[stage] = node.name

    def chain(self, stage: int, name: str, *given: Any, **named: Any) -> str:
        """Like `add`, at the end of the stage's order. The node's name."""
        self.pin(stage, self.add(stage, name, *given, **named))
        return name

    def chain_group(self, stage: int, nodes: Sequence[NodeDef]) -> None:
        """Puts nodes at the end of the stage's order; the first one starts them, the last one ends
        them, and those between hang together by themselves."""
        for node in nodes:
            node.device = node.device or self.devices[stage]
            self.nodes[node.name] = node
        self.pin(stage, nodes[0])
        self._last[stage] = nodes[-1].name

    def number(
        self, stage: int, name: str, value: float, dtype: tf.DType, *, on_host: bool = False
    ) -> str:
        """A constant of the stage, written once."""
        if name not in self.nodes:
            self.add(stage, name, "Const", [], const(value, dtype), on_host=on_host)
        return name

    def leave_only(self, stage: int, *, groups: Sequence[str]) -> None:
        """Takes the nodes of all other stages away. A group waits for those of its nodes that are
        left, on the stage's host."""
        host = host_of(self.devices[stage])
        for name in groups:
            self.nodes[name].device = host
        own = (self.devices[stage], host)
        self.nodes = {name: node for name, node in self.nodes.items() if node.device in own}
        for name in groups:
            left = [each for each in self.nodes[name].input if each.removeprefix("^") in self.nodes]
            self.nodes[name].ClearField("input")
            self.nodes[name].input.extend(left)


def host_of(device: str) -> str:
    """The CPU beside a GPU; a CPU is its own host."""
    place, _, kind = device.rpartition("/device:")
    return f"{place}/device:CPU:0" if kind.startswith("GPU") else device


def output(name: str, index: int) -> str:
    """The reference to an output of a node."""
    return f"{name}:{index}" if index else name


def const(value: Any, dtype: tf.DType) -> dict[str, Any]:
    """The attributes of a Const."""
    return {"dtype": dtype, "value": np.asarray(value, dtype.as_numpy_dtype)}
