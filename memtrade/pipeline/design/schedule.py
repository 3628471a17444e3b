"""Schedule: which stage works on which micro-batch when.

GPipe (Huang et al. 2018, arXiv 1811.06965): all forward, then all backward. With 3 stages and 4
micro-batches, F forward, B backward, the micro-batch's number behind:

    clock     0   1   2   3   4   5   6   7   8   9  10  11
    stage 0   F0  F1  F2  F3  .   .   .   .   B3  B2  B1  B0
    stage 1   .   F0  F1  F2  F3  .   .   B3  B2  B1  B0  .
    stage 2   .   .   F0  F1  F2  F3  B3  B2  B1  B0  .   .

Micro-batch i is on stage j at clock i + j; the backward part is the mirror image, so the last
micro-batch comes back first, as in torchgpipe.

1F1B (PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503; also called DAPPLE): a stage that
has `stages - j` micro-batches under way runs a backward before the next forward. As many clocks and
so the same bubble, but at most `stages - j` micro-batches' activations, whatever their number:

    stage 0   F0  F1  F2  .   .   B0  F3  B1  .   B2  .   B3
    stage 1   .   F0  F1  .   B0  F2  B1  F3  B2  .   B3  .
    stage 2   .   .   F0  B0  F1  B1  F2  B2  F3  B3  .   .

Recomputation: a stage that checkpoints a micro-batch keeps only what it received for it, and runs
its forward part again (R) just before the backward part, in the same clock. It reads nothing that
is not there already, so it may start before the gradient arrives.

A clock is a count, not a time: forward and backward take one each. `predict.py` gives them times.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

import msgspec

from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.pipeline.design.partition import Partition

TaskKind = Literal["forward", "recompute", "backward"]
ScheduleName = Literal["gpipe", "1f1b"]
CheckpointMode = Literal["always", "except_last", "never"]


class StageTask(msgspec.Struct, frozen=True, order=True):
    """One piece of work of one stage. `micro_batch` counts from 0.

    A "forward" whose micro-batch is recomputed on this stage keeps nothing but what it received;
    one that is not keeps what its "backward" reads.
    """

    clock: int
    kind: TaskKind
    micro_batch: int

    @property
    def moment(self) -> int:
        """The clock in halves: a recomputation comes before the backward task of its clock."""
        return 2 * self.clock + (self.kind == "backward")


Turn = tuple[int, int, int, int]  # moment, direction, target, source, as they are sorted by


class Message(msgspec.Struct, frozen=True):
    """A tensor on its way for one micro-batch, or the gradient of one on its way back.

    Attributes:
        tensor: the crossing's tensor id, in either direction.
        kind: "activation" goes from the crossing's source to one of its targets, "gradient" back.
        source, target: the stages that send and receive it.
    """

    micro_batch: int
    tensor: int
    kind: Literal["activation", "gradient"]
    source: int
    target: int
    size_bytes: int


class Schedule(msgspec.Struct, frozen=True):
    """Who does what in which order. Plain data: `msgspec.json` carries it between processes.

    Attributes:
        checkpoint: which micro-batches are recomputed: "always" all of them, "except_last" all
            but the last one, "never" none.
        tasks: for each stage, its tasks in the order in which it runs them. A stage runs one at a
            time, and starts it as soon as what it receives is there.
    """

    name: ScheduleName
    stages: int
    micro_batches: int
    checkpoint: CheckpointMode
    tasks: tuple[tuple[StageTask, ...], ...]

    @property
    def clocks(self) -> int:
        return 1 + max(tasks[-1].clock for tasks in self.tasks)

    def recomputes(self, micro_batch: int) -> bool:
        """Whether the stages run their forward parts of `micro_batch` twice."""
        last = micro_batch == self.micro_batches - 1
        return self.checkpoint == "always" or (self.checkpoint == "except_last" and not last)

    def task(self, stage: int, kind: TaskKind, micro_batch: int) -> StageTask:
        own = self.tasks[stage]
        return next(t for t in own if (t.kind, t.micro_batch) == (kind, micro_batch))

    def reader(self, sent: StageTask, target: int) -> StageTask:
        """The task of stage `target` that reads what `sent` made."""
        return self.task(target, sent.kind, sent.micro_batch)

    def hand_over(self, sent: StageTask, target: int) -> tuple[StageTask | None, int]:
        """When what `sent` made goes to stage `target`: behind the last task there before the one
        that reads it, if there is any, and by which moment it has gone."""
        own = self.tasks[target]
        reading = own.index(self.reader(sent, target))
        before = own[reading - 1] if reading else None
        return before, max(sent.moment, before.moment if before else 0)

    def turn(self, sent: StageTask, source: int, target: int) -> Turn:
        """Where two of what `source` hands to `target` meet on a stage, the lower one goes first.

        By the moment; of one moment, what goes forward. A stage hands on before it receives, so
        what is free for the one does not depend on how fast the other goes; and what was made first
        arrives first.
        """
        _, gone = self.hand_over(sent, target)
        return (gone, 1, target, -source) if sent.kind == "backward" else (gone, 0, -target, source)

    @property
    def held(self) -> int:
        """Of how many micro-batches a stage holds the activations at most."""
        if self.checkpoint != "never":  # they are made again, one micro-batch's at a time
            return 1
        return max(map(self.most_in_flight, range(self.stages)))

    def most_in_flight(self, stage: int) -> int:
        """The most micro-batches that are forward but not backward on `stage` at once."""
        most = now = 0
        for task in self.tasks[stage]:
            now += {"forward": 1, "recompute": 0, "backward": -1}[task.kind]
            most = max(most, now)
        return most


def make_schedule(
    name: ScheduleName,
    *,
    stages: int,
    micro_batches: int,
    checkpoint: CheckpointMode = "except_last",
) -> Schedule:
    """The schedule of one step.

    Raises:
        UnknownNameError: no such schedule or checkpoint mode.
        MemtradeError: a count below 1.
    """
    if name not in get_args(ScheduleName):
        raise UnknownNameError("schedule", name, get_args(ScheduleName))
    for what, count in (("partitions", stages), ("micro-batches", micro_batches)):
        if count < 1:
            raise MemtradeError(f"there must be at least 1 of the {what}, not {count}")
    if checkpoint not in get_args(CheckpointMode):
        raise UnknownNameError("checkpoint mode", checkpoint, get_args(CheckpointMode))
    order = _gpipe if name == "gpipe" else _one_forward_one_backward
    work = [list(order(stage, stages, micro_batches)) for stage in range(stages)]
    clocks = _clocks(work)
    bare = Schedule(name, stages, micro_batches, checkpoint, ())
    tasks = []
    for stage, own in enumerate(work):
        tasks.append([])
        for kind, micro_batch in own:
            clock = clocks[stage, kind, micro_batch]
            if kind == "backward" and bare.recomputes(micro_batch):
                tasks[-1].append(StageTask(clock, "recompute", micro_batch))
            tasks[-1].append(StageTask(clock, kind, micro_batch))
    return msgspec.structs.replace(bare, tasks=tuple(map(tuple, tasks)))


def micro_batch_size(batch_size: int, micro_batches: int) -> int:
    """Examples in each micro-batch. Raises MemtradeError unless they are equally large."""
    if micro_batches < 1 or batch_size % micro_batches:
        small = [m for m in range(1, math.isqrt(batch_size) + 1) if batch_size % m == 0]
        fitting = sorted({*small, *(batch_size // m for m in small)})
        near = sorted(sorted(fitting, key=lambda m: abs(m - micro_batches))[:3])
        raise MemtradeError(
            f"a batch of {batch_size} cannot be split into {micro_batches} equal micro-batches: "
            f"take {' or '.join(map(str, near))}"
        )
    return batch_size // micro_batches


def receives(partition: Partition, stage: int, task: StageTask) -> list[Message]:
    """What must have arrived at `stage` before `task` may start."""
    return [message for message in _messages(partition, task) if message.target == stage]


def sends(partition: Partition, stage: int, task: StageTask) -> list[Message]:
    """What leaves `stage` once `task` has run."""
    return [message for message in _messages(partition, task) if message.source == stage]


def _messages(partition: Partition, task: StageTask) -> Iterator[Message]:
    """What goes between any two stages for tasks such as this one."""
    i = task.micro_batch
    for each in partition.crossings:
        for reader in each.targets:
            if task.kind == "forward":
                yield Message(i, each.tensor, "activation", each.source, reader, each.size_bytes)
            elif task.kind == "backward" and each.has_gradient:
                yield Message(i, each.tensor, "gradient", reader, each.source, each.size_bytes)


Work = tuple[Literal["forward", "backward"], int]


def _gpipe(_stage: int, _stages: int, micro_batches: int) -> Iterable[Work]:
    for i in range(micro_batches):
        yield "forward", i
    for i in reversed(range(micro_batches)):
        yield "backward", i


def _one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> Iterable[Work]:
    ahead = min(stages - stage, micro_batches)
    for i in range(ahead):
        yield "forward", i
    for i in range(micro_batches):
        yield "backward", i
        if i + ahead < micro_batches:
            yield "forward", i + ahead


def _clocks(work: Sequence[Sequence[Work]]) -> dict[tuple[int, str, int], int]:
    """When each piece of work is done, if each takes one clock and all start as early as they can.

    A forward waits for the stage before, a backward for the stage after.
    """
    clocks: dict[tuple[int, str, int], int] = {}
    done = [0] * len(work)
    clock = 0
    while any(count < len(own) for count, own in zip(done, work, strict=True)):
        ready = []
        for stage, own in enumerate(work):
            if done[stage] == len(own):
                continue
            kind, i = own[done[stage]]
            before = stage - 1 if kind == "forward" else stage + 1
            if not 0 <= before < len(work) or (before, kind, i) in clocks:
                ready.append((stage, kind, i))
        for key in ready:
            clocks[key] = clock
            done[key[0]] += 1
        clock += 1
    return clocks
