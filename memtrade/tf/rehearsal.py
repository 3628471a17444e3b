"""Runs of a rewritten step before it trains: what its device says of them, and nothing remains.

Variables are read to the host before and written back after, each where it lay. The function is the
one that will train: what tracing another one leaves behind, nobody foresees. Its caller is another,
so that the random numbers of the training to come are not drawn. A step that does more than compute
and update variables is not rehearsed.
"""

import contextlib
import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from memtrade.op_types import BODY_TYPES, CALL_TYPES, HARMLESS_TYPES
from memtrade.simulate.regions import GRAIN_BYTES
from memtrade.target import Places
from memtrade.tf.captured import captures
from memtrade.tf.device import Arena
from memtrade.tf.extract import Trace
from memtrade.tf.inline import changing
from memtrade.tf.moving import Movable, movables
from memtrade.tf.places import places_here

_DRAWING = ("Random", "StatelessRandom", "TruncatedNormal", "Multinomial")
_UPDATING = (
    "Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply",
    "ResourceStridedSliceAssign",
)  # fmt: skip
# Updates may have given variables other places by the second, which others fill in the third.
_STEPS = 3
# A step that begins elsewhere takes another peak: it is rehearsed again from there.
_REHEARSALS = 3
# In pieces of 256 bytes, that takes a second or two.
_MOST_FILLED_BYTES = 32 << 20


def can_be_rehearsed(trace: Trace) -> bool:
    """Whether all that the step changes are variables, which are there, and its sizes are known.
    A part of a step does not run alone."""
    if trace.device:
        return False
    closed = all(spec.shape.is_fully_defined() for spec in trace.step.specs)
    if not closed and trace.step.example is None:
        return False
    if any(tf.is_symbolic_tensor(captured) for _, captured in captures(trace.concrete)):
        return False
    is_given = bool(trace.step.example)  # what is asserted of a batch holds for this one

    def may(op_type: str) -> bool:
        return _ends_in_variables(op_type) or (op_type == "Assert" and is_given)

    beyond = set(changing(trace.graph_def, may))
    return all(
        may(op.type)
        or (op.type in CALL_TYPES and "filter" in op.attrs)
        or (op.type in BODY_TYPES and op.name not in beyond)
        for op in trace.graph.ops
        if op.stateful
    )


def _ends_in_variables(op_type: str) -> bool:
    """Whether an op with a state changes nothing but variables."""
    return op_type in HARMLESS_TYPES or op_type.startswith(_DRAWING + _UPDATING)


class Rehearsal(NamedTuple):
    """What runs of a rewritten step told.

    Attributes:
        concrete: the rewritten step's function.
        taken_bytes: the most in use beyond what was before it was built; None where what
            the step asserts does not hold, and where the device's allocator keeps no count, as
            TensorFlow's for the CPU does not unless it is told to (TF_CPU_ALLOCATOR_USE_BFC).
        places: what lies where now that the step is there; None where nobody can tell.
        moved: whether that is not as it was.
    """

    concrete: Any
    taken_bytes: int | None
    places: Places | None = None
    moved: bool = False


def rehearsed(
    trace: Trace,
    build: Callable[[], Any],
    device: str,
    lies: Sequence[int] | None,
    call: Callable[..., Any],
) -> Rehearsal:
    """Builds a step, and runs it on `device` ("GPU:0").

    Args:
        lies: `offsets_of` its batch, where that is there.
        call: calls what was built, with the batch's tensors.

    Raises:
        tf.errors.ResourceExhaustedError: the step does not fit the device.
    """
    with tf.init_scope():  # apply is called while a function is being traced
        unbuilt_bytes = _in_use_bytes(device)
        concrete = build()
        if unbuilt_bytes is None:
            return Rehearsal(concrete, None)
        kept_bytes = (_in_use_bytes(device) or 0) - unbuilt_bytes
        taken_bytes, moved = 0, False
        places = places_here(trace, lies, built=True)
        for _ in range(_REHEARSALS):
            try:
                taken_bytes = _run(trace, partial(call, concrete), device) + kept_bytes
            except tf.errors.InvalidArgumentError:  # what it asserts: whoever calls it will see
                return Rehearsal(concrete, None)
            before, places = places, places_here(trace, lies, built=True)
            moved = places != before
            if not moved:  # what trains begins where this began
                break
        return Rehearsal(concrete, taken_bytes, places, moved)


