"""The steps of the GPT-2 pipeline logs as PyTorch runs them: which memory they ask for, and when.

The logs come from a public repository (`HalberdOfPineapple/pipeline_parallel_expr`, January 2024).
Its `benchmarks/memory_expr.py` and job scripts say what they count: `max_memory_reserved` on up to
four V100s after ten steps, less 12 bytes a parameter. So three things make them: PyTorch's ops, its
allocator (`torch_allocator.py`), and the order in which autograd's threads recompute.

The net, as described there: 12 blocks that normalize after each sum; `MultiheadAttention` with the
batch as its second axis, so that its 128 x 12 matrices are micro-batch by micro-batch large;
dropout; SGD with momentum, whose weight decay makes a second copy of all gradients for a moment.

The order. A `Recompute` node receives no gradient, so autograd hands it to the thread that called
`backward`, while a thread per device goes backward. The last stage has the gradients of all
micro-batches at once: unless each has to wait for the one before, recomputation runs ahead, and
several micro-batches' activations lie there together.

None of it was seen running: the repository and the logs were read, and PyTorch's sources.
"""

from collections.abc import Generator, Iterator
from typing import Literal, NamedTuple, TypeVar

from memtrade.files import packaged_toml
from memtrade.papers.torch_allocator import CachingAllocator, TorchTensor, copying_stream
from memtrade.pipeline.design.schedule import CheckpointMode

BATCH, POSITIONS, WIDTH, HEADS, WORDS = 64, 128, 768, 12, 3000
FLOAT = 4
# Part of the step and layer -> its ops, one a line.
OPS: dict[str, dict[str, str]] = packaged_toml("papers/gpipe_torch.toml")
# Of attention, its output, two norms, and the two products behind them: weights, then biases.
_BLOCK_BYTES = [
    FLOAT * WIDTH * count
    for count in (3 * WIDTH, 3, WIDTH, 1, 1, 1, 1, 1, 4 * WIDTH, 4, 4 * WIDTH, 1)
]
PARAMETER_BYTES = {
    "embedding": [FLOAT * WORDS * WIDTH],
    "positions": [FLOAT * POSITIONS * WIDTH],
    "block": _BLOCK_BYTES,
    "norm": [FLOAT * WIDTH] * 2,
    "head": [FLOAT * WORDS * WIDTH],
}
# Layers of each stage: embedding, positions, 12 blocks, norm, output matrix.
LAYERS = ("embedding", "positions", *["block"] * 12, "norm", "head")
STAGES = {1: (16,), 2: (8, 8), 4: (5, 3, 3, 5)}
# What the host takes to start a recomputation, over what it takes for the backward part behind it.
# To the nearest tenth, in view of the runs with one partition; others hardly hang on it.
RECOMPUTE_SHARE = 0.6
STEPS = 3

_T = TypeVar("_T")
BackwardOrder = Literal["in turn", "ahead"]
Implementation = Literal["self", "torchgpipe"]

# What cuBLAS works in, from the same allocator, for each thread of the host that starts products.
WORKSPACE_BYTES = 8320 << 10

Kept = list[dict[str, TorchTensor]]


class TorchOp(NamedTuple):
    makes: str
    size_bytes: int
    gradients: tuple[int, ...]
    lets_go: tuple[str, ...]


def read_ops(text: str, units: dict[str, int]) -> list[TorchOp]:
    found = []
    for line in text.strip().splitlines():
        words = line.split()
        gradients = tuple(int(word[1:]) for word in words if word[0] == "+")
        lets_go = tuple(word[1:] for word in words if word[0] == "-" and word != "-")
        made = [word for word in words if word[0] not in "+-"]
        size = _size(made[1], units) if made else 0
        found.append(TorchOp(made[0] if made else "", size, gradients, lets_go))
    return found


def _size(text: str, units: dict[str, int]) -> int:
    """Of `3u`, `w/4`, `0`."""
    whole, _, divisor = text.partition("/")
    unit = units.get(whole[-1], 0)
    return int(whole[:-1] or 1) * unit // int(divisor or 1)


