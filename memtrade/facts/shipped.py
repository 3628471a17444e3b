"""The facts that come with memtrade, for whoever cannot ask: `shipped/*.toml`, with their source.

`onednn-cpu` holds what oneDNN's kernels ask for on CPUs; `outputs` takes every kernel to ask for
its outputs alone, which is a lower bound for a device that nobody has looked at, such as a GPU
known from its data sheet.
"""

import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from memtrade.facts.calls import body_requests, call_scratch_bytes
from memtrade.facts.kernel import SCRATCH, Fact, Request
from memtrade.files import packaged_toml
from memtrade.graph import Op, StepGraph
from memtrade.op_types import (
    ALIAS_TYPES,
    BODY_TYPES,
    CALL_TYPES,
    HANDED_TYPES,
    READ_TYPES,
    SOURCE_TYPES,
)

CPU, OUTPUTS = "onednn-cpu", "outputs"

# Kernels smaller than this do not make a peak, whatever they ask for.
_SMALL_BYTES = 64 * 1024

_NAME = re.compile(r"(in|out)(\d+)(\.values|\[(-?\d+)\])?")


class Reuse(NamedTuple):
    """Whose buffer kernels may take: for each op type the positions that they try (None: all), and
    the types that hand their input on where the size stays."""

    source: str
    tried: dict[str, tuple[int, ...] | None]
    passing: frozenset[str]

    def positions(self, op: Op, graph: StepGraph, output: int) -> tuple[int, ...]:
        """Positions of the inputs whose buffer may become output number `output`. Beside a tensor,
        if only of one element, kernels read a number and do not try its buffer."""
        wanted = graph.tensors[op.outputs[output]]
        tried = self.tried.get(op.type, ())
        return tuple(
            i
            for i in (range(len(op.inputs)) if tried is None else tried)
            if i < len(op.inputs)
            and wanted.size_bytes > 0
            and graph.tensors[op.inputs[i]].size_bytes == wanted.size_bytes
            and graph.tensors[op.inputs[i]].dtype == wanted.dtype
            and (graph.tensors[op.inputs[i]].shape != () or wanted.shape == ())
        )


@cache
def reuse() -> Reuse:
    """`shipped/reuse.toml`."""
    table = _read("reuse")
    tried: dict[str, tuple[int, ...] | None] = {}
    for name, positions in (("first", (0,)), ("both", (0, 1)), ("branches", (1, 2)), ("all", None)):
        tried.update(dict.fromkeys(table[name]["types"].split(), positions))
    return Reuse(table["source"], tried, frozenset(table["passing"]["types"].split()))


@cache
def looked_at() -> dict[str, tuple[int, ...]]:
    """`shipped/shapes.toml`: of op types, the inputs whose values their shape functions ask for."""
    table = _read("shapes")
    none = dict.fromkeys(table["none"]["types"].split(), ())
    return none | {name: tuple(each) for name, each in table["positions"].items()}


@cache
def read_as_shapes() -> dict[str, tuple[int, ...]]:
    """Of op types, those of `looked_at` whose parts count where the whole is not known."""
    return {name: tuple(each) for name, each in _read("shapes")["shapes"].items()}


