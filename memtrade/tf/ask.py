"""The child process that runs single kernels and reads what they asked for off its own log.

For each kernel a stretch of one function, held in order by control edges:

    in0, in1, was (Fill) ──► begin (Timestamp) ──► run (the kernel) ──► end ──► held (Size)

The inputs are read once more behind the end, so that no output can take their place; a second
form without that shows whose place is taken, and how long that takes; and where several inputs
might be, one more for each shows whether it is if the others are held. Kernels prepare themselves
in the first run of the function, the second is read off the log; what a kernel takes is the lower
median of that and some more runs, less what two looks at the clock take with nothing between them,
and less what writing the log takes, which an op with many outputs and no work tells.

Started by `memtrade.measure.learning`.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec
import psutil
import tensorflow as tf

from memtrade.facts.asking import (
    QUIET_SHARE,
    Answer,
    Asking,
    CopyRates,
    Question,
    Refused,
    Said,
)
from memtrade.facts.shipped import reuse
from memtrade.facts.signature import Operand, Signature
from memtrade.tf.calibrate import copies, median_seconds
from memtrade.tf.device import LocalDevice, make_device
from memtrade.tf.kernel_log import Granted, LogLine, Output, between, read_events, requests_of
from memtrade.tf.stretches import OtherShapeError, Stretches

# How TensorFlow begins to say what failed in a function.
_NOISE = re.compile("Graph execution error|Detected at node|<stack traces")

# A group is run again, after the run that prepares it, until it has taken so long; at least twice,
# of which the shorter time counts: now and then a thread comes late.
_FEWEST_RUNS, _MOST_RUNS, _ENOUGH_SECONDS = 2, 5, 0.3
# What is left of a kernel that takes no longer than writing the log.
_LEAST_SECONDS = 1e-6
# Ops in a row whose time is that of starting one.
_NOTHING = 1000
# What is copied to tell the rate, and how long that and an op's overhead are looked at.
_COPY_BYTES, _SECONDS_EACH = 64 << 20, 0.1


def main(request: bytes, say: Callable[[msgspec.Struct], None]) -> int:
    question = msgspec.json.decode(request, type=Question)
    device = make_device(question.device, question.limit_bytes)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    device.start()
    if question.rates:
        say(_rates(device))
    with _Log() as log:
        for group in question.groups:
            say(Asking(tuple(each.key for each in group)))
            for told in _told(group, log):
                say(told)
    return 0


def _told(group: Sequence[Signature], log: _Log) -> Iterator[Said]:
    """Asks all at once, or one by one where one of them cannot be run."""
    try:
        yield from _answers(group, log)
    except (tf.errors.OpError, ValueError, TypeError, OtherShapeError) as error:
        if len(group) > 1:
            for each in group:
                yield from _told([each], log)
        else:
            said = str(getattr(error, "message", error)).splitlines()
            telling = [line for line in map(str.strip, said) if line and not _NOISE.match(line)]
            room = isinstance(error, tf.errors.ResourceExhaustedError)
            yield Refused(group[0].key, (telling or ["it failed"])[0][:200], room)


class _Log:
    """This process's own log, which goes to a file while it is open."""

    def __enter__(self) -> _Log:
        self._file = tempfile.TemporaryFile()
        self._stderr = os.dup(2)
        os.dup2(self._file.fileno(), 2)
        return self

    def __exit__(self, *_: object) -> None:
        os.dup2(self._stderr, 2)
        os.close(self._stderr)
        self._file.close()

    def forget(self) -> None:
        os.ftruncate(self._file.fileno(), 0)
        os.lseek(self._file.fileno(), 0, os.SEEK_SET)

    def events(self) -> list[LogLine]:
        length = os.lseek(self._file.fileno(), 0, os.SEEK_CUR)
        text = os.pread(self._file.fileno(), length, 0).decode(errors="replace")
        return list(read_events(text.splitlines()))


def _answers(group: Sequence[Signature], log: _Log) -> list[Answer]:
    stretches = Stretches()
    for i, signature in enumerate(group):
        stretches.add(f"k{i}", signature)
    one_by_one = _to_be_tried(group)
    for i, signature in enumerate(group):
        if _may_be_taken(signature):
            stretches.add(f"free{i}", signature, free=range(len(signature.inputs)))
        for position in one_by_one.get(signature.key, ()):
            stretches.add(f"only{i}.{position}", signature, free=(position,))
    seen = _Seen(stretches, log)
    return [
        _answer(i, signature, one_by_one.get(signature.key, ()), seen)
        for i, signature in enumerate(group)
    ]


