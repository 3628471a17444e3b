"""Variables that are moved: by way of the host, each into the smallest free place that holds it.

A variable comes to lie anywhere: a target network's takes over the buffer of the one it copies, and
an initializer leaves holes. Holes cost what they measure, and one that a tensor fits to the byte is
none that a plan can count on. So before a step is planned its variables are moved together:

    [online][ free ][slot][  free  ][target]    ──►    [online][slot][target][  free ...

So is an example of a batch, which lies behind the tensors that it was made of.
"""

import contextlib
import gc
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from memtrade.facts.variables import copied_variables
from memtrade.simulate.bfc import BfcAllocator
from memtrade.simulate.regions import round_up
from memtrade.tf.captured import captures, on_device, on_host, variable_spec
from memtrade.tf.device import FIRST_BYTES, Arena, merged
from memtrade.tf.extract import Trace
from memtrade.tf.in_place import put_in_place

# What is less than this share of what is in use is not worth it.
_LITTLE = 0.002


@dataclass(frozen=True, eq=False)
class Movable:
    """A variable that a step closes over."""

    handle: tf.Tensor
    spec: tf.TensorSpec
    stays: bool  # reads copy it, so nobody can tell where it lies

    def give(self, held: Any) -> None:
        """Has it hold what `on_host` told of it, in the smallest free place that holds that."""
        if self.stays:
            put_in_place(self.handle, self.spec, held)
        else:
            self.empty()
            self.take(held)

    def take(self, held: Any) -> None:
        """The same of one that is empty."""
        value = on_device(held, self.spec.dtype)
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)

    def empty(self) -> None:
        nothing = tf.zeros([0], self.spec.dtype)
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=nothing)

    def held(self) -> Any:
        """Its value, on the host."""
        return on_host(self._read())

    def offset(self, arena: Arena) -> int:
        return arena.offset(self._read())

    def can_move(self, arena: Arena) -> bool:
        """Whether it lies in the arena, its size is known, and reads do not copy it."""
        if not self.spec.shape.is_fully_defined():
            return False
        one, another = self._read(), self._read()
        return arena.offset(one) == arena.offset(another) >= 0

    def _read(self) -> tf.Tensor:
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.spec.dtype)

    @property
    def size_bytes(self) -> int:
        """In whole pieces of the allocator's."""
        return round_up((self.spec.shape.num_elements() or 0) * self.spec.dtype.size)


def movables(trace: Trace) -> list[Movable]:
    stay = {trace.graph.label(t) for t in copied_variables(trace.graph)}
    return [
        Movable(outer, spec, inner.name in stay)
        for inner, outer in captures(trace.concrete)
        if (spec := variable_spec(outer))
    ]


def move_together(trace: Trace, arena: Arena) -> None:
    """Has the step's variables lie side by side, the largest first, if that leaves less lost among
    them. Those that share a buffer, as they will not once they are updated, get one each. What is
    free in the first region is for small tensors, which would lie between large ones if it were
    full."""
    found = _scattered(trace, arena)
    if not found:
        return
    plugs = [each for each in arena.plugged()[1] if arena.offset(each) < FIRST_BYTES]
    held = [each.held() for each in found]
    for each in found:
        each.empty()
    for each, value in zip(found, held, strict=True):
        each.take(value)
    del plugs


@contextlib.contextmanager
def aside(
    tensors: Sequence[Any] | None, arena: Arena, beside: Iterable[Movable] = ()
) -> Iterator[None]:
    """Within the block those of a list that nobody else holds are on the host; then each of them
    lies in the smallest free place that holds it, the largest first. If that leaves less lost among
    them, and `beside`, which may move meanwhile."""
    held: list[_Held] = []
    if isinstance(tensors, list) and _are_scattered(tensors, arena, beside):
        held = _taken_out(tensors, arena)
    try:
        yield
    finally:
        held.sort(key=lambda each: -each.size_bytes)
        for each in held:
            again = on_device(each.value, each.dtype)
            for place in each.places:
                tensors[place] = again  # pyright: ignore[reportOptionalSubscript, reportIndexIssue]


@dataclass(frozen=True, eq=False)
class _Held:
    """A tensor on the host, and where in the list it stands."""

    value: Any
    dtype: tf.DType
    size_bytes: int
    places: list[int]


def _are_scattered(tensors: list[Any], arena: Arena, beside: Iterable[Movable]) -> bool:
    lie = {arena.offset(each): _bytes_of(each) for each in tensors if _lies_there(each, arena)}
    if not lie:
        return False
    with contextlib.suppress(tf.errors.OpError, ValueError, TypeError):  # no room, or no numbers
        lie |= {each.offset(arena): each.size_bytes for each in beside if each.can_move(arena)}
        return _gained_bytes(arena, lie, sorted(lie.values(), reverse=True)) > 0
    return False


def _bytes_of(tensor: tf.Tensor) -> int:
    """In whole pieces of the allocator's."""
    return round_up(tensor.shape.num_elements() * tensor.dtype.size)


def _taken_out(tensors: list[Any], arena: Arena) -> list[_Held]:
    """What went; what somebody else holds stays, as there would be two of it."""
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, each in enumerate(tensors):
        if _lies_there(each, arena):
            places[id(each)].append(place)
    made, alive = [], []
    for where in places.values():
        each = tensors[where[0]]
        made.append(_Held(on_host(each), each.dtype, _bytes_of(each), where))
        alive.append(weakref.ref(each))
        for place in where:
            tensors[place] = None
    each = None
    gc.collect()
    for held, reference in zip(made, alive, strict=True):
        for place in held.places:
            tensors[place] = reference()
    return [held for held in made if tensors[held.places[0]] is None]


def _lies_there(value: Any, arena: Arena) -> bool:
    """Whether it is a tensor of numbers in the arena."""
    if not tf.is_tensor(value) or tf.is_symbolic_tensor(value):
        return False
    if value.dtype in (tf.resource, tf.string, tf.variant) or not value.shape.num_elements():
        return False
    return arena.offset(value) >= 0


def _scattered(trace: Trace, arena: Arena) -> list[Movable]:
    """The variables that can be moved, the largest first, if that gains anything."""
    with contextlib.suppress(tf.errors.OpError, ValueError, TypeError):  # no room, or no numbers
        found = [each for each in movables(trace) if each.can_move(arena)]
        found.sort(key=lambda each: -each.size_bytes)
        lie = {each.offset(arena): each.size_bytes for each in found}
        if _gained_bytes(arena, lie, [each.size_bytes for each in found]) > 0:
            return found
    return []


def _gained_bytes(arena: Arena, lie: Mapping[int, int], sizes: Sequence[int]) -> int:
    """By how much less is lost in holes and padding, if that is worth it, once what lies at these
    offsets is given back, and so many bytes each are asked for. 0 where there may be no room."""
    *pieces, (tail, room) = arena.free_pieces()
    if not sizes or sum(sizes) + max(sizes) > room:
        return 0
    behind = [piece for piece in pieces if piece[0] >= FIRST_BYTES]
    model = BfcAllocator.one_region(tail + room)
    opened = merged([*behind, (tail, room), *lie.items()])
    model.occupy((), [(model.address(at), size) for at, size in opened])
    for size in sizes:
        model.allocate(size)
    gained = model.largest_free_bytes + sum(sizes) - room - sum(lie.values())
    return gained if gained > _LITTLE * arena.in_use_bytes() else 0
