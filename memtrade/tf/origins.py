"""Who made each op: the Keras layer, and the line of the user's program.

    op.traceback   train.py:12 ─► layer.__call__ ─► layer.__call__ ─► tf/nn_ops.py
                   the source     └──────── 2 layers ────────┘
    op.name        functional_1 / conv_1 / convolution
                   └── 2 scopes ──────┘

Each call of a Keras layer opens a name scope of its own, so as many scopes as there are such calls
on the stack are the op's layers. An op of the gradient lies in the scope of the op that it is the
gradient of, below "gradients" or "gradient_tape". What an optimizer does belongs to the layer whose
variable or gradient it reads. Without Keras, a scope counts as a layer.

TensorFlow keeps the stack of each op anyway, so only reading it costs something: some 0.1
milliseconds an op, a tenth of what tracing a Keras model takes. An op of a function that has been
opened, or of a loop, is looked up there.
"""

from __future__ import annotations

import inspect
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import tensorflow as tf

import memtrade
from memtrade.graph import GraphData, StepGraph
from memtrade.tf.inline import functions_named

Scopes = tuple[str, ...]

# A call of a layer enters its scope twice, to build it and to compute: the second has a number.
_NUMBER = re.compile(r"_\d+$")

# What stands before the names of a loop's or a branch's body once that is unrolled.
_BODY = re.compile(r"^(\d+/)?body/")

_PACKAGE = Path(memtrade.__file__).resolve().parent
# The parts of this package that draw models, as a user's program does.
_DRAWING = tuple(str(_PACKAGE / name) + os.sep for name in ("models", "papers"))


class Origin(NamedTuple):
    """What is known of an op from where it was made.

    Attributes:
        scopes: of the layers that it was made in, as the graph calls them.
        inner: those of them that its own function knows.
        parts: of its name there: its scopes, and last what it is called.
        source: "file.py:line"; "" where no line of a user's program led to it.
    """

    scopes: Scopes = ()
    inner: Scopes = ()
    parts: Scopes = ()
    source: str = ""


def with_origins(data: GraphData, concrete: Any) -> GraphData:
    """`data` with the layer and the source of each op.

    Args:
        concrete: the function as it was traced, before its calls were opened.
    """
    traced = _Traced(concrete.graph, _Frames())
    graph = StepGraph(data)
    origins = [traced.origin(op.name) for op in graph.ops]
    layers = _layers(graph, origins)
    ops = tuple(
        msgspec.structs.replace(op, layer=layer, source=origin.source)
        for op, layer, origin in zip(graph.ops, layers, origins, strict=True)
    )
    return msgspec.structs.replace(data, ops=ops)


class _Traced:
    """A traced function's ops by name, and the functions that it calls."""

    def __init__(self, graph: Any, frames: _Frames):
        self.graph, self.frames = graph, frames
        self.operations = {operation.name: operation for operation in graph.get_operations()}
        self._bodies: dict[str, list[_Traced]] = {}

    def origin(self, name: str) -> Origin:
        """Of the op that has this name once all calls are opened and loops unrolled."""
        made, calls_before = Origin(), 0
        for operation in self._chain(name):
            calls, line = self.frames.of(operation)
            # A function that was traced within the call has the caller's stack before its own.
            own = calls - calls_before if calls >= calls_before else calls
            parts = tuple(operation.name.split("/"))
            inner = parts[:-1][:own]
            made = Origin(made.scopes + inner, inner, parts, line or made.source)
            calls_before = calls
        return made

    def _chain(self, name: str) -> Iterator[tf.Operation]:
        """The calls and loops that the op lies in, and last itself, as far as they are found."""
        if name in self.operations:
            yield self.operations[name]
            return
        end = name.rfind("/")
        while end > 0:
            caller = self.operations.get(name[:end])
            if caller is not None:
                yield caller
                inside = _BODY.sub("", name[end + 1 :])
                for body in self._bodies_of(caller):
                    found = list(body._chain(inside))
                    if found:
                        yield from found
                        return
                return
            end = name.rfind("/", 0, end)

    def _bodies_of(self, caller: tf.Operation) -> list[_Traced]:
        if caller.name not in self._bodies:
            # There is no public way from a call to the graph that was traced for it.
            # tests/tf/test_origins.py notices when this one moves.
            found = map(self.graph._get_function, functions_named(caller.node_def))
            graphs = (getattr(each, "graph", None) for each in found)  # none where it was imported
            self._bodies[caller.name] = [_Traced(each, self.frames) for each in graphs if each]
        return self._bodies[caller.name]


