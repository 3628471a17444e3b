"""Ops and tensors written into a new graph, under new ids: what stages and parts are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from memtrade.graph import Op, Tensor


class GraphWriter:
    """The ops and tensors of a graph in the making.

    Attributes:
        new: tensor of the other graph -> its id here; the latest, where it was written twice.
    """

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.tensors: list[Tensor] = []
        self.new: dict[int, int] = {}

    def add(
        self,
        name: str,
        kind: str,
        inputs: Iterable[int],
        outputs: Sequence[Tensor],
        *,
        controls: Iterable[int] = (),
        stateful: bool = False,
        attrs: dict[str, Any] | None = None,
        node: int = -1,
    ) -> Op:
        """A new op. `inputs` and `controls` are ids of this graph; it makes copies of `outputs`."""
        op_id, made = len(self.ops), []
        for index, tensor in enumerate(outputs):
            made.append(len(self.tensors))
            self.new[tensor.id] = made[-1]
            copy = msgspec.structs.replace(tensor, id=made[-1], op=op_id, index=index)
            self.tensors.append(copy)
        self.ops.append(
            Op(
                id=op_id,
                name=name,
                type=kind,
                inputs=tuple(inputs),
                controls=tuple(controls),
                outputs=tuple(made),
                stateful=stateful,
                attrs=attrs or {},
                node=node,
            )
        )
        return self.ops[-1]
