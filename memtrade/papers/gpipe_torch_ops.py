"""What the layers of the GPT-2 pipeline logs ask PyTorch's allocator for, op by op.

As PyTorch 2 runs them on a GPU: a block that normalizes after each sum, with `MultiheadAttention`
that takes the batch for its second axis and returns the mean of its weights, GELU, and dropout
whose masks have a byte an element. Forward, a layer reads x and makes y; what is not let go of is
kept for the backward part. Backward, it reads dy and makes dx.
"""

import tomllib
from importlib import resources
from typing import NamedTuple

BATCH, POSITIONS, WIDTH, HEADS, WORDS = 64, 128, 768, 12, 3000
FLOAT = 4
_OPS = tomllib.loads(
    (resources.files("memtrade.papers") / "gpipe_torch_ops.toml").read_text(encoding="utf-8")
)
FORWARD: dict[str, str] = _OPS["forward"]
BACKWARD: dict[str, str] = _OPS["backward"]
# Of attention, its output, two norms, and the two products behind them: weights, then biases.
_BLOCK_BYTES = [
    FLOAT * WIDTH * count
    for count in (3 * WIDTH, 3, WIDTH, 1, 1, 1, 1, 1, 4 * WIDTH, 4, 4 * WIDTH, 1)
]
PARAMETER_BYTES = {
    "embedding": [FLOAT * WORDS * WIDTH],
    "positions": [FLOAT * POSITIONS * WIDTH],
    "block": _BLOCK_BYTES,
    "norm": [FLOAT * WIDTH] * 2,
    "head": [FLOAT * WORDS * WIDTH],
}


class TorchOp(NamedTuple):
    makes: str
    size_bytes: int
    gradients: tuple[int, ...]
    lets_go: tuple[str, ...]


def read_ops(text: str, units: dict[str, int]) -> list[TorchOp]:
    found = []
    for line in text.strip().splitlines():
        words = line.split()
        gradients = tuple(int(word[1:]) for word in words if word[0] == "+")
        lets_go = tuple(word[1:] for word in words if word[0] == "-" and word != "-")
        made = [word for word in words if word[0] not in "+-"]
        size = _size(made[1], units) if made else 0
        found.append(TorchOp(made[0] if made else "", size, gradients, lets_go))
    return found


def _size(text: str, units: dict[str, int]) -> int:
    """Of `3u`, `w/4`, `0`."""
    whole, _, divisor = text.partition("/")
    unit = units.get(whole[-1], 0)
    return int(whole[:-1] or 1) * unit // int(divisor or 1)
