"""A step on several devices, in parts: a StepGraph per device, that is planned by itself.

    device 0   x0 ─ conv ─ loss ─ ... ─ dw ─┬ all-reduce ┬─ update        a part
    device 1   x1 ─ conv ─ loss ─ ... ─ dw ─┘            └─ update ─ Send       another
    host       Receive ─ mean of losses                                   left as it is

What one device hands to another is a Send in the one part and a Receive in the other: they make no
nodes, but say when a tensor is wanted, and when it is there. Collectives (an all-reduce) are ops
of their parts; those of a group wait for each other.

Each part is put in an order of its own, so the orders must agree on what devices wait for. One
order of all ops, with each group of collectives in one place, gives every Send, Receive and
collective its rank; within each part these run by rank. A wait from one device to another then
leads from a lower rank to a higher one, and so does every way through a part between two of them:
no way leads back, and nothing hangs. O(ops + edges).
"""

import heapq
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import GraphData, Op, led_to, reached
from memtrade.graph_writer import GraphWriter
from memtrade.op_types import RECEIVE, SEND

# The ops by which devices wait for each other, by the beginning of their types.
COLLECTIVES = ("Collective", "Nccl")

# What tells the groups of devices apart that collectives are among: attributes, or an input, the
# third of most types.
_GROUP_ATTRS = ("group_key", "shared_name")
_GROUP_INPUT = {"CollectiveBcastRecvV2": 1}

# Who receives is of one group with who sends.
_SENDING = {
    "CollectiveBcastRecv": "CollectiveBcastSend",
    "CollectiveBcastRecvV2": "CollectiveBcastSendV2",
}


@dataclass(frozen=True)
class Part:
    """What one device does of a step. `data` has no loss yet.

    Attributes:
        tensor_of: the step's tensor -> the part's.
    """

    device: str
    data: GraphData
    tensor_of: Mapping[int, int]


def is_collective(op: Op) -> bool:
    """Whether the op waits for other devices, itself or in one of its branches."""
    return op.type.startswith(COLLECTIVES) or bool(op.attrs.get("collective"))


def groups_of(data: GraphData, devices: Sequence[str]) -> list[list[int]]:
    """The collectives that wait for each other, by op ids: of each kind and group, the first one
    of every device, the second one of every device, and so on.

    Args:
        devices: of each op.

    Raises:
        UnsupportedGraphError: some devices have more of them than others.
    """
    lines: dict[Hashable, dict[str, list[int]]] = {}
    for op in data.ops:
        if is_collective(op):
            lines.setdefault(_kind(op, data), {}).setdefault(devices[op.id], []).append(op.id)
    found = []
    for by_device in lines.values():
        counts = {device: len(ops) for device, ops in by_device.items()}
        if len(set(counts.values())) > 1:
            first = data.ops[next(iter(by_device.values()))[0]]
            told = ", ".join(f"{count} on {device}" for device, count in counts.items())
            raise UnsupportedGraphError(
                f"op {first.name!r} ({first.type}) waits for other devices, which have another "
                f"number of such ops ({told}): each replica must run the same ones"
            )
        found += [list(group) for group in zip(*by_device.values(), strict=True)]
    return found


def _kind(op: Op, data: GraphData) -> Hashable:
    """The same for collectives that may be of one group: their type, and the group's key, an
    attribute or, as of the second version of ops, an input."""
    told = next((op.attrs[name] for name in _GROUP_ATTRS if name in op.attrs), None)
    position = _GROUP_INPUT.get(op.type, 2)
    if told is None and len(op.inputs) > position:
        told = data.values.get(op.inputs[position])
    return _SENDING.get(op.type, op.type), told


def ranks(data: GraphData, groups: Iterable[Sequence[int]]) -> list[int]:
    """Of each op its place in one order of all, in which those of a group are in one place; as
    they were created otherwise.

    Raises UnsupportedGraphError where there is no such order: the step as it is would hang.
    """
    first = list(range(len(data.ops)))  # of each op, the one that stands for its group
    members: dict[int, Sequence[int]] = {}
    for group in groups:
        members[min(group)] = group
        for op_id in group:
            first[op_id] = min(group)
    waiting = [0] * len(data.ops)
    successors: list[list[int]] = [[] for _ in data.ops]
    for op in data.ops:
        for before in {data.tensors[t].op for t in op.inputs} | set(op.controls):
            if first[before] != first[op.id]:
                successors[first[before]].append(first[op.id])
                waiting[first[op.id]] += 1
    heap = [op.id for op in data.ops if first[op.id] == op.id and not waiting[op.id]]
    rank = [-1] * len(data.ops)
    place = 0
    while heap:
        op_id = heapq.heappop(heap)
        for member in members.get(op_id, (op_id,)):
            rank[member] = place
        place += 1
        for successor in successors[op_id]:
            waiting[successor] -= 1
            if not waiting[successor]:
                heapq.heappush(heap, successor)
    if -1 in rank:
        name = data.ops[rank.index(-1)].name
        raise UnsupportedGraphError(f"op {name!r} waits for itself through other devices")
    return rank


def split(data: GraphData, devices: Sequence[str]) -> list[Part]:
    """The parts of a step, in the order in which its devices come up.

    Args:
        devices: of each op.

    Raises:
        UnsupportedGraphError: see `groups_of` and `ranks`.
    """
    rank = ranks(data, groups_of(data, devices))
    order = sorted(range(len(data.ops)), key=lambda op_id: (rank[op_id], op_id))
    leaving = {
        before
        for op in data.ops
        for before in _before(op, data)
        if devices[before] != devices[op.id]
    }
    return [_Cut(data, devices, device, leaving).part(order) for device in dict.fromkeys(devices)]


