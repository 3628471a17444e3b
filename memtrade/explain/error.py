"""What TensorFlow says when memory runs out: the error, and the allocator's dump in the log.

    OOM when allocating tensor with shape[32,56,56,256] and type float on /job:.../device:GPU:0 by
    allocator GPU_0_bfc
             [[{{node gradient_tape/functional_1/conv1_1/Conv2DBackpropInput}}]]
    Allocator (GPU_0_bfc) ran out of memory trying to allocate 98.00MiB (rounded to 102760448)
    Free  at 7f5c80000000 of size 1048576 next 34
    Limit: 2147483648 ...

Logs repeat themselves, and a kernel that tries a faster way first is refused memory without harm:
what counts is the last failure of each kind. Some errors say neither who asked nor for how much;
the stack that stands around them still says which line of the program it was.
"""

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

import memtrade
from memtrade.errors import MemtradeError
from memtrade.units import TYPE_BYTES, parse_bytes

_TENSOR = re.compile(
    r"OOM when allocating (?P<temporary>temporary )?tensor (?:with|of) shape ?"
    r"\[(?P<shape>[\d, ]*)\](?: and type (?P<type>\w+))?"
    r"(?:.*?device:(?P<device>\w+:\d+))?"
)
_REFUSED = re.compile(
    r"Allocator \([^)]+\) ran out of memory trying to allocate (?P<size>[\d.]+ ?\w+)"
    r"(?: \(rounded to (?P<rounded>\d+)\))?(?: ?requested by op (?P<op>\S+))?"
)
_HARMLESS = "not a failure"
_XLA = re.compile(
    r"out of memory (?:while trying to allocate|allocating) (?P<size>[\d.]+ ?[KMGT]?i?B)",
    re.IGNORECASE,
)
_UNSAID = re.compile(
    r"failed to allocate memory|unable to allocate output tensor|Dst tensor is not initialized"
)
# The card itself has refused, and not TensorFlow's allocator that shares out what it got of it.
_CARD = re.compile(
    r"failed to allocate [\d.]+\w* \((?P<bytes>\d+) bytes\) from device[^\n]*|"
    r"CUDA_ERROR_OUT_OF_MEMORY|CU(?:DNN|BLAS)_STATUS_ALLOC_FAILED"
)
_NODES = (
    re.compile(r"\{\{node (?P<op>[^}\s]+)\}\}"),
    re.compile(r"\(node (?P<op>\S+)\)"),  # as this package's own records say it
    re.compile(r"Detected at node '?(?P<op>[^'\s]+)'? defined at"),
    re.compile(r"\[\[node (?P<op>[^\s\]]+)"),
)
_EAGER = re.compile(r"\[Op:(?P<type>(?!__)\w+)\]")
_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)|\(defined at (?P<at>[^()\s]+:\d+)\)'
)
# Where installed packages and Python's own modules lie, on Windows in a folder of no name.
_INSTALLED = re.compile(
    r"(?:site|dist)-packages|[/\\]lib[/\\]python3|\\lib\\\w+\.py$|^<frozen", re.IGNORECASE
)
_OURS = str(Path(memtrade.__file__).parent) + os.sep
_FREE = re.compile(r"Free +at \w+ of size (?P<size>\d+)")
_POOL = re.compile(
    r"Total bytes in pool: \d+ memory_limit_: (?P<limit>\d+) "
    r"available bytes: (?P<left>\d+)"
)
_IN_USE = re.compile(r"^.*\bInUse:\s+(?P<size>\d+)\s*$", re.MULTILINE)
_LIMIT = re.compile(r"^.*\bLimit:\s+(?P<limit>\d+)\s*$", re.MULTILINE)


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """The allocator's own account, in bytes.

    Attributes:
        largest_free_bytes: of one piece, or of `left_bytes`.
        left_bytes: what the allocator may still take from the system.
    """

    limit_bytes: int = 0
    in_use_bytes: int = 0
    largest_free_bytes: int = 0
    left_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.in_use_bytes


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was refused.

    Attributes:
        op: TensorFlow's name of who asked; "" where the text does not say.
        op_type: of one that was run by itself, outside of any function: "MatMul".
        source: the line of the user's program, "train.py:12".
        requested_bytes: 0 where the text does not say.
        temporary: whether it was scratch memory, and not an output.
        device: "GPU:0".
        by_card: whether the card refused, and nothing says that TensorFlow's allocator did.
        dump: None where the text has none: TF_CPP_MIN_LOG_LEVEL=0 shows it.
    """

    op: str = ""
    op_type: str = ""
    source: str = ""
    requested_bytes: int = 0
    shape: tuple[int, ...] | None = None
    temporary: bool = False
    device: str = ""
    by_card: bool = False
    dump: Dump | None = None

    def names(self, op: str) -> bool:
        """Whether the op that asked may be this one, in whatever scopes its step is called."""
        return bool(self.op) and f"/{op}".endswith(f"/{self.op}")


def read_failure(text: str) -> Failure:
    """What an error message, a log or both say.

    Raises:
        MemtradeError: nothing in it says that memory ran out.
    """
    tensor = _last(_TENSOR.finditer(text))
    refused = _last(each for each in _REFUSED.finditer(text) if not _harmless(text, each))
    compiled, card = _last(_XLA.finditer(text)), _last(_CARD.finditer(text))
    said = tensor or refused or compiled or _UNSAID.search(text)
    if said is None and card is None:
        raise MemtradeError(
            "this is no out-of-memory error of TensorFlow: no line says 'OOM when allocating "
            "tensor', 'ran out of memory' or 'failed to allocate memory'. Paste the whole error, "
            "and the log above it"
        )
    made = {"op": _op(text, tensor, refused), "source": _source(text), "dump": _dump(text)}
    eager = _last(_EAGER.finditer(text))
    if eager is not None and not made["op"]:
        made["op_type"] = eager["type"]
    if tensor is not None:
        shape = tuple(int(each) for each in tensor["shape"].split(",") if each.strip())
        item_bytes = TYPE_BYTES.get(tensor["type"] or "", 0)
        made |= {
            "shape": shape,
            "requested_bytes": math.prod(shape) * item_bytes,
            "temporary": bool(tensor["temporary"]),
            "device": tensor["device"] or "",
        }
    asked = 0
    if refused is not None:
        asked = int(refused["rounded"] or 0) or parse_bytes(refused["size"])
    elif compiled is not None:
        asked = parse_bytes(compiled["size"])
    elif card is not None:
        asked = int(card["bytes"] or 0)
    made["requested_bytes"] = made.get("requested_bytes") or asked
    return Failure(**made, by_card=said is None)


def is_fragmented(requested_bytes: int, free_bytes: int, largest_free_bytes: int) -> bool:
    """Whether so many bytes were free, but not in one piece."""
    return 0 < requested_bytes <= free_bytes and requested_bytes > largest_free_bytes


def node_of(error: Exception) -> str:
    """The node that an error of TensorFlow's names, or ""."""
    found = _NODES[0].search(_message(error))
    return found["op"] if found else ""


