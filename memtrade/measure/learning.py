"""Learning kernel facts where they are used: children that run each kernel that nobody knows yet.

    graph ──signatures──► not in the cache ──groups──► child ──answers──► the cache, LearnedFacts

A kernel that is too large to be asked is asked on fewer examples, at three sizes: a line through
two of them that meets the third is extended to the step's own size. A kernel that crashes or hangs
costs a child, and gets a margin in place of a fact. What TensorFlow itself refuses it refuses for
ever; what had no room, or ended its child, is asked again: with more room, on another day.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from memtrade.costs import OpCost, op_cost
from memtrade.facts.asking import QUIET_SHARE, Answer, Asking, CopyRates, Question, Said
from memtrade.facts.cache import FactsFile
from memtrade.facts.learned import Lasting, Learned, kernel_text
from memtrade.facts.lines import extended
from memtrade.facts.signature import LEAST_BYTES, Signature, make_signature, signature_of
from memtrade.facts.surroundings import Surroundings
from memtrade.graph import StepGraph, led_to
from memtrade.measure.children import Child, children, start, supervise

# What makes TensorFlow log each request to the allocator.
LOGGING = {"TF_CPP_VMODULE": "log_memory=2,bfc_allocator=3", "TF_CPP_MIN_LOG_LEVEL": "0"}

ASKER = (sys.executable, "-m", "memtrade.measure", "ask")

# Kernels in one function: tracing a function costs as much as a few of them.
GROUP = 24
# A group that says nothing for so long hangs.
SILENCE_SECONDS = 120.0

# A kernel that takes more than this share of the child's memory, or more work than this, is asked
# on fewer examples.
_SHARE = 0.2
_MOST_FLOPS = 16e9
# The numbers of examples that it is asked on, each twice the one before.
_SIZES = 3
# With so many times the memory, what had no room is asked again: what is free varies a little.
_MORE = 1.25
# Who ends a child so does not know what it was at.
_KILLED = -2, -9, -15  # SIGINT, SIGKILL, SIGTERM
# How long is looked whether the machine is at rest, and how often kernels are asked in all: what
# others disturbed is asked again at once where they have ended meanwhile.
_LOOK_SECONDS, _TRIES = 0.2, 2


@dataclass(frozen=True)
class Asker:
    """How the children are started.

    Attributes:
        device: "arena" or "gpu:N".
        environment: of the process whose kernels are asked, with the arena's limit.
        limit_bytes: of their memory.
        command, silence_seconds: for tests.
    """

    device: str
    environment: Mapping[str, str]
    limit_bytes: int
    command: Sequence[str] = ASKER
    silence_seconds: float = SILENCE_SECONDS


class _Refusal(NamedTuple):
    why: str
    lasts: Lasting = "ever"


class Lesson(NamedTuple):
    """A kernel to be asked, with what the cost model counts of it."""

    signature: Signature
    cost: OpCost
    batched: tuple[bool, ...]  # the inputs whose first dimension counts examples
    batch: int


def learn(
    graphs: Iterable[StepGraph],
    where: Surroundings,
    asker: Asker,
    *,
    anew: frozenset[str] = frozenset(),
    folder: Path | None = None,
    least_bytes: int = LEAST_BYTES,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[dict[str, Learned], CopyRates | None]:
    """What is known of the graphs' kernels, and the device's rates; asks for what is not known.

    Args:
        anew: the keys of kernels that are asked again though they are known.
        folder: of the cache; None is the user's.
        least_bytes: of the tensors of a kernel that depends on the batch; smaller ones are not
            asked.
        on_progress: called with how many kernels have been asked, and how many there are.
    """
    file = FactsFile(where, folder)
    kept = file.read()
    lessons = _lessons(graphs, least_bytes)
    wanted = {
        key
        for key in lessons
        if key in anew or key not in kept.table or _may_answer_now(kept.table[key], asker)
    }
    ask_rates = kept.rates is None
    for _ in range(_TRIES):
        busy = {key for key in lessons if key in kept.table and kept.table[key].disturbed}
        busy_rates = kept.rates is not None and kept.rates.disturbed
        if (busy or busy_rates) and _is_quiet():
            wanted, ask_rates = wanted | busy, ask_rates or busy_rates
        if not wanted and not ask_rates:
            break
        missing = [each for key, each in lessons.items() if key in wanted]
        learned, rates = _ask_all(missing, asker, ask_rates=ask_rates, on=on_progress)
        file.add([each for each in learned if each.lasts != "run"], rates)
        kept.table.update({each.key: each for each in learned})
        kept.rates = rates or kept.rates
        wanted, ask_rates = set(), False
    return kept.table, kept.rates


def _may_answer_now(known: Learned, asker: Asker) -> bool:
    """Whether a refusal no longer holds."""
    if known.lasts == "room":
        return asker.limit_bytes > _MORE * known.limit_bytes
    return known.lasts == "day" and known.on != _today()


def _today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def _is_quiet() -> bool:
    """Whether times that were taken on a busy machine can be taken anew."""
    # Not the load of the last minute, which trials of our own would be part of.
    return psutil.cpu_percent(_LOOK_SECONDS) < 100 * QUIET_SHARE


def _lessons(graphs: Iterable[StepGraph], least_bytes: int) -> dict[str, Lesson]:
    """A lesson for each kernel, by its key."""
    found: dict[str, Lesson] = {}
    for graph in graphs:
        dependent = led_to(graph.ops, graph.tensors, graph.batch)
        batch = _examples(graph)
        for op in graph.ops:
            batched = tuple(graph.tensors[t].op in dependent for t in op.inputs)
            signature = signature_of(op, graph, least_bytes if any(batched) else LEAST_BYTES)
            if signature is None or signature.key in found:
                continue
            found[signature.key] = Lesson(signature, op_cost(op, graph), batched, batch)
    return found


def _examples(graph: StepGraph) -> int:
    """How many the batch has; 0 where that is not known."""
    shapes = [graph.tensors[t].shape for t in graph.batch]
    return next((shape[0] for shape in shapes if shape), 0)


def _ask_all(
    lessons: Sequence[Lesson], asker: Asker, *, ask_rates: bool, on: Callable[[int, int], None]
) -> tuple[list[Learned], CopyRates | None]:
    """Asks the lessons' kernels, or the same kernels on fewer examples."""
    smaller = {each.signature.key: _fewer_examples(each, asker) for each in lessons}
    signatures: list[Signature] = []
    for each in lessons:
        signatures += smaller[each.signature.key].values() or [each.signature]
    signatures.sort(key=lambda each: (each.size_bytes, each.key))
    # What has no room cannot be run, and TensorFlow waits ten seconds before it says so.
    asked = [each for each in signatures if each.largest_bytes <= asker.limit_bytes]
    talk = _Talk(asker, on, len(asked))
    talk.ask([asked[i : i + GROUP] for i in range(0, len(asked), GROUP)], ask_rates)
    learned = []
    for lesson in lessons:
        answer, source = talk.answers.get(lesson.signature.key), "asked"
        if sizes := smaller[lesson.signature.key]:
            found = {size: talk.answers.get(each.key) for size, each in sizes.items()}
            answer, source = _extended(lesson, found)
        if answer is None:
            too_large = _Refusal("too large, and no answer on fewer", "room")
            refusal = talk.refused.get(lesson.signature.key, too_large)
            learned.append(_refused(lesson, refusal, asker))
        else:
            learned.append(_learned(lesson, answer, source))
    return learned, talk.rates


