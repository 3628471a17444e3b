"""What the layers of the GPT-2 pipeline logs ask PyTorch's allocator for, op by op.

As PyTorch 2 runs them on a GPU: a block that normalizes after each sum, with `MultiheadAttention`
that takes the batch for its second axis and returns the mean of its weights, GELU, and dropout
whose masks have a byte an element. Forward, a layer reads x and makes y; what is not let go of is
kept for the backward part. Backward, it reads dy and makes dx.
"""

from __future__ import annotations

from typing import NamedTuple

BATCH, POSITIONS, WIDTH, HEADS, WORDS = 64, 128, 768, 12, 3000
FLOAT = 4
# One op a line: what it makes, how large, which parameters' gradients come along (+), and what is
# let go of behind it (-). u: a hidden state of the micro-batch; w: its attention matrices; s: a
# figure for each of its tokens; l: its logits.
FORWARD = {
    "embedding": "y u",
    "positions": "y u -x",
    "norm": "y u\n stats 2s",
    "head": "y l",
    "block": """
        joined 3u
        packed 3u -joined
        query u
        scores w
        weights w -scores
        kept w
        mask w/4
        mixed u
        merged u -mixed
        attention u
        mean w/12
        sum1 u
        norm1 u
        stats1 2s
        hidden 4u
        gelu 4u
        thinned 4u
        mask1 u -gelu
        narrow u
        output u
        mask2 u/4 -narrow
        sum2 u -output
        y u
        stats2 2s -attention -mean""",
}
BACKWARD = {
    "embedding": "+0 -x -dy",
    "positions": "dx 0 +0",
    "norm": "dx u +0 +1 -x -stats -dy",
    "head": "dx u +0 -x -dy",
    "block": """
        dsum2 u +6 +7 -dy -sum2 -stats2
        doutput u -mask2
        dthinned 4u +10 +11 -thinned -doutput
        dgelu 4u -mask1 -dthinned
        dhidden 4u -hidden -dgelu
        dnorm1 u +8 +9 -norm1 -dhidden
        dx u +4 +5 -sum1 -stats1 -dsum2 -dnorm1
        dmerged u +2 +3 -merged
        dkept w
        dvalue u -kept -dmerged
        dweights w -mask -dkept
        dscores w -weights -dweights
        dquery u
        dkey u -query -dscores
        scaled u -dquery -packed
        whole 3u -dvalue
        part 3u -dkey
        - -part
        part 3u -scaled
        - -part
        djoined 3u -whole
        dinput u +0 +1 -djoined -x
        - -dinput""",
}
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
