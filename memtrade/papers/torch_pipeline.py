"""What PyTorch's allocator has reserved after torchgpipe's steps, by stage, for a net's tape.

    clock      0   1   2   3   4   5   6   7
    stage 0   F0  F1  F2  ·   ·   R1 ·   B0 ..       F forward without a tape, R recompute, B back
    stage 1    ·  F0  F1  F2  B2  R1 B1 ..           the last micro-batch is not recomputed

Described in torchgpipe 0.0.5: its benchmarks load the net, forget the allocator's highest mark, and
do two steps without setting gradients back; a micro-batch goes backward when the one behind it has;
what goes from device to device is copied on a side stream of its micro-batch, of which a device has
32, each with segments of its own; a tensor that skips stages is copied from where it was made to
where it is read. The first of several gradients is taken over, others are added to it; gradients of
one tensor are added into new memory; a slice of a gradient is copied where an op wants it in one
piece. Not modelled: cuDNN's workspaces, and that a block which another stream used waits.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from memtrade.errors import MemtradeError
from memtrade.papers.torch_allocator import CachingAllocator, TorchTensor, copying_stream
from memtrade.papers.torch_tape import Gone, Tape, TapeOp

STEPS = 2
Update = Literal["sgd", "rmsprop"]
Held = dict[int, Any]  # tensor -> what holds its memory


class SliceOf(NamedTuple):
    """Part of a gradient: holds the whole."""

    whole: TorchTensor
    size_bytes: int


class TapeStage:
    """One device with its part of the tape.

    Attributes:
        reads: what comes from other stages, with the stage that made it and its bytes.
        hands_on: what later stages read.
    """

    def __init__(self, events: Sequence[TapeOp | Gone], limit_bytes: int | None):
        self.device = CachingAllocator(limit_bytes)
        self.events = events
        self.ops = [each for each in events if isinstance(each, TapeOp)]
        self.reads: dict[int, tuple[int, int]] = {}
        self.hands_on: set[int] = set()
        self.sizes = [size for op in self.ops for size in op.weights]
        self.values = [TorchTensor(self.device, size) for size in self.sizes]
        self.gradients: list[TorchTensor | None] = [None] * len(self.sizes)
        self.slots: list[TorchTensor] = []

    def forward(self, given: Held, *, keep: bool) -> tuple[Held, list[list[Any]]]:
        """What the stage hands on, and what each op keeps for its gradient."""
        held, kept = dict(given), []
        for event in self.events:
            if isinstance(event, Gone):
                if event.tensor not in self.hands_on:
                    held.pop(event.tensor, None)
                continue
            held[event.makes] = (
                held[event.inputs[0]]
                if event.shares
                else TorchTensor(self.device, event.size_bytes)
            )
            if keep:
                aside = [TorchTensor(self.device, event.aside_bytes)] if event.aside_bytes else []
                kept.append([held[each] for each in event.keeps] + aside)
        return {each: held[each] for each in self.hands_on if each in held}, kept

    def backward(self, gradients: Held, kept: list[list[Any]]) -> Held:
        """From the gradients of what was handed on to those of what was read."""
        at = len(self.sizes)
        for op in reversed(self.ops):
            at -= len(op.weights)
            reads = kept.pop()
            gradient = gradients.pop(op.makes, None)
            if gradient is None:
                continue
            if op.back == "new":
                self._go_back(op, gradient, gradients, at)
            else:
                for tensor, size in zip(op.inputs, op.sizes, strict=True):
                    part = gradient if op.back == "same" else _slice(gradient, size)
                    self._add(gradients, tensor, part, size)
            del reads, gradient
        return gradients

    def _go_back(self, op: TapeOp, gradient: Any, gradients: Held, at: int) -> None:
        whole = gradient
        if isinstance(gradient, SliceOf):
            whole = TorchTensor(self.device, gradient.size_bytes)
        [tensor], [size] = op.inputs, op.sizes
        made = TorchTensor(self.device, size)
        for index in range(at, at + len(op.weights)):
            own = TorchTensor(self.device, self.sizes[index])
            if self.gradients[index] is None:
                self.gradients[index] = own
        del whole
        self._add(gradients, tensor, made, size)

    def _add(self, gradients: Held, tensor: int, made: Any, size: int) -> None:
        gradients[tensor] = TorchTensor(self.device, size) if tensor in gradients else made

    def update(self, kind: Update) -> None:
        """RMSprop makes each slot as it comes to it, and a root of it for a moment."""
        if kind == "sgd":
            return
        first, root = not self.slots, None
        for size in self.sizes:
            if first:
                self.slots.append(TorchTensor(self.device, size))
            root = TorchTensor(self.device, size)
        del root


def _slice(gradient: Any, size: int) -> SliceOf:
    return SliceOf(gradient.whole if isinstance(gradient, SliceOf) else gradient, size)


class TapePipeline:
    """torchgpipe's steps over stages, or the plain net's over one.

    Args:
        tape: of one micro-batch.
        balance: how many of the net's modules each stage has.
        micro_batches: all but the last are recomputed; with one, none.
        limit_bytes: what each device has.

    Raises:
        MemtradeError: the balance is of another number of modules.
        MemoryError: a device has no more, here or in a step.
    """

    def __init__(
        self,
        tape: Tape,
        balance: Sequence[int],
        micro_batches: int,
        update: Update,
        limit_bytes: int | None = None,
    ):
        self.tape, self.count = tape, micro_batches
        self.kind: Update = update
        self.stages = _cut(tape, balance, limit_bytes)
        self.last = len(self.stages) - 1
        self.readers = {  # tensor -> the last stage that reads it
            tensor: j for j, stage in enumerate(self.stages) for tensor in stage.reads
        }
        self.batch = TorchTensor(self.stages[0].device, micro_batches * tape.image_bytes)
        self.logits_bytes = next(
            op.size_bytes for op in self.stages[-1].ops if op.makes == tape.logits
        )
        self.joined: TorchTensor | None = None

    def step(self) -> None:
        self.inputs: dict[tuple[int, int], Held] = {}
        self.kept: dict[tuple[int, int], list[list[Any]]] = {}
        self.crossing: list[Held] = [{} for _ in range(self.count)]
        self._forward()
        last = self.stages[-1].device
        logits = [crossing.pop(self.tape.logits) for crossing in self.crossing]
        self.joined = TorchTensor(last, self.count * self.logits_bytes)
        logits.clear()
        # The loss makes one tensor as large forward, and the gradient backward.
        forward = TorchTensor(last, self.count * self.logits_bytes)
        gradient = TorchTensor(last, self.count * self.logits_bytes)
        del forward
        self.gradients: dict[tuple[int, int], Held] = {
            (i, self.last): {self.tape.logits: SliceOf(gradient, self.logits_bytes)}
            for i in range(self.count)
        }
        del gradient
        self._backward()
        for stage in self.stages:
            stage.update(self.kind)

    def _tasks(self, clock: int) -> list[tuple[int, int]]:
        """(how many micro-batches came before, how many stages) at a clock."""
        return [(clock - j, j) for j in range(self.last + 1) if 0 <= clock - j < self.count]

    def _forward(self) -> None:
        for clock in range(self.count + self.last):
            for i, j in self._tasks(clock):
                stage, crossing = self.stages[j], self.crossing[i]
                given: Held = {self.tape.images: self.batch} if j == 0 else {}
                for tensor, (_, size) in stage.reads.items():
                    given[tensor] = TorchTensor(stage.device, size, stream=copying_stream(i))
                    if self.readers[tensor] == j:
                        del crossing[tensor]
                self.inputs[i, j] = given
                done, self.kept[i, j] = stage.forward(given, keep=i == self.count - 1)
                crossing |= done

    def _backward(self) -> None:
        for clock in range(self.count + self.last):
            for before, stages in self._tasks(clock):
                self._go_back(self.count - 1 - before, self.last - stages)

    def _go_back(self, i: int, j: int) -> None:
        stage, again = self.stages[j], {}
        kept = self.kept.pop((i, j))
        if i < self.count - 1:
            again, kept = stage.forward(self.inputs[i, j], keep=True)
        found = stage.backward(self.gradients.pop((i, j)), kept)
        del self.inputs[i, j], again
        for tensor, (source, size) in stage.reads.items():
            if tensor in found:
                to = self.stages[source]
                arrived = self.gradients.setdefault((i, source), {})
                copied = TorchTensor(to.device, size, stream=copying_stream(i))
                arrived[tensor] = TorchTensor(to.device, size) if tensor in arrived else copied


def _cut(tape: Tape, balance: Sequence[int], limit_bytes: int | None) -> list[TapeStage]:
    if sum(balance) != len(tape.ends):
        raise MemtradeError(
            f"the stages have {sum(balance)} modules together, the net {len(tape.ends)}"
        )
    stages, begin, module = [], 0, 0
    for modules in balance:
        module += modules
        end = tape.ends[module - 1] if module < len(tape.ends) else len(tape.events)
        stages.append(TapeStage(tape.events[begin:end], limit_bytes))
        begin = end
    maker = {tape.images: 0} | {op.makes: j for j, stage in enumerate(stages) for op in stage.ops}
    for j, stage in enumerate(stages):
        for op in stage.ops:
            for tensor, size in zip(op.inputs, op.sizes, strict=True):
                if maker[tensor] != j:
                    stage.reads[tensor] = maker[tensor], size
                    stages[maker[tensor]].hands_on.add(tensor)
    stages[-1].hands_on.add(tape.logits)
    return stages


def reserved(
    tape: Tape,
    balance: Sequence[int],
    micro_batches: int,
    update: Update,
    *,
    limit_bytes: int | None = None,
) -> list[CachingAllocator]:
    """Each device's allocator after torchgpipe's benchmark of the net. Raises MemoryError where a
    device has no more."""
    pipeline = TapePipeline(tape, balance, micro_batches, update, limit_bytes)
    for _ in range(STEPS):
        pipeline.step()
    return [stage.device for stage in pipeline.stages]
