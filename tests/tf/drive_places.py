"""Child process of test_places.py: makes holes in the arena, and says which were found."""

import json
import sys
from pathlib import Path

import tensorflow as tf

from memtrade.simulate.bfc import BfcAllocator
from memtrade.simulate.regions import GRAIN_BYTES
from memtrade.tf.device import MIB, Arena

LIMIT = 64 << 20
HOLES = (512, 1280, 70_144, 900_096, 5 << 20)  # bytes
FENCES = (4096, 4096, 4096, 4096, 3 << 20)  # between them, where no other hole is large enough
NEXT = (768, 60_000, 40_000, 3 << 20, 700_000, 256, 9 << 20)


def empty(size: int) -> tf.Tensor:
    return tf.raw_ops.Empty(shape=shapes[size], dtype=tf.uint8, init=False)


device = Arena(LIMIT)
device.start()
shapes = {size: tf.constant([size]) for size in (*HOLES, *FENCES, *NEXT)}
kept, gone = [], []
for size, fence in zip(HOLES, FENCES, strict=True):
    gone.append(empty(size))
    kept.append(empty(fence))
holes = [(device.offset(each), size) for each, size in zip(gone, HOLES, strict=True)]
gone.clear()
free = device.free_pieces()
in_use = device.in_use_bytes()

arena = BfcAllocator.one_region(LIMIT)
arena.occupy((), [(arena.address(offset), size) for offset, size in free])
allocated, simulated = [], []
for size in NEXT:
    kept.append(empty(size))
    allocated.append(device.offset(kept[-1]))
    address = arena.allocate(size)
    simulated.append(next(n for n in (allocated[-1], -1) if n < 0 or arena.address(n) == address))

kept.clear()
*_, (tail, _) = device.free_pieces()
(hole, _), place = holes[-1], range(MIB, MIB + 40 * GRAIN_BYTES, GRAIN_BYTES)
apart = {hole + at for at in place} | {tail + at for at in place}
below = max(apart) + 2 * GRAIN_BYTES
alone, others = device.filled(below, apart)
filled = {"apart": set(alone) == apart, "others": len(others), "free": device.free_pieces()}
Path(sys.argv[1]).write_text(
    json.dumps({
        "holes": holes, "free": free, "in_use": in_use,
        "allocated": allocated, "simulated": simulated,
        "filled": filled, "below": below, "elsewhere": device.offset(tf.constant(7, tf.int64)),
    })
)  # fmt: skip
