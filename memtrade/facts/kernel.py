"""What is known of a kernel: what it asks the allocator for, and how long it takes."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from memtrade.graph import Op, StepGraph

SCRATCH = -1

# In the place of an input, see `Request.relief`.
END, NOTHING = -1, -2


class Request(NamedTuple):
    """One request to the allocator.

    Attributes:
        size_bytes: below 0 where scratch of so many bytes is given back before the kernel asks on.
        output: the output it is for, or SCRATCH.
        forwarded: inputs whose buffer is taken instead, if free.
        relief: scratch of several ops, which give inputs back as they go: most in use until then,
            and the input, or NOTHING; END after the last in an order of the ops.
    """

    size_bytes: int
    output: int = SCRATCH
    forwarded: tuple[int, ...] = ()
    relief: tuple[tuple[int, int], ...] = ()

    def trying(self, places: Iterable[int]) -> "Request":
        """No other inputs than these, in this order."""
        return self._replace(forwarded=tuple(p for p in places if p in self.forwarded))

    def relieved_bytes(
        self,
        inputs: Sequence[int],
        buffer_of: Sequence[int],
        refs: Sequence[int],
        sizes: Sequence[int],
    ) -> int:
        """With relief, what is beyond the inputs that nobody else will read: these are given back
        meanwhile."""
        most = freed = 0
        for taken_bytes, place in self.relief:
            most = max(most, taken_bytes - freed)
            if place == END:
                freed = 0
            elif place != NOTHING and refs[buffer := buffer_of[inputs[place]]] == 1:
                freed += sizes[buffer]
        return min(most, self.size_bytes)


class Fact(NamedTuple):
    """What the kernel of one op, for its shapes, is known to do.

    Attributes:
        requests: in order. Scratch is given back as the op ends, or by a request.
        seconds: what it takes; None where that is for a device profile to say.
        margin_bytes: by how much the scratch may be larger, where nobody has asked the kernel.
        workspace_bytes: scratch that its gradient reads, where the graph has both (MaxPool).
        source: "asked", or the name of the shipped facts.
    """

    requests: tuple[Request, ...]
    seconds: float | None = None
    margin_bytes: int = 0
    workspace_bytes: int = 0
    source: str = ""


def most_bytes(sizes: Iterable[int]) -> int:
    """What a kernel holds at once, at most, of requests of these sizes."""
    return max(accumulate(sizes, initial=0))


class Facts(Protocol):
    """One device's kernels."""

    @property
    def name(self) -> str: ...

    @property
    def merges(self) -> bool:
        """Whether the gradients of a convolution's filter and bias run as one kernel."""
        ...

    def of(self, op: Op, graph: StepGraph) -> Fact:
        """What the kernel of `op` does. Every op has a fact; an unknown one has a margin."""
        ...

    def is_known(self, op_type: str) -> bool:
        """Whether kernels of the type have been looked at at all."""
        ...