class _Frames:
    """Reads stacks, each op's once, in however many iterations of a loop it stands, and each file's
    kind once."""

    def __init__(self) -> None:
        keras = sys.modules.get("keras")  # where nobody has imported it, there are no layers
        self._layer_file = inspect.getsourcefile(keras.layers.Layer) if keras else None
        self._shown: dict[str, tuple[str, bool]] = {}
        self._known: dict[tf.Operation, tuple[int, str]] = {}

    def of(self, operation: tf.Operation) -> tuple[int, str]:
        """How many calls of Keras layers are on an op's stack, and the last line of the user."""
        if operation not in self._known:
            self._known[operation] = self._read(operation)
        return self._known[operation]

    def _read(self, operation: tf.Operation) -> tuple[int, str]:
        calls, source, of_library = 0, "", ""
        stack: Any = operation.traceback  # none where it was imported
        # TensorFlow's own frames are two thirds, and each costs as much as another.
        for frame in stack.get_user_frames() if stack else ():
            file = frame.filename
            if file == self._layer_file:
                calls += frame.name == "__call__"
                continue
            known = self._shown.get(file)
            if known is None:
                known = self._shown[file] = _shown(file)
            shown, installed = known
            if not shown:
                continue
            if installed:
                of_library = f"{shown}:{frame.lineno}"
            else:
                source = f"{shown}:{frame.lineno}"
        return calls, source or of_library


def _shown(file: str) -> tuple[str, bool]:
    """How a file is called, and whether it is an installed library's; "" for what is no line of a
    user: TensorFlow, Keras, Python's own and this package."""
    if file.startswith("<frozen") or "__autograph_generated_file" in file:
        return "", False
    if file.startswith(str(_PACKAGE) + os.sep):
        drawn = file.startswith(_DRAWING)
        return (os.path.relpath(file, _PACKAGE.parent) if drawn else ""), False
    for folder in _library_folders():
        if file.startswith(folder):
            inside = file.removeprefix(folder)
            ours = inside.split(os.sep)[0] in ("tensorflow", "keras")
            return ("" if ours else inside), True
    if file.startswith(sysconfig.get_paths()["stdlib"] + os.sep):
        return "", False
    if not os.path.isabs(file):
        return file, False
    here = os.getcwd() + os.sep
    return (file.removeprefix(here) if file.startswith(here) else os.path.basename(file)), False


def _library_folders() -> Iterator[str]:
    paths = sysconfig.get_paths()
    for folder in (paths["purelib"], paths["platlib"], *site.getsitepackages()):
        yield folder + os.sep


def _layers(graph: StepGraph, origins: list[Origin]) -> list[str]:
    """The layer of each op, "" where there is none. O(ops + edges + scopes)."""
    root = _root(origins)
    names = {origin.parts for origin in origins}
    # Scopes as the graph calls them -> the layer as it is shown.
    known: dict[Scopes, str] = {}
    for op, origin in zip(graph.ops, origins, strict=True):
        if origin.scopes:
            shown = _shown_layer(origin.scopes, root)
            known[origin.scopes] = shown
            if origin.inner:
                known.setdefault(origin.inner, shown)
        elif op.id in graph.forward:
            scopes = origin.parts[:-1]
            while scopes and scopes in names:  # a scope that an op has for what it needs
                scopes = scopes[:-1]
            if scopes:
                known.setdefault(scopes, "/".join(scopes))
    made: list[str] = []
    holders: dict[int, str] = {}  # handle -> the layer of the variable behind it
    for op, origin in zip(graph.ops, origins, strict=True):
        layer = known.get(origin.scopes) or _by_name(origin.parts[:-1], known)
        if not layer and op.id not in graph.forward:
            handles = [t for t in op.inputs if graph.tensors[t].dtype == "resource"]
            held = [holders[t] for t in handles if t in holders]
            before = (made[graph.tensors[t].op] for t in op.inputs if t not in handles)
            layer = next(filter(None, (*held, *before)), "")
        if layer:
            for t in op.inputs:
                if graph.tensors[t].dtype == "resource":
                    holders.setdefault(t, layer)
        made.append(layer)
    for t, layer in holders.items():  # a variable belongs to who reads it first
        made[graph.tensors[t].op] = layer
    return made


def _root(origins: list[Origin]) -> str:
    """The model that all layers lie in, which need not be said with each of them; "" if several."""
    roots = {each.scopes[0] for each in origins if each.scopes}
    return roots.pop() if len(roots) == 1 else ""


def _shown_layer(scopes: Scopes, root: str) -> str:
    inside = scopes[1:] if len(scopes) > 1 and scopes[0] == root else scopes
    return "/".join(_NUMBER.sub("", each) for each in inside)


def _by_name(scopes: Scopes, known: dict[Scopes, str]) -> str:
    """The layer whose scopes the op's begin with, those of gradients left out."""
    while scopes and scopes[0].startswith("gradient"):
        scopes = scopes[1:]
    while scopes:
        if scopes in known:
            return known[scopes]
        scopes = scopes[:-1]
    return ""
