"""Kernel facts: what kernels ask the allocator for, which input they reuse, how long they take.

    op of a StepGraph ──Facts.of──► Fact: requests (scratch, outputs, reuse), seconds, margin

Facts come from files that are shipped (`shipped.py`), or were learned where they are used.
"""

from memtrade.facts.kernel import SCRATCH, Fact, Facts, Request, most_bytes
from memtrade.facts.shipped import (
    CPU,
    OUTPUTS,
    ShippedFacts,
    looked_at,
    read_as_shapes,
    reuse,
    shipped,
)

__all__ = [
    "CPU", "OUTPUTS", "SCRATCH", "Fact", "Facts", "Request",
    "ShippedFacts", "looked_at", "most_bytes", "read_as_shapes", "reuse", "shipped",
]  # fmt: skip
