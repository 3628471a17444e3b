"""Child process of test_bfc.py: random requests to TensorFlow's own allocator, written down.

Usage: drive_arena.py START SEED STEPS LIMIT_MIB OOM
with START = grown | one_region, and OOM = 1 to run out of memory halfway (10 s), else 0.
Prints one JSON list: [operation, number, address, bytes in use, peak] per step, where operation is
"allocate" (number: bytes), "fail" (bytes; it ran out of memory), "free" (number: the step that
allocated) or "reset".

The simulator only steers here: it says which requests would fail, for each failure costs 10 s
(TensorFlow waits for other threads to free something). All failures are therefore provoked at one
moment, side by side. Whether the simulator was right is judged by the test, from the record.
"""

import json
import os
import random
import sys
import threading
from typing import Any

START, SEED, STEPS, LIMIT_MIB, OOM = sys.argv[1], *(int(text) for text in sys.argv[2:])
os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(LIMIT_MIB)
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from memtrade.simulate.bfc import MIB, BfcAllocator  # noqa: E402

tf.config.threading.set_inter_op_parallelism_threads(1)
rng = random.Random(SEED)
record: list[tuple[str, int, int, int, int]] = []
live: dict[int, tf.Tensor] = {}
region: list[int] = []
arena = BfcAllocator(LIMIT_MIB * MIB, sub_allocator=lambda _: region[0])


def note(operation: str, number: int, address: int = 0) -> None:
    info = tf.config.experimental.get_memory_info("CPU:0")
    record.append((operation, number, address, info["current"], info["peak"]))


def hold(tensor: tf.Tensor) -> tf.Tensor:
    """Write down an allocation; its tensor lives until `drop`."""
    num_bytes = tensor.dtype.size * tensor.shape.num_elements()
    buffer: Any = tensor
    address = np.asarray(memoryview(buffer)).ctypes.data if num_bytes else 0
    live[len(record)] = tensor
    note("allocate", num_bytes, address)
    region[:] = [address]
    arena.allocate(num_bytes)
    return tensor


def drop(step: int) -> None:
    del live[step]
    note("free", step)
    arena.free(record[step][2])


def shape_of(num_bytes: int) -> tf.Tensor:
    """The shape as a tensor, itself 4 bytes of the arena."""
    return hold(tf.constant([num_bytes]))


def take(shape: tf.Tensor) -> None:
    hold(tf.raw_ops.Empty(shape=shape, dtype=tf.uint8, init=False))


def fits(num_bytes: int) -> bool:
    return (num_bytes + 255) // 256 * 256 <= arena.largest_request_bytes


def fail(shape: tf.Tensor, num_bytes: int, failed: list[int]) -> None:
    try:
        tf.raw_ops.Empty(shape=shape, dtype=tf.uint8, init=False)
    except tf.errors.ResourceExhaustedError:
        failed.append(num_bytes)


def fail_together() -> None:
    """The largest request that should succeed does; and all these fail, leaving no trace."""
    largest = arena.largest_request_bytes
    sizes = [largest + 1, largest + 4096, LIMIT_MIB * MIB - 1]
    shapes = [shape_of(size) for size in sizes]
    largest_shape = shape_of(arena.largest_request_bytes)
    if not fits(int(largest_shape[0])):  # the shapes themselves took some of it
        largest_shape = shape_of(arena.largest_request_bytes)
    take(largest_shape)
    drop(len(record) - 1)
    failed: list[int] = []
    threads = [
        threading.Thread(target=fail, args=(shape, size, failed))
        for shape, size in zip(shapes, sizes, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for size in sorted(failed):
        note("fail", size)


def reset() -> None:
    tf.config.experimental.reset_memory_stats("CPU:0")
    note("reset", 0)
    arena.reset_peak()


def probe_the_cap() -> None:
    """Ask a hole of 300 MiB for 128 MiB less, which splits it, and for 256 bytes more than that."""
    low, fence = shape_of(300 * MIB), shape_of(150 * MIB)
    split, whole = shape_of(172 * MIB), shape_of(172 * MIB + 256)
    take(low)
    hole = len(record) - 1
    take(fence)
    drop(hole)
    for shape in (split, whole):
        take(shape)
        drop(len(record) - 1)
    drop(hole + 1)


def climb() -> None:
    """Requests a little too large for what is left, so that the arena grows many times."""
    first = len(record)
    shapes = [shape_of(mib * MIB) for mib in (2, 3, 3, 3, 7, 7, 7, 15, 15, 15)]
    for shape in shapes:
        take(shape)
    for step in range(first + len(shapes), len(record)):
        drop(step)


def wander() -> None:
    """Allocate and free at random, around a number of live tensors that changes now and then."""
    sizes = [0, 1, 255, 256, 257, *(int(2 ** rng.uniform(0, 27.6)) for _ in range(150))]
    sizes += [rng.choice(sizes) for _ in range(50)]  # ties
    shapes = [(size, shape_of(size)) for size in sizes]
    kept = len(record)
    wanted = 20
    for step in range(STEPS):
        if step % 100 == 0:
            wanted = rng.choice([0, 5, 20, 60])
        if OOM and step == STEPS // 2:
            fail_together()
        if rng.random() < 0.01:
            reset()
        temporary = [index for index in live if index >= kept]
        size, shape = rng.choice(shapes)
        if rng.random() < (0.65 if len(temporary) < wanted else 0.35) and fits(size):
            take(shape)
        elif temporary:
            drop(rng.choice(temporary))


if START == "one_region":
    take(shape_of((LIMIT_MIB - 2) * MIB))
    drop(1)
    drop(0)
    reset()
    probe_the_cap()
else:
    climb()
wander()
for index in list(live):
    drop(index)
json.dump(record, sys.stdout)
