"""A step in a file, for a process of its own: what a user's process has traced, a child can run.

    save_step ──► graph, shapes of variables ──► file ──► make_step, in the child

Weights stay behind: the child makes zeros in their places, for memory does not depend on values.
Counters and scales are small, and decide on branches, so they go along.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.tf.captured import variable_spec
from memtrade.tf.graft import grafted
from memtrade.tf.loss import NAME, Named, candidates
from memtrade.tf.structure import named_leaves
from memtrade.tf.variables import static_shape

# The variable of a child's environment that says where the file is, and the target to run there.
STEP_FILE = "MEMTRADE_STEP_FILE"
TARGET = f"{__name__}:make_step"

_SMALL_BYTES = 1024


class _Captured(msgspec.Struct, frozen=True):
    """What a step closes over. `value`: a serialized tensor; of a large variable, none."""

    shape: tuple[int, ...]
    dtype: str
    is_variable: bool
    value: bytes | None


class _Step(msgspec.Struct, frozen=True):
    graph: bytes
    specs: tuple[tuple[tuple[int, ...], str], ...]
    names: tuple[str, ...]
    captured: tuple[_Captured, ...]
    results: dict[str, str]
    effects: tuple[str, ...]


def save_step(concrete: Any, specs: Sequence[tf.TensorSpec], path: Path, loss: Named) -> None:
    """Writes a concrete function of `specs`, which have all sizes, into a file.

    Raises:
        UnsupportedGraphError: it closes over what no other process has, such as a table.
    """
    graph = concrete.graph
    returned = {
        path or "result": leaf
        for path, leaf in named_leaves(concrete.structured_outputs)
        if isinstance(leaf, tf.Tensor)
    }
    if loss is not None:
        returned[NAME] = candidates(concrete.structured_outputs, loss)[0][0]
    step = _Step(
        graph=graph.as_graph_def().SerializeToString(),
        specs=tuple((static_shape(spec), spec.dtype.name) for spec in specs),
        names=tuple(t.op.name for t in graph.inputs),
        captured=tuple(map(_captured, concrete.captured_inputs)),
        results={path: leaf.name for path, leaf in returned.items()},
        effects=tuple(op.name for op in graph.control_outputs),
    )
    path.write_bytes(msgspec.msgpack.encode(step))


def make_step() -> tuple[Any, tuple[tf.TensorSpec, ...]]:
    """The step that `STEP_FILE` names, and the specs of its batch: a target of `memtrade run`."""
    step = msgspec.msgpack.decode(Path(os.environ[STEP_FILE]).read_bytes(), type=_Step)
    graph_def = tf.compat.v1.GraphDef.FromString(step.graph)
    # Imported eagerly, functions are there for whatever calls them; within a graph, they are not.
    library = tf.compat.v1.GraphDef(library=graph_def.library, versions=graph_def.versions)
    tf.graph_util.import_graph_def(library, name="")
    specs = tuple(tf.TensorSpec(shape, tf.as_dtype(dtype)) for shape, dtype in step.specs)
    made = [_made(each) for each in step.captured]
    function: Any = grafted(
        graph_def,
        specs,
        names=step.names,
        captured=lambda: [e.handle if isinstance(e, tf.Variable) else e for e in made],
        structure=dict.fromkeys(step.results, tf.TensorSpec([])),
        results=[step.results[path] for path in sorted(step.results)],
        effects=step.effects,
        alone=False,
    )
    function.variables_held = made  # a captured handle alone does not keep its variable
    return function, specs


def _captured(outer: tf.Tensor) -> _Captured:
    spec = variable_spec(outer)
    if outer.dtype == tf.resource and (spec is None or not spec.shape.is_fully_defined()):
        raise UnsupportedGraphError(
            "the step closes over something that is no variable of a known shape, such as a table "
            "or an iterator, and cannot be tried in another process: take it out of the step"
        )
    if spec is None:
        return _Captured(static_shape(outer), outer.dtype.name, False, _encoded(outer))
    small = spec.shape.num_elements() * spec.dtype.size <= _SMALL_BYTES
    value = tf.raw_ops.ReadVariableOp(resource=outer, dtype=spec.dtype) if small else None
    encoded = None if value is None else _encoded(value)
    return _Captured(static_shape(spec), spec.dtype.name, True, encoded)


def _encoded(value: tf.Tensor) -> bytes:
    return tf.io.serialize_tensor(value).numpy()


def _made(captured: _Captured) -> Any:
    """A variable, or a constant. A variable's first value is made where its place is laid down,
    or what it leaves would be holes (`memtrade.tf.laying`)."""
    dtype = tf.as_dtype(captured.dtype)

    def value() -> Any:
        if captured.value is None:
            return tf.zeros(captured.shape, dtype)
        return tf.io.parse_tensor(captured.value, dtype)

    return tf.Variable(value) if captured.is_variable else value()