class ShippedFacts:
    """Facts out of a file of rules; see its head for what a rule says.

    Args:
        name: CPU or OUTPUTS.
    """

    def __init__(self, name: str):
        self.name = name
        table = _read(CPU)
        self.source: str = table["source"]
        self._known = frozenset((table["traced"] + table["plain"] + table["updates"]).split())
        self._rules: dict[str, list[dict[str, Any]]] = {}
        for rule in table["rule"]:
            for op_type in rule["types"].split():
                self._rules.setdefault(op_type, []).append(rule)

    @property
    def merges(self) -> bool:
        return self.name == CPU

    def is_known(self, op_type: str) -> bool:
        return op_type in self._known | CALL_TYPES | BODY_TYPES | HANDED_TYPES

    def of(self, op: Op, graph: StepGraph) -> Fact:
        if "scratch_bytes" in op.attrs:
            return Fact(body_requests(op, graph), source=self.name)
        if op.type in CALL_TYPES:
            taken = call_scratch_bytes(op, graph)
            made = (*([Request(taken)] if taken else []), *outputs_of(op, graph))
            return Fact(made, source=self.name)
        rule = next((r for r in self._rules.get(op.type, ()) if _applies(r, op, graph)), None)
        if self.name == OUTPUTS:
            made = _requests(rule, op, graph) if rule else outputs_of(op, graph)
            return Fact(tuple(r for r in made if r.output != SCRATCH), source=self.name)
        if rule is None:
            return Fact(outputs_of(op, graph), None, self._margin(op, graph), 0, self.name)
        workspace = _size(rule["workspace"], op, graph) if "workspace" in rule else 0
        made = tuple(_requests(rule, op, graph))
        return Fact(made, workspace_bytes=workspace, source=self.name)

    def _margin(self, op: Op, graph: StepGraph) -> int:
        """What a kernel that nobody has looked at may ask for besides its outputs: as much as the
        largest tensor that it touches."""
        if self.is_known(op.type) or op.type in reuse().tried or op.type in reuse().passing:
            return 0
        if op.type in ALIAS_TYPES | READ_TYPES | SOURCE_TYPES:
            return 0
        largest = max((graph.tensors[t].size_bytes for t in (*op.inputs, *op.outputs)), default=0)
        return largest if largest >= _SMALL_BYTES else 0


@cache
def shipped(name: str) -> ShippedFacts:
    return ShippedFacts(name)


def outputs_of(op: Op, graph: StepGraph) -> tuple[Request, ...]:
    """A request for each output, and whose buffer it may be instead."""
    return tuple(
        Request(graph.tensors[t].size_bytes, i, reuse().positions(op, graph, i))
        for i, t in enumerate(op.outputs)
    )


def _read(name: str) -> dict[str, Any]:
    return packaged_toml(f"facts/shipped/{name}.toml")


def _applies(rule: dict[str, Any], op: Op, graph: StepGraph) -> bool:
    for key, wanted in rule.get("when", {}).items():
        found = _size(key, op, graph) if _NAME.fullmatch(key) else op.attrs.get(key)
        if found != wanted:
            return False
    return all(_size(key, op, graph) <= most for key, most in rule.get("at_most", {}).items())


def _requests(rule: dict[str, Any], op: Op, graph: StepGraph) -> Iterator[Request]:
    for what, *rest in rule["requests"]:
        if what == "scratch":
            yield Request(_size(rest[0], op, graph))
            continue
        slot = int(what.removeprefix("out"))
        if slot >= len(op.outputs):
            continue
        own = graph.tensors[op.outputs[slot]].size_bytes
        size = _size(rest[0], op, graph) if rest else own
        positions = reuse().positions(op, graph, slot)
        for word in rest[1:]:
            position = int(word.removeprefix("reuse "))
            same = graph.tensors[op.inputs[position]].size_bytes == size
            positions = (position,) if same else ()
        yield Request(size, slot, positions)


def _size(text: str, op: Op, graph: StepGraph) -> int:
    """The value of a sum of products, such as "1536 + 8 * in0[-1]"."""
    return sum(
        math.prod(_factor(factor.strip(), op, graph) for factor in term.split("*"))
        for term in text.split("+")
    )


def _factor(text: str, op: Op, graph: StepGraph) -> int:
    found = _NAME.fullmatch(text)
    if found is None:
        return int(text)
    kind, number, part, dimension = found.groups()
    ids = op.inputs if kind == "in" else op.outputs
    if int(number) >= len(ids):
        return 0
    tensor = graph.tensors[ids[int(number)]]
    shape = tensor.shape or ()
    if part is None:
        return tensor.size_bytes
    if part == ".values":
        return math.prod(shape)
    axis = int(dimension)
    return shape[axis] if -len(shape) <= axis < len(shape) else 0
