"""Byte sizes as people write them. MB = 10^6 bytes, MiB = 2^20 bytes; inside, bytes are ints."""

import math
import re
from numbers import Real
from typing import Any

from memtrade.errors import MemtradeError, RuleError

# In capitals: `mib` and `MIB` mean MiB, for the case carries no meaning for bytes.
_FACTORS = {"B": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("B", 1000), ("IB", 1024))
}
# The arena's first region has 2 MiB, and its second one at least.
LEAST_LIMIT_BYTES = 3 << 20
# Bytes of a number, by the names that TensorFlow has for its type in Python and in its messages.
TYPE_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "half": 2, "float16": 2, "bfloat16": 2, "int16": 2,
    "uint16": 2, "qint16": 2, "quint16": 2, "float": 4, "float32": 4, "int32": 4, "uint32": 4,
    "qint32": 4, "double": 8, "float64": 8, "int64": 8, "uint64": 8, "complex64": 8,
    "complex128": 16,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def parse_bytes(text: str, what: str = "a size") -> int:
    """Bytes in `text`, a number with a unit. Raises RuleError, which says `what` it is, for others.

    >>> parse_bytes("7254MiB"), parse_bytes("1.5 GB")
    (7606370304, 1500000000)
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        rule = f"is a number and a unit, not {text!r}: write 7254MiB, 800MB or 6GB"
        raise RuleError(what, f"{rule}; the largest unit is TiB")
    return round(float(match[1]) * factor)


def bytes_of(size: Any, what: str = "a size") -> int:
    """A size that a user gave as text or in bytes; errors say `what` it is.

    >>> bytes_of("6GB") == bytes_of(6e9)
    True
    """
    if isinstance(size, str):
        return parse_bytes(size, what)
    number = isinstance(size, Real) and not isinstance(size, bool)
    if not number or not math.isfinite(size):
        raise MemtradeError(f"{what} is a number of bytes, or text such as 6GB, not {size!r}")
    return int(float(size))


def limit_of(name: str, limit: Any, *, least_bytes: int = 1 << 20) -> int | None:
    """The memory limit in bytes that `name` was given, if any. Raises MemtradeError for one that is
    too small for any step."""
    limit_bytes = None if limit is None else bytes_of(limit, name)
    if limit_bytes is not None and limit_bytes < least_bytes:
        raise MemtradeError(f"{name} must be at least {least_bytes >> 20}MiB, not {limit}")
    return limit_bytes


def mebibytes(size_bytes: int) -> str:
    """`size_bytes` in whole MiB, with the unit: what a limit is."""
    return f"{size_bytes / 2**20:,.0f} MiB"


def megabytes(size_bytes: int, bound: str = "") -> str:
    """`size_bytes` as MB with one decimal, for views; `bound` stands before a predicted peak."""
    return f"{bound} {size_bytes / 1e6:,.1f}".lstrip()


def kilobytes(size_bytes: int, bound: str = "") -> str:
    """`size_bytes` as KB with one decimal, where all are small."""
    return f"{bound} {size_bytes / 1e3:,.1f}".lstrip()


def megabytes_between(least_bytes: int, most_bytes: int) -> str:
    """The least and the most, as `megabytes`: once, where both read the same."""
    return " to ".join(dict.fromkeys(map(megabytes, (least_bytes, most_bytes))))