class _Stage:
    """One device with its layers; forward and backward yield what each op takes to start."""

    def __init__(self, layers: tuple[str, ...], micro_batch: int):
        tokens = FLOAT * micro_batch * POSITIONS
        units = {
            "u": tokens * WIDTH,
            "w": FLOAT * POSITIONS * HEADS * micro_batch**2,
            "s": tokens,
            "l": tokens * WORDS,
        }
        self.hidden_bytes = units["u"]
        self.device = CachingAllocator()
        self.layers = layers
        self.forward_ops = {name: read_ops(OPS["forward"][name], units) for name in set(layers)}
        self.backward_ops = {name: read_ops(OPS["backward"][name], units) for name in set(layers)}
        self.forward_count, self.backward_count = (
            sum(len(ops[name]) for name in layers) for ops in (self.forward_ops, self.backward_ops)
        )
        self.sizes = [size for name in layers for size in PARAMETER_BYTES[name]]
        self.values = self._each_parameter()
        self.gradients: list[TorchTensor | None] = [None] * len(self.sizes)
        self.slots: list[TorchTensor] = []
        self.workspaces: dict[str, TorchTensor] = {}

    def started_by(self, thread: str) -> None:
        if thread not in self.workspaces:
            self.workspaces[thread] = TorchTensor(self.device, WORKSPACE_BYTES)

    def _each_parameter(self) -> list[TorchTensor]:
        return [TorchTensor(self.device, size) for size in self.sizes]

    def forward(
        self, x: TorchTensor, *, keep: bool, cost: float = 1.0
    ) -> Generator[float, None, tuple[TorchTensor, Kept]]:
        """[micro-batch, ...] -> the stage's output, and what its backward part reads."""
        kept: Kept = []
        for name in self.layers:
            held = {"x": x}
            for op in self.forward_ops[name]:
                yield cost
                held[op.makes] = TorchTensor(self.device, op.size_bytes)
                for gone in op.lets_go:
                    del held[gone]
            x = held.pop("y")
            if keep:
                kept.append(held)
        return x, kept

    def backward(
        self, gradient: TorchTensor, kept: Kept
    ) -> Generator[float, None, TorchTensor | None]:
        """The input's gradient; None where the input is words."""
        at, dy = len(self.sizes), gradient
        del gradient
        for name in reversed(self.layers):
            at -= len(PARAMETER_BYTES[name])
            held = {"dy": dy, **kept.pop()}
            dx = held["dy"] if name == "positions" else None
            del dy
            for op in self.backward_ops[name]:
                yield 1.0
                if op.size_bytes:
                    held[op.makes] = TorchTensor(self.device, op.size_bytes)
                for index in op.gradients:
                    self._add_gradient(at + index)
                for gone in op.lets_go:
                    del held[gone]
            dy = held.pop("dx", dx)
            del held, dx
            if dy is None:
                return None
        return dy

    def _add_gradient(self, index: int) -> None:
        """A new gradient is taken over, or added to what is there and dropped."""
        made = TorchTensor(self.device, self.sizes[index])
        if self.gradients[index] is None:
            self.gradients[index] = made

    def update(self) -> None:
        with_decay = self._each_parameter()
        self.slots = self.slots or self._each_parameter()
        del with_decay


def reserved(
    partitions: int,
    micro_batches: int,
    checkpoint: CheckpointMode,
    implementation: Implementation,
    *,
    order: BackwardOrder | None = None,
    share: float = RECOMPUTE_SHARE,
    steps: int = STEPS,
) -> list[CachingAllocator]:
    """Each device's allocator after some steps.

    Args:
        implementation: torchgpipe starts forward ops in threads of their own. The logs' own GPipe
            refers to what it recomputed, and to its inputs' gradients, until the next step's loss.
        order: "in turn" if a micro-batch is recomputed when the one before has gone backward,
            "ahead" if as soon as its gradient is there and the recomputing thread is free. By
            default as the logs tell: in turn only under torchgpipe with several partitions.
        share: see `RECOMPUTE_SHARE`.
        steps: the logs run ten; little changes after the third.
    """
    waits = implementation == "torchgpipe" and partitions > 1
    order = order or ("in turn" if waits else "ahead")
    run = _Run(partitions, micro_batches, checkpoint, implementation, order, share)
    for _ in range(steps):
        run.step()
    return [stage.device for stage in run.stages]


