"""Child process of test_places.py: a target network takes over the buffers of the one that it
copies, and so leaves holes of its own. Says where variables lay before and after they were moved
together, whether they hold what they held, and what it takes of the arena to keep that; and whether
what nobody holds any more, but in a cycle, counts as there."""

import gc
import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from memtrade.tf.device import MIB, Arena
from memtrade.tf.extract import trace_concrete
from memtrade.tf.moving import movables, move_together
from memtrade.tf.places import places_of
from memtrade.tf.rehearsal import _Kept
from memtrade.tf.step import TrainStep

SIZES = (300, 700, 400)  # of square matrices
ROWS = 64

device = Arena(64 * MIB)
device.start()
# What is no variable, and stays, comes first: it would lie between the others.
name = tf.Variable(tf.constant("a text"))
counts = tf.Variable(tf.range(200_000))
online = [tf.Variable(tf.random.normal([size, size])) for size in SIZES]
target = [tf.Variable(tf.zeros([size, size])) for size in SIZES]
for follower, leader in zip(target, online, strict=True):
    follower.assign(leader)


@tf.function
def train_step(*batch: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        pairs = zip(batch, online, target, strict=True)
        loss = tf.add_n([tf.reduce_sum((x @ a - x @ b) ** 2) for x, a, b in pairs])
    for variable, gradient in zip(online, tape.gradient(loss, online), strict=True):
        variable.assign_sub(gradient)
    counts.assign_add(tf.ones_like(counts))
    if name == "another":
        loss = 2.0 * loss
    return loss


specs = tuple(tf.TensorSpec([ROWS, size]) for size in SIZES)
step = TrainStep("step", train_step, specs, tuple, lambda: tuple(online))
concrete = train_step.get_concrete_function(*specs)  # pyright: ignore[reportFunctionMemberAccess]
traced = trace_concrete(step, concrete)
held = [each.numpy() for each in (*online, *target, counts)]
free = device.free_pieces()
move_together(traced, device)
move_together(traced, device)  # there is nothing left to move
at = sorted(each.offset(device) for each in movables(traced))
before = device.in_use_bytes()
kept = _Kept(movables(traced))
kept_bytes = device.in_use_bytes() - before
now = [each.numpy() for each in (*online, *target, counts)]
gc.disable()
cycle: list[object] = [tf.zeros([1000])]
cycle.append(cycle)
del cycle
places = places_of(traced, (), device)
assert places is not None
told_bytes = sum(size for _, size in places.free)
gc.collect()
Path(sys.argv[1]).write_text(
    json.dumps({
        "last": [free[-1], device.free_pieces()[-1]],
        "shared": sum(size**2 for size in SIZES) * 4,
        "apart": len(set(at)), "variables": len(at),
        "same": all(np.array_equal(a, b) for a, b in zip(held, now, strict=True)),
        "kept_bytes": kept_bytes,
        "untold_bytes": sum(size for _, size in device.free_pieces()) - told_bytes,
        "text": name.numpy().decode(),
    })
)  # fmt: skip