def losses(data: GraphData, devices: Sequence[str]) -> dict[str, int]:
    """Of each device its own loss, by the step's tensor ids, as far as the step's loss leads there.

    Losses of replicas are summed across devices, by a collective or an op on one of them. So the
    way goes back from the step's loss along numbers, and on each device it is the last one that
    comes from the batch and waits for no other device. Where the loss is one device's alone, the
    others have theirs at the same place: the n-th result of ops of that type and of its shapes.
    """
    partners = {op_id: group for group in groups_of(data, devices) for op_id in group}
    found = _numbers(data, partners)
    late: set[int] = set()  # wait for another device
    from_batch = led_to(data.ops, data.tensors, data.inputs)
    own: dict[str, int] = {}
    for t in found:  # ascending, so each behind what it is made of
        op = data.ops[data.tensors[t].op]
        made_of = [i for i in op.inputs if i in found]
        crosses = any(devices[data.tensors[i].op] != devices[op.id] for i in made_of)
        if crosses or op.id in partners or not late.isdisjoint(made_of):
            late.add(t)
        elif op.id in from_batch:
            own[devices[op.id]] = t
    if not own:
        own = {devices[data.tensors[data.loss].op]: data.loss}
    first = next(iter(own.values()))
    for device in dict.fromkeys(devices):
        twin = _twin(first, data, devices, device)
        if device not in own and twin is not None:
            own[device] = twin
    return own


def _numbers(data: GraphData, partners: Mapping[int, Sequence[int]]) -> list[int]:
    """The floating-point tensors of one element that the loss is made of through such tensors
    alone, itself included, ascending; through collectives, on all devices."""

    def numbers(t: int) -> Iterator[int]:
        op_id = data.tensors[t].op
        for member in partners.get(op_id, (op_id,)):
            for tensor in (data.tensors[read] for read in data.ops[member].inputs):
                one = tensor.shape is not None and all(size == 1 for size in tensor.shape)
                if one and tensor.dtype.startswith(("float", "bfloat")):
                    yield tensor.id

    return sorted(reached([data.loss], numbers))


def _twin(tensor: int, data: GraphData, devices: Sequence[str], device: str) -> int | None:
    """What `tensor` is on another device, or None."""
    made = data.tensors[tensor]

    def alike(on: str) -> list[int]:
        kind = data.ops[made.op].type
        return [
            op.outputs[made.index]
            for op in data.ops
            if op.type == kind
            and devices[op.id] == on
            and len(op.outputs) > made.index
            and data.tensors[op.outputs[made.index]].shape == made.shape
        ]

    here, there = alike(devices[made.op]), alike(device)
    return there[here.index(tensor)] if len(here) == len(there) else None


def _before(op: Op, data: GraphData) -> list[int]:
    return [*(data.tensors[t].op for t in op.inputs), *op.controls]


class _Cut:
    """One device's part, while it is being made."""

    def __init__(self, data: GraphData, devices: Sequence[str], device: str, leaving: set[int]):
        self.data, self.devices, self.device, self.leaving = data, devices, device, leaving
        self.made = GraphWriter()
        self.tensor_of = self.made.new
        self.op_of: dict[int, int] = {}  # the step's op -> the part's, a Receive of another's
        self.last: int | None = None  # the Send, Receive or collective before

    def part(self, order: Sequence[int]) -> Part:
        for op_id in order:
            if self.devices[op_id] == self.device:
                self._run(self.data.ops[op_id])
        own = {op: made for op, made in self.op_of.items() if self.devices[op] == self.device}
        return Part(self.device, self.made.data_of(self.data, own), self.tensor_of)

    def _run(self, op: Op) -> None:
        for before in dict.fromkeys(_before(op, self.data)):
            if before not in self.op_of:  # it is another device's, and wanted for the first time
                sent = self.data.ops[before]
                self._add(sent, RECEIVE, (), (), sent.outputs, meets=True)
        inputs = tuple(self.tensor_of[t] for t in op.inputs)
        controls = tuple(self.op_of[c] for c in op.controls)
        self._add(op, op.type, inputs, controls, op.outputs, meets=is_collective(op))
        if op.id in self.leaving:
            made = tuple(self.tensor_of[t] for t in op.outputs)
            self._add(op, SEND, made, (self.op_of[op.id],), (), meets=True)

    def _add(
        self,
        op: Op,
        kind: str,
        inputs: tuple[int, ...],
        controls: tuple[int, ...],
        outputs: Iterable[int],
        *,
        meets: bool,
    ) -> None:
        """`op`, or what stands for it. What `meets` another device stays behind the one before."""
        handed = kind in (SEND, RECEIVE)
        if meets and self.last is not None:
            controls = tuple(dict.fromkeys([*controls, self.last]))
        made = self.made.add(
            op.name,
            kind,
            inputs,
            [self.data.tensors[t] for t in outputs],
            controls=controls,
            stateful=op.stateful or handed,
            attrs={} if handed else op.attrs,
            node=-1 if handed else op.node,
        )
        if kind != SEND:
            self.op_of[op.id] = made.id
        if meets:
            self.last = made.id
