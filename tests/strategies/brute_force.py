"""The best plan by trying them all, for step graphs of up to 8 forward ops, and such graphs.

What is tried: keep, recompute or swap for each forward tensor worth a decision, whether or not the
backward part reads it (keeping one that it does not read can make others cheap to recompute), in
the order that `lower` gives, with each copy in just before its reader and, where copies run beside
compute, also as far ahead as `overlap` puts it.
"""

import itertools
import math
import random
from collections.abc import Iterator

import msgspec

from memtrade.errors import InfeasibleBudgetError
from memtrade.graph import StepGraph
from memtrade.plan import Action, Decision
from memtrade.schedule import lower
from memtrade.simulate.overlap import overlap
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import MIN_ELEMENTS
from memtrade.target import Target
from tests.graphs import Builder

MIB = 1 << 20

Decisions = dict[int, Decision]


def brute_force(
    graph: StepGraph, target: Target, budget_bytes: int | None = None
) -> tuple[float, int, Decisions]:
    """The least step time whose peak fits the budget, that peak, and the decisions behind it.

    Of equally fast plans the one with the smaller peak. Without a budget: the smallest peak there
    is, and of the plans that reach it the fastest. Peaks are those of the bytes asked for.

    Raises InfeasibleBudgetError where no plan fits the budget.
    """
    simulator = TimeSimulator(graph, target)
    tried: list[tuple[float, int, Decisions]] = []
    for decisions, actions in candidates(graph, target):
        peak = simulator.simulator.peak_live_bytes(actions)
        tried.append((simulator.step_seconds(actions), peak, decisions))
    if budget_bytes is None:
        return min(tried, key=lambda each: (each[1], each[0]))
    fitting = [each for each in tried if each[1] <= budget_bytes]
    if not fitting:
        raise InfeasibleBudgetError(min(peak for _, peak, _ in tried), budget_bytes, "brute force")
    return min(fitting, key=lambda each: (each[0], each[1]))


def candidates(graph: StepGraph, target: Target) -> Iterator[tuple[Decisions, tuple[Action, ...]]]:
    """All decisions and their programs; the same program comes once."""
    tensors = decidable(graph)
    clock = TimeSimulator(graph, target)
    seen: set[tuple[Action, ...]] = set()
    for choice in itertools.product(*(options(graph, t) for t in tensors)):
        decisions = dict(zip(tensors, choice, strict=True))
        program = lower(graph, decisions)
        for actions in (program, overlap(clock, program, math.inf)):
            if actions not in seen:
                seen.add(actions)
                yield decisions, actions


def decidable(graph: StepGraph) -> list[int]:
    """The forward tensors with a buffer of their own that are worth a decision."""
    return [
        t.id
        for t in graph.tensors
        if t.op in graph.forward
        and graph.root[t.id] == t.id
        and graph.is_intermediate(t.id)
        and t.size_bytes >= 4 * MIN_ELEMENTS
    ]


def options(graph: StepGraph, tensor: int) -> tuple[Decision, ...]:
    if graph.ops[graph.tensors[tensor].op].stateful:
        return ("keep", "swap")
    return ("keep", "recompute", "swap")


def random_step_graph(seed: int, ops: int) -> StepGraph:
    """A training step with `ops` forward ops, some of them branches, and their mirrored gradients.

    Gradients read what such ops' gradients read: a product its inputs, an activation function its
    output, a sum nothing. Sizes are whole MiB, costs per byte vary twentyfold and more.
    """
    return _RandomStep(random.Random(seed), ops).graph()


class _RandomStep(Builder):
    def __init__(self, rng: random.Random, ops: int):
        super().__init__()
        self.rng, self.forward_ops = rng, ops
        self.gradients: dict[int, list[int]] = {}  # forward tensor -> its gradient's summands
        self.updates: list[int] = []

    def make(self, name: str, type_: str, inputs: list[int], size: int, **more) -> int:
        """An op with one output of `size` bytes, in the shape of a matrix of varying width."""
        (t,) = self.op(name, type_, inputs, sizes=[size], **more)
        width = self.rng.choice((32, 128, 1024))
        shape = (size // 4 // width, width)
        self.tensors[t] = msgspec.structs.replace(self.tensors[t], shape=shape)
        return t

    def graph(self) -> StepGraph:
        rng = self.rng
        x = self.make("x", "Placeholder", [], rng.randint(1, 4) * MIB)
        made, layers = [x], []
        for i in range(self.forward_ops):
            # Mostly the last tensor, so that chains are long; sometimes an earlier one: a branch.
            source = made[-1] if rng.random() < 0.75 else rng.choice(made)
            peers = [t for t in made if t != source and self.size(t) == self.size(source)]
            kind = rng.choice(("MatMul", "MatMul", "Relu", "Tanh", "Join", "Random"))
            if kind == "Join" and peers:
                kind = rng.choice(("AddV2", "Mul"))
                inputs, size = [source, rng.choice(peers)], self.size(source)
            elif kind in ("Relu", "Tanh"):
                inputs, size = [source], self.size(source)
            else:
                kind = "Random" if kind == "Random" and rng.random() < 0.3 else "MatMul"
                inputs, size = [source], rng.randint(1, 6) * MIB
            type_ = "Sin" if kind == "Random" else kind
            y = self.make(f"{kind}{i}", type_, inputs, size, stateful=kind == "Random")
            layers.append((kind, inputs, y))
            made.append(y)
        read = {t for _, inputs, _ in layers for t in inputs}
        ends = [t for t in made if t not in read]
        (loss,) = self.op("loss", "Sum", ends, sizes=[4])
        for t in ends:
            self.gradients[t] = [self.make(f"seed{t}", "Fill", [loss], self.size(t))]
        for i, (kind, inputs, y) in reversed(list(enumerate(layers))):
            self.gradient_of(i, kind, inputs, y, x)
        return self.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=self.updates)

    def gradient_of(self, i: int, kind: str, inputs: list[int], y: int, x: int) -> None:
        summands = self.gradients[y]
        dy = summands[0]
        if len(summands) > 1:
            dy = self.make(f"sum{i}", "AddN", summands, self.size(y))
        if kind == "MatMul":
            weights = self.make(f"weights{i}", "MatMul", [inputs[0], dy], MIB // 16)
            self.op(f"update{i}", "AssignAddVariableOp", [weights], stateful=True)
            self.updates.append(len(self.ops) - 1)
        for position, t in enumerate(inputs):
            if t == x:
                continue
            size = self.size(t)
            if kind == "AddV2":
                dx = dy
            elif kind == "Mul":
                dx = self.make(f"grad{i}_{position}", "Mul", [dy, inputs[1 - position]], size)
            elif kind in ("Relu", "Tanh"):
                dx = self.make(f"grad{i}", f"{kind}Grad", [dy, y], size)
            elif kind == "Random":
                dx = self.make(f"grad{i}", "MatMul", [dy, t, y], size)
            else:
                dx = self.make(f"grad{i}", "MatMul", [dy], size)
            self.gradients.setdefault(t, []).append(dx)

    def size(self, tensor: int) -> int:
        return self.tensors[tensor].size_bytes
