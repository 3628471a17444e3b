"""Child process of test_places.py: a target network takes over the buffers of the one that it
copies, and so leaves holes of its own. Says where variables lay before and after they were moved
together, whether they hold what they held, and what it takes of the arena to keep that; whether
what nobody holds any more, but in a cycle, counts as there; and where an example of a batch lies
that was made of larger tensors, and what else holds it."""

import gc
import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from memtrade.tf.device import MIB, Arena
from memtrade.tf.extract import trace_concrete
from memtrade.tf.moving import aside, movables, move_together
from memtrade.tf.places import lay_out
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
_, places = lay_out(traced, device)
assert places is not None
told_bytes = sum(size for _, size in places.free)
gc.collect()
left = device.free_pieces()
hole = tf.zeros([500_000])
known, array = tf.range(300_000), np.ones(9)
example = [tf.range(400_000), array, tf.constant("a text"), known]
example.append(example[0])
before_bytes, made_at = device.in_use_bytes(), device.offset(example[0])
del hole
with aside(example, device):
    within_bytes = device.in_use_bytes()
batch = {
    "given_back": before_bytes - within_bytes - 2_000_128,
    "same_again": example[4] is example[0] and example[3] is known and example[1] is array,
    "values": np.array_equal(example[0], range(400_000)) and example[2].numpy().decode(),
    "lower": made_at - device.offset(example[0]),
}
Path(sys.argv[1]).write_text(
    json.dumps({
        "last": [free[-1], left[-1]],
        "shared": sum(size**2 for size in SIZES) * 4,
        "apart": len(set(at)), "variables": len(at),
        "same": all(np.array_equal(a, b) for a, b in zip(held, now, strict=True)),
        "kept_bytes": kept_bytes,
        "untold_bytes": sum(size for _, size in left) - told_bytes,
        "text": name.numpy().decode(), "batch": batch,
    })
)  # fmt: skip