class _Seen:
    """What the log and the clock say of some stretches.

    Attributes:
        lies: (kernel, slot) -> the address of an output, in one run.
        disturbed: other processes kept the processor busy.
    """

    def __init__(self, stretches: Stretches, log: _Log):
        run = stretches.function()
        run()
        log.forget()
        idle = _Others()
        times = [run()]
        self._events = log.events()
        while len(times) < _FEWEST_RUNS or (
            len(times) < _MOST_RUNS and sum(times[0]) * len(times) < _ENOUGH_SECONDS
        ):
            times.append(run())
        log.forget()
        self.disturbed = idle.were_busy()
        medians = map(statistics.median_low, zip(*times, strict=True))
        self._took = dict(zip(stretches.timed[::2], medians, strict=True))
        self._gap = self._took["empty/begin"]
        self.lies = {(e.kernel, e.slot): e.address for e in self._events if isinstance(e, Output)}
        self._own: dict[str, list[LogLine]] = {}
        self._line = max(self._took["ruler/begin"] - self._gap, 0.0) / len(self.own("ruler"))

    def own(self, name: str) -> list[LogLine]:
        """The events of one stretch, which are looked for once."""
        if name not in self._own:
            self._own[name] = between(self._events, f"{name}/begin", f"{name}/end")
        return self._own[name]

    def seconds(self, name: str) -> float:
        took = self._took[f"{name}/begin"] - self._gap - len(self.own(name)) * self._line
        return max(took, _LEAST_SECONDS)


def _answer(i: int, signature: Signature, one_by_one: Sequence[int], seen: _Seen) -> Answer:
    requests = requests_of(seen.own(f"k{i}"), f"k{i}/run")
    reused, in_place = (), None
    if _may_be_taken(signature):
        tried = signature.op_type in reuse().tried
        reused = () if tried else _reused(seen, f"free{i}", signature, requests)
        for position in one_by_one:
            reused += _reused(seen, f"only{i}.{position}", signature, ())
        in_place = seen.seconds(f"free{i}") if tried or reused else None
    return Answer(
        key=signature.key,
        requests=tuple(requests),
        reused=tuple(dict.fromkeys(reused)),
        seconds=seen.seconds(f"k{i}"),
        in_place_seconds=in_place,
        disturbed=seen.disturbed,
    )


class _Others:
    """Whether other processes kept the processor busy since this was made."""

    def __init__(self) -> None:
        self._before = self._now()

    def _now(self) -> tuple[float, float, float]:
        machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
        used = sum(machine) - machine.idle - getattr(machine, "iowait", 0.0)
        return used, own.user + own.system, sum(machine)

    def were_busy(self) -> bool:
        used, own, whole = (b - a for a, b in zip(self._before, self._now(), strict=True))
        return whole > 0 and (used - own) / whole > QUIET_SHARE


def _may_be_taken(signature: Signature) -> list[int]:
    """Positions of the inputs whose place an output might take."""
    return [
        position
        for position, each in enumerate(signature.inputs)
        if (each.dtype, each.shape) in signature.outputs and each.values is None
    ]


def _to_be_tried(group: Sequence[Signature]) -> dict[str, list[int]]:
    """Those of them that show only one by one whether they are: of the smallest kernel of each type
    that no table knows."""
    smallest: dict[str, Signature] = {}
    for each in sorted(group, key=lambda signature: signature.size_bytes):
        if each.op_type not in reuse().tried and len(_may_be_taken(each)) > 1:
            smallest.setdefault(each.op_type, each)
    return {each.key: _may_be_taken(each) for each in smallest.values()}


def _reused(
    seen: _Seen, name: str, signature: Signature, held: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """(output or -1, input): where an output lies where an input was, and which scratch that the
    kernel wants while its inputs are `held` it does not want where they are free."""
    own = seen.own(name)
    granted = {each.address for each in own if isinstance(each, Granted)}
    lies = seen.lies
    inputs = range(len(signature.inputs))
    found = []
    for output in range(len(signature.outputs)):
        address = lies.get((f"{name}/run", output), 0)
        for i in inputs:
            if address and address not in granted and lies.get((f"{name}/in{i}", 0)) == address:
                found.append((output, i))
    spared = Counter(size for size, slot in held if slot < 0 < size)
    spared -= Counter(size for size, slot in requests_of(own, f"{name}/run") if slot < 0 < size)
    for size in spared.elements():
        taken = {position for _, position in found}
        alike = (i for i in inputs if i not in taken and _bytes(signature.inputs[i]) == size)
        found += [(-1, i) for i in itertools.islice(alike, 1)]
    return tuple(found)


def _bytes(operand: Operand) -> int:
    return math.prod(operand.shape) * tf.as_dtype(operand.dtype).size


@tf.function(autograph=False)
def _nothing(x: tf.Tensor) -> tf.Tensor:
    """Ops that do nothing one after the other, not even write to the log."""
    for _ in range(_NOTHING):
        with tf.control_dependencies([x]):
            x = tf.raw_ops.NoOp()
    with tf.control_dependencies([x]):
        return tf.zeros([])


def _rates(device: LocalDevice) -> CopyRates:
    idle = _Others()
    rows = tf.zeros([_COPY_BYTES // 4096, 1024])
    leave, come = copies(device)
    out = median_seconds(leave, [rows], _SECONDS_EACH)
    back = median_seconds(come, [leave(rows)], _SECONDS_EACH)
    nothing = median_seconds(_nothing, [tf.zeros([])], _SECONDS_EACH)
    return CopyRates(
        overhead_seconds=nothing / _NOTHING,
        device_to_host_bytes_per_s=_COPY_BYTES / out,
        host_to_device_bytes_per_s=_COPY_BYTES / back,
        onednn=device.runs_onednn(),
        disturbed=idle.were_busy(),
    )