def _in_use_bytes(device: str) -> int | None:
    try:
        return tf.config.experimental.get_memory_info(device)["current"]
    except ValueError:
        return None


def _run(trace: Trace, call: Callable[..., Any], device: str) -> int:
    """Most bytes that calls of the step take beyond what is in use and the batch."""
    example = trace.step.example
    batch = trace.step.make_batch() if example is None else example
    batch = [*map(tf.convert_to_tensor, batch)]
    kept = _Kept(movables(trace))
    tf.config.experimental.reset_memory_stats(device)  # of what looking at the arena took
    in_use = tf.config.experimental.get_memory_info(device)["current"]
    alone = tf.function(lambda *values: call(values), autograph=False)
    try:
        for _ in range(_STEPS):
            results = alone(*batch)
            for result in tf.nest.flatten(results, expand_composites=True):
                if tf.is_tensor(result):  # a step may return None
                    result.numpy()  # until the device is done
            results = result = None
        peak = tf.config.experimental.get_memory_info(device)["peak"]
    finally:
        results = result = alone = None  # whatever ended them
        gc.collect()  # with a function goes what the runtime keeps of its kernels
        kept.give_back()
    return peak - in_use


class _Kept:
    """What variables hold, and where.

    An update may give a variable another buffer, so after a run they lie elsewhere, with holes
    among them; the plan was made for where they lay.
    """

    def __init__(self, variables: Sequence[Movable]):
        self.variables = variables
        self.arena = Arena.started
        self.lay: dict[Movable, int] = {}
        self.bounds: set[int] = set()  # where something else began
        with contextlib.suppress(tf.errors.OpError, ValueError):  # too little is free
            if self.arena is not None:
                lay = {each: each.offset(self.arena) for each in variables if not each.stays}
                self.bounds = {at for at, _ in self.arena.free_pieces()}.union(lay.values())
                self.lay = lay
        self.values = [each.held() for each in variables]

    def give_back(self) -> None:
        """Each goes where it lay, or if that would take long, where it lies."""
        for i, value in enumerate(self.values):  # before there are places that tensors could take
            self.values[i] = tf.constant(value) if isinstance(value, bytes) else value
        grains, plugs = {}, None
        with contextlib.suppress(tf.errors.OpError, ValueError):  # too little is free
            if self.arena is not None:
                grains, plugs = self._filled(self.arena)
        for variable, value in zip(self.variables, self.values, strict=True):
            at = self.lay.get(variable, -1)
            while at in grains:  # up to where the next one began
                del grains[at]
                at = -1 if at + GRAIN_BYTES in self.bounds else at + GRAIN_BYTES
            variable.give(value)
        del grains, plugs

    def _filled(self, arena: Arena) -> tuple[dict[int, tf.Tensor], Any]:
        """Fills what is free in the arena but for its last piece, so that each hole is opened for
        one variable alone; those that moved hold nothing then. See `Arena.filled`."""
        moved = [each for each, at in self.lay.items() if each.offset(arena) != at]
        if sum(each.size_bytes for each in moved) > _MOST_FILLED_BYTES:
            return {}, arena.plugged()
        for each in moved:
            each.empty()
        tail, _ = arena.free_pieces()[-1]
        places = [range(at := self.lay[each], at + each.size_bytes, GRAIN_BYTES) for each in moved]
        below = max([tail, *(place.stop for place in places)])
        return arena.filled(below, set().union(*places))