class _Run:
    def __init__(
        self,
        partitions: int,
        micro_batches: int,
        checkpoint: CheckpointMode,
        implementation: Implementation,
        order: BackwardOrder,
        share: float,
    ):
        self.count, self.checkpoint, self.order = micro_batches, checkpoint, order
        self.holds_recomputed, self.share = implementation == "self", share
        self.forward_thread = "main" if implementation == "self" else "worker"
        layers = iter(LAYERS)
        self.stages = [
            _Stage(tuple(next(layers) for _ in range(size)), BATCH // micro_batches)
            for size in STAGES[partitions]
        ]
        self.last = partitions - 1
        self.held: list[object] = []
        self.inputs: dict[tuple[int, int], TorchTensor] = {}
        self.kept: dict[tuple[int, int], Kept] = {}
        self.gradients: dict[tuple[int, int], TorchTensor] = {}

    def recomputes(self, micro_batch: int) -> bool:
        last = micro_batch == self.count - 1
        return self.checkpoint == "always" or (self.checkpoint == "except_last" and not last)

    def step(self) -> None:
        first, last = self.stages[0].device, self.stages[-1].device
        words, targets = (
            TorchTensor(each, 2 * FLOAT * BATCH * POSITIONS) for each in (first, last)
        )
        outputs = self._forward(words)
        logits_bytes = FLOAT * BATCH * POSITIONS * WORDS
        joined = TorchTensor(last, logits_bytes)
        outputs.clear()
        likelihoods = TorchTensor(last, logits_bytes)
        self.held = []  # here the step before is let go of
        for stage in self.stages:
            stage.gradients = [None] * len(stage.sizes)
        chosen = TorchTensor(last, logits_bytes)
        gradient = TorchTensor(last, logits_bytes)
        del chosen, likelihoods
        self.gradients = {(i, self.last): gradient for i in range(self.count)}
        del gradient
        self._backward()
        self.held += [joined, *self.inputs.values()]
        self.inputs = {}
        for stage in self.stages:
            stage.update()
        del words, targets

    def _forward(self, words: TorchTensor) -> dict[int, TorchTensor]:
        outputs: dict[int, TorchTensor] = {}
        for clock in range(self.count + self.last):
            for j in range(max(0, clock + 1 - self.count), min(clock, self.last) + 1):
                i, stage = clock - j, self.stages[j]
                x = (
                    TorchTensor(stage.device, stage.hidden_bytes, stream=copying_stream(i))
                    if j
                    else words
                )
                self.inputs[i, j] = x
                stage.started_by(self.forward_thread)
                done = _drained(stage.forward(x, keep=not self.recomputes(i)))
                outputs[i], self.kept[i, j] = done
                del done
        return outputs

    def _backward(self) -> None:
        """Op by op: one thread recomputes, one for each device goes backward."""
        self.threads = [_Thread() for _ in range(self.last + 2)]
        for i in range(self.count) if self.order == "ahead" else [self.count - 1]:
            self._arrive(i, self.last, 0.0)
        while busy := [thread for thread in self.threads if thread.running or thread.waiting]:
            thread = min(busy, key=_Thread.acts_at)
            if thread.running is None:
                thread.take()
                continue
            try:
                thread.clock += next(thread.running)
            except StopIteration:
                thread.running = None

    def _arrive(self, i: int, j: int, now: float) -> None:
        """The gradient of what stage j made of micro-batch i is there."""
        if self.recomputes(i):
            self.threads[-1].waiting.append((now, (i, j), self._recompute(i, j)))
        else:
            self.threads[j].waiting.append((now, (i, j), self._go_back(i, j)))

    def _recompute(self, i: int, j: int) -> Iterator[float]:
        stage, thread = self.stages[j], self.threads[-1]
        cost = self.share * stage.backward_count / stage.forward_count
        stage.started_by("main")
        again = stage.forward(self.inputs[i, j], keep=True, cost=cost)
        output, self.kept[i, j] = yield from again
        if self.holds_recomputed:
            self.held.append(output)
        self.threads[j].waiting.append((thread.clock, (i, j), self._go_back(i, j)))

    def _go_back(self, i: int, j: int) -> Iterator[float]:
        stage, now = self.stages[j], self.threads[j]
        stage.started_by("device")
        gradient = yield from stage.backward(self.gradients.pop((i, j)), self.kept.pop((i, j)))
        holds = self.holds_recomputed and self.recomputes(i)
        if not holds:
            del self.inputs[i, j]
        if j:
            before = self.stages[j - 1]
            copied = TorchTensor(before.device, before.hidden_bytes, stream=copying_stream(i))
            self.gradients[i, j - 1] = copied
            if holds:
                self.held.append(gradient)
            self._arrive(i, j - 1, now.clock)
        if self.order == "in turn" and j == self.last and i:
            self._arrive(i - 1, j, now.clock)


class _Thread:
    """One of the host's: its time, what it is at, and what waits, with when it came."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.running: Iterator[float] | None = None
        self.waiting: list[tuple[float, tuple[int, int], Iterator[float]]] = []

    def acts_at(self) -> float:
        if self.running is not None:
            return self.clock
        return max(self.clock, min(came for came, _, _ in self.waiting))

    def take(self) -> None:
        """Of what has come, the latest micro-batch, as autograd does."""
        self.clock = self.acts_at()
        chosen = max(
            (each for each in self.waiting if each[0] <= self.clock), key=lambda each: each[1]
        )
        self.waiting.remove(chosen)
        self.running = chosen[2]


def _drained(ops: Generator[float, None, _T]) -> _T:
    while True:
        try:
            next(ops)
        except StopIteration as stop:
            return stop.value
