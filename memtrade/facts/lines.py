"""What a kernel asks for on more examples than it was run on: a line through two of three sizes."""

from collections.abc import Mapping
from typing import NamedTuple

from memtrade.facts.asking import Answer
from memtrade.facts.learned import Learned

# How far the size in the middle may be off the line through the others.
_FIT, _FIT_BYTES = 0.005, 256


class Extended(NamedTuple):
    """`source`: which runs it was made of, for people."""

    source: str
    requests: tuple[tuple[int, int], ...]
    seconds: float | None


def extended(runs: Mapping[int, Answer | Learned], examples: int) -> Extended | None:
    """What it does on `examples`, from three runs by their number of examples; None where the run
    in the middle is not on the line, or one asks for other things than the others."""
    (low, a), (middle, b), (high, c) = sorted(runs.items())
    slots = [[slot for _, slot in run.requests] for run in (a, b, c)]
    if not slots[0] == slots[1] == slots[2]:
        return None

    def at(first: float, last: float, where: int) -> float:
        return first + (last - first) * (where - low) / (high - low)

    requests = []
    for (x, slot), (y, _), (z, _) in zip(a.requests, b.requests, c.requests, strict=True):
        if abs(at(x, z, middle) - y) > max(_FIT * abs(y), _FIT_BYTES):
            return None
        size_bytes = round(at(x, z, examples))
        requests.append((min(size_bytes, 0) if y < 0 else max(size_bytes, 0), slot))
    source = f"fitted from batch {low}, {middle}, {high}"
    if b.seconds is None or c.seconds is None:
        return Extended(source, tuple(requests), None)
    slope = (c.seconds - b.seconds) / (high - middle)
    return Extended(source, tuple(requests), c.seconds + max(slope, 0.0) * (examples - high))
