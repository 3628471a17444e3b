"""Facts that were learned where they are used, over shipped ones for what nobody has asked yet."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from memtrade.facts.kernel import SCRATCH, Fact, Facts, Request
from memtrade.facts.shipped import reuse
from memtrade.facts.signature import Signature, signature_of
from memtrade.facts.views import viewed
from memtrade.graph import Op, StepGraph
from memtrade.op_types import RESERVING_TYPES

Lasting = Literal["ever", "room", "day", "run"]


class Learned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one kernel was seen to do.

    Attributes:
        key: of its signature.
        kernel: what people read: the op type and its shapes.
        requests: (bytes, output or -1 for scratch), in order; bytes below 0 are given back.
        reused: (output or -1 for scratch, position of the input whose buffer it took).
        seconds: of one run; None where it was not run.
        in_place_seconds: of one whose output took an input's place, where it may.
        disturbed: the seconds are from a machine that was busy with other things.
        margin_bytes: by how much the scratch may be larger.
        source: "asked"; "fitted", from the same kernel on fewer examples; or "refused", and why.
        on: the day.
        lasts: how long a refusal does: for ever; until there is more "room" than `limit_bytes`;
            the "day"; or the "run", and is not kept.
        op_class, flops, bytes_moved: what the cost model counts of it, for the device's rates.
    """

    key: str
    kernel: str
    requests: tuple[tuple[int, int], ...] = ()
    reused: tuple[tuple[int, int], ...] = ()
    seconds: float | None = None
    in_place_seconds: float | None = None
    disturbed: bool = False
    margin_bytes: int = 0
    source: str
    on: str
    lasts: Lasting = "ever"
    limit_bytes: int = 0
    op_class: str = ""
    flops: int = 0
    bytes_moved: int = 0

    @property
    def op_type(self) -> str:
        return self.kernel.partition(" ")[0]


class LearnedFacts:
    """Facts of one device, learned, over `base`."""

    def __init__(self, base: Facts, table: Mapping[str, Learned]):
        self.base, self.table = base, table
        # Of each type that was asked: (output, position of the input whose buffer it took).
        self._reused: dict[str, dict[tuple[int, int], None]] = {}
        for each in table.values():
            if each.requests:  # a view says nothing of others of its type
                self._reused.setdefault(each.op_type, {}).update(dict.fromkeys(each.reused))

    @property
    def name(self) -> str:
        return f"asked here, else {self.base.name}"

    @property
    def merges(self) -> bool:
        return self.base.merges

    def is_known(self, op_type: str) -> bool:
        return op_type in self._reused or self.base.is_known(op_type)

    def of(self, op: Op, graph: StepGraph) -> Fact:
        signature = signature_of(op, graph)
        known = self.table.get(signature.key) if signature else None
        if known is None:
            return self.base.of(op, graph)
        if not known.requests:
            return self.base.of(op, graph)._replace(
                margin_bytes=known.margin_bytes, source=known.source
            )
        hidden = len(op.outputs)
        requests = tuple(
            Request(size, slot, self._positions(op, graph, slot, size))
            for size, slot in _in_full(known.requests, op, graph)
            if slot < hidden
        )
        seconds = known.seconds
        if known.in_place_seconds is not None and _in_place(requests, op, graph):
            seconds = known.in_place_seconds
        return Fact(
            requests,
            seconds=seconds,
            margin_bytes=known.margin_bytes,
            workspace_bytes=sum(size for size, slot in known.requests if slot >= hidden),
            source=known.source,
        )

    def _positions(self, op: Op, graph: StepGraph, slot: int, size_bytes: int) -> tuple[int, ...]:
        """Whose buffer a request may get: as the table says, or else as was seen of the type, in
        the order of its inputs, in which kernels try them."""
        if op.type in reuse().tried:
            return () if slot == SCRATCH else reuse().positions(op, graph, slot)
        dtype = None if slot == SCRATCH else graph.tensors[op.outputs[slot]].dtype
        inputs = [graph.tensors[t] for t in op.inputs]
        return tuple(
            position
            for own, position in sorted(self._reused.get(op.type, ()))
            if own == slot
            and inputs[position].size_bytes == size_bytes
            and dtype in (None, inputs[position].dtype)
        )


def _in_full(
    requests: Sequence[tuple[int, int]], op: Op, graph: StepGraph
) -> Iterator[tuple[int, int]]:
    """With outputs as large as the graph says: a kernel that was asked with made-up values may have
    made less (a segment_mean whose ids are all the same makes one row), or more, where values
    decide the shape (a mask's rows)."""
    most = {slot: max(size for size, of in requests if of == slot) for _, slot in requests}
    for size, slot in requests:
        if 0 <= slot < len(op.outputs) and size == most[slot]:
            made = graph.tensors[op.outputs[slot]]
            decided = made.id in graph.data.sized and op.type not in RESERVING_TYPES
            size = made.size_bytes if decided else max(size, made.size_bytes)
        yield size, slot


def _in_place(requests: tuple[Request, ...], op: Op, graph: StepGraph) -> bool:
    """Whether an output will take an input's place, as a rule: nobody else reads that input."""
    return any(
        each.output != SCRATCH and _only_reader(op, op.inputs[position], graph)
        for each in requests
        for position in each.forwarded
    )


def _only_reader(op: Op, tensor: int, graph: StepGraph) -> bool:
    if not graph.is_intermediate(tensor):
        return False
    readers = graph.readers(graph.root[tensor])
    return all(c == op.id or viewed(graph.ops[c], graph) is not None for c in readers)


def kernel_text(signature: Signature) -> str:
    """The op type and the shapes of its inputs, such as "Relu 32x56x56x64"."""
    shapes = ["x".join(map(str, each.shape)) or "scalar" for each in signature.inputs]
    return f"{signature.op_type} {', '.join(shapes)}"