def first_line(error: Exception) -> str:
    """The line of an error that says what there was no memory for, with the node; or its first."""
    lines = [line.strip() for line in _message(error).splitlines() if line.strip()]
    telling = [line for line in lines if "OOM" in line or "out of memory" in line.lower()]
    said = (telling or lines or ["out of memory"])[0][:300]
    return f"{said} (node {node})" if (node := node_of(error)) and node not in said else said


def _message(error: Exception) -> str:
    return str(getattr(error, "message", error))


def _last(matches: Iterable[re.Match[str]]) -> re.Match[str] | None:
    found = None
    for each in matches:
        found = each
    return found


def _harmless(text: str, refused: re.Match[str]) -> bool:
    """Whether the caller of the allocator has said that it can do without."""
    end = text.find("\n", refused.end())
    return _HARMLESS in text[refused.end() : end if end >= 0 else len(text)]


def _op(text: str, tensor: re.Match[str] | None, refused: re.Match[str] | None) -> str:
    """Who asked: the node named behind the error, else anywhere, else in the allocator's words."""
    for pattern in _NODES:
        found = pattern.search(text, tensor.end() if tensor else 0) or pattern.search(text)
        if found:
            return found["op"]
    return (refused["op"] or "") if refused else ""


def _source(text: str) -> str:
    """The innermost line of the user's program: of the stack in which the node was made, else of
    the one in which it ran."""
    made = text.rfind("Detected at node")
    for part in (text[made:] if made >= 0 else "", text):
        for found in reversed(list(_FRAME.finditer(part))):
            file = found["file"] or found["at"]
            if not _INSTALLED.search(file) and not file.startswith(_OURS):
                said = found["at"] or f"{file}:{found['line']}"
                return said.removeprefix(os.getcwd() + os.sep)
    return ""


def _dump(text: str) -> Dump | None:
    text = text[max(text.rfind("BFCAllocator dump for"), 0) :]
    pool, limit, in_use = (_last(each.finditer(text)) for each in (_POOL, _LIMIT, _IN_USE))
    limited = pool or limit
    free = [int(each["size"]) for each in _FREE.finditer(text)]
    left_bytes = int(pool["left"]) if pool is not None else 0
    if pool is not None:
        free.append(left_bytes)
    if in_use is None or limited is None or not free:
        return None
    return Dump(
        limit_bytes=int(limited["limit"]),
        in_use_bytes=int(in_use["size"]),
        largest_free_bytes=max(free),
        left_bytes=left_bytes,
    )