def _learned(lesson: Lesson, answer: Answer, source: str) -> Learned:
    return Learned(
        **msgspec.structs.asdict(answer),
        kernel=kernel_text(lesson.signature),
        source=source,
        on=_today(),
        op_class=lesson.cost.op_class.value,
        flops=lesson.cost.flops,
        bytes_moved=lesson.cost.bytes_moved,
    )


def _refused(lesson: Lesson, refusal: _Refusal, asker: Asker) -> Learned:
    """A kernel that could not be asked: it may hold as much again as its largest tensor."""
    return Learned(
        key=lesson.signature.key,
        kernel=kernel_text(lesson.signature),
        margin_bytes=lesson.signature.largest_bytes,
        source=f"refused: {refusal.why}",
        on=_today(),
        lasts=refusal.lasts,
        limit_bytes=asker.limit_bytes if refusal.lasts == "room" else 0,
    )


def _fewer_examples(lesson: Lesson, asker: Asker) -> dict[int, Signature]:
    """The kernel on fewer examples, by their number, where it is too large to be asked as it is."""
    if lesson.batch < 2**_SIZES:
        return {}
    excess = max(
        lesson.signature.size_bytes / (_SHARE * asker.limit_bytes), lesson.cost.flops / _MOST_FLOPS
    )
    if excess <= 1:
        return {}
    size = lesson.batch // 2
    while size >= 2**_SIZES and size * excess > lesson.batch:
        size //= 2
    sizes = [size // 2**i for i in reversed(range(_SIZES))]
    return {each: _on_examples(lesson, each) for each in sizes}


def _on_examples(lesson: Lesson, examples: int) -> Signature:
    """The same kernel for fewer examples. What its outputs are then is left to TensorFlow."""

    def scaled(shape: tuple[int, ...]) -> tuple[int, ...]:
        if not shape or shape[0] < lesson.batch or shape[0] % lesson.batch:
            return shape
        return (shape[0] * examples // lesson.batch, *shape[1:])

    whole = lesson.signature
    output_shapes = [shape for _, shape in whole.outputs]
    inputs = []
    for operand, batched in zip(whole.inputs, lesson.batched, strict=True):
        values = scaled(operand.values) if operand.values in output_shapes else operand.values
        shape = scaled(operand.shape) if batched and values is None else operand.shape
        inputs.append(msgspec.structs.replace(operand, shape=shape, values=values))
    told = (whole.op_type, whole.node, tuple(inputs), (), whole.functions)
    return make_signature(*told, whole.maker)


def _extended(lesson: Lesson, found: Mapping[int, Answer | None]) -> tuple[Answer | None, str]:
    """The answer for all examples, and its source; None where those for fewer do not tell."""
    runs = {size: answer for size, answer in found.items() if answer is not None}
    line = extended(runs, lesson.batch) if len(runs) == _SIZES else None
    if line is None or line.seconds is None:
        return None, ""
    answer = Answer(
        key=lesson.signature.key,
        requests=line.requests,
        seconds=line.seconds,
        disturbed=any(run.disturbed for run in runs.values()),
    )
    return answer, line.source


class _Talk:
    """The talk with one child after the other, until each kernel has an answer or a refusal.

    Attributes:
        running: the keys of the kernels that the child is at. heard: when it last said anything.
    """

    running: frozenset[str] = frozenset()
    heard = 0.0

    def __init__(self, asker: Asker, on: Callable[[int, int], None], of: int):
        self.asker, self.on, self.of = asker, on, of
        self.answers: dict[str, Answer] = {}
        self.refused: dict[str, _Refusal] = {}
        self.rates: CopyRates | None = None

    def ask(self, groups: Sequence[Sequence[Signature]], rates: bool) -> None:
        """A child that ends early has the group that it was at asked one by one, by another."""
        waiting = [list(group) for group in groups]
        while waiting or rates:
            how = self._child(waiting, rates)
            running, rates = self.running, False
            waiting = [left for group in waiting if (left := self._unanswered(group))]
            if how is None:
                break
            blamed = [each for group in waiting for each in group if each.key in running]
            if not blamed:  # it ended before it asked anything
                for each in (each for group in waiting for each in group):
                    self.refused[each.key] = _Refusal(how.why, "run")
                break
            if len(blamed) == 1:
                self.refused[blamed[0].key] = how
                blamed = []
            rest = [g for group in waiting if (g := [e for e in group if e.key not in running])]
            waiting = [[each] for each in blamed] + rest

    def _unanswered(self, group: Iterable[Signature]) -> list[Signature]:
        return [e for e in group if e.key not in self.answers and e.key not in self.refused]

    def _child(self, groups: Sequence[Sequence[Signature]], rates: bool) -> _Refusal | None:
        """Asks in one child. Returns why it ended early, `running` some kernels."""
        question = Question(
            device=self.asker.device,
            limit_bytes=self.asker.limit_bytes,
            groups=tuple(tuple(group) for group in groups),
            rates=rates,
        )
        environment = dict(self.asker.environment) | LOGGING
        with children() as started:
            child = start(self.asker.command, msgspec.json.encode(question), environment, log=False)
            started.append(child)
            self.child, self.running, self.heard = child, frozenset(), time.monotonic()
            supervise(started, self, deadline=math.inf)
            if not child.has_ended:
                return _Refusal(f"it hung for {self.asker.silence_seconds:g} s", "day")
        if status := child.process.returncode:
            lasts = "run" if status in _KILLED else "day"
            return _Refusal(f"the child ended with status {status}", lasts)
        return None

    def take_log(self, child: Child, text: str) -> None:
        """It keeps its log to itself."""

    def has_enough(self, *, quiet: bool) -> bool:
        silent = time.monotonic() - self.heard > self.asker.silence_seconds
        return silent or (quiet and self.child.has_ended)

    def take_event(self, child: Child, line: bytes) -> None:
        self.heard = time.monotonic()
        said = msgspec.json.decode(line, type=Said)
        if isinstance(said, Asking):
            self.running = frozenset(said.keys)
            return
        if isinstance(said, CopyRates):
            self.rates = said
            return
        if isinstance(said, Answer):
            self.answers[said.key] = said
        else:
            self.refused[said.key] = _Refusal(said.reason, "room" if said.room else "ever")
        self.on(len(self.answers) + len(self.refused), self.of)
