"""Ops and tensors written into a new graph, under new ids: what stages and parts are made of."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from memtrade.graph import GraphData, Op, Tensor


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

    def data_of(self, data: GraphData, op_of: Mapping[int, int]) -> GraphData:
        """What was written as a graph: of `data`, what is told of the ops that `op_of` leads here.
        Its loss is missing if it lies elsewhere."""

        def here(t: int) -> bool:
            return data.tensors[t].op in op_of

        def local(tensors: Iterable[int]) -> tuple[int, ...]:
            return tuple(self.new[t] for t in tensors if here(t))

        def pairs(told: Mapping[int, int]) -> dict[int, int]:
            return {self.new[t]: self.new[one] for t, one in told.items() if here(t) and here(one)}

        captured = [
            pair for pair in zip(data.captures, data.capture_bytes, strict=True) if here(pair[0])
        ]
        names = {op.name for op in self.ops}
        return msgspec.structs.replace(
            data,
            ops=tuple(self.ops),
            tensors=tuple(self.tensors),
            inputs=local(data.inputs),
            captures=local(data.captures),
            capture_bytes=tuple(size for _, size in captured),
            outputs=local(data.outputs),
            control_outputs=tuple(op_of[c] for c in data.control_outputs if c in op_of),
            loss=self.new[data.loss] if here(data.loss) else 0,
            collection=local(data.collection),
            values={self.new[t]: v for t, v in data.values.items() if t in self.new},
            gathered=tuple(local(group) for group in data.gathered if all(map(here, group))),
            repeated=pairs(data.repeated),
            equal=pairs(data.equal),
            uniform={self.new[t]: number for t, number in data.uniform.items() if here(t)},
            sized={self.new[t]: how for t, how in data.sized.items() if here(t)},
            unsized=tuple(each for each in data.unsized if each.rpartition(":")[0] in names),
        )
