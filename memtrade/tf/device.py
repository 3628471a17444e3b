"""Where a step computes: the arena or a GPU, behind one interface.

The arena is TensorFlow's BFC allocator on the CPU with a hard limit. The environment variables
that turn it on are set by the parent (memtrade.measure.trial.child_environment), because they
count only before TensorFlow is imported.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterable
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from memtrade.errors import MemtradeError
from memtrade.simulate.regions import GRAIN_BYTES
from memtrade.tf.swap import DeviceCopyTransfer, HostTransfer, SerializeTransfer
from memtrade.units import LEAST_LIMIT_BYTES, mebibytes

MIB = 1 << 20
FIRST_BYTES = 2 * MIB  # of the region that the first request opens


class LocalDevice(ABC):
    """A device with a memory limit.

    Attributes:
        name: TensorFlow's ("CPU:0").
        limit_bytes: the allocator's hard limit.
        transfer: how tensors leave for host memory.
    """

    def __init__(self, name: str, limit_bytes: int, transfer: HostTransfer):
        self.name, self.limit_bytes, self.transfer = name, limit_bytes, transfer

    @abstractmethod
    def start(self) -> None:
        """Sets the device up. The first use of TensorFlow in the process."""

    @abstractmethod
    def resident_bytes(self) -> int:
        """The part of the process's resident set that is this device's memory."""

    @abstractmethod
    def runs_onednn(self) -> bool:
        """Whether convolutions are oneDNN's. Seen, not read off a variable: TensorFlow decides by
        the CPU, too."""

    def peak_bytes(self) -> int:
        """Most bytes in use since the last reset, from the allocator's statistics."""
        return tf.config.experimental.get_memory_info(self.name)["peak"]

    def in_use_bytes(self) -> int:
        return tf.config.experimental.get_memory_info(self.name)["current"]

    def reset_peak(self) -> None:
        tf.config.experimental.reset_memory_stats(self.name)


class Arena(LocalDevice):
    """The CPU with a BFC allocator that starts as one region, as a GPU's does.

    Attributes:
        started: the process's own, once it has one.
    """

    started: ClassVar[Arena | None] = None

    def __init__(self, limit_bytes: int):
        super().__init__("CPU:0", limit_bytes, SerializeTransfer())
        self._starts = (0, 0)  # addresses of its regions: of one of 2 MiB, and of all the rest
        self._rest_bytes = 0

    def start(self) -> None:
        if self.limit_bytes < LEAST_LIMIT_BYTES:
            least, given = mebibytes(LEAST_LIMIT_BYTES), mebibytes(self.limit_bytes)
            raise MemtradeError(
                f"the arena needs at least {least}, not {given}: give a larger limit"
            )
        rows = (self.limit_bytes - FIRST_BYTES) // MIB
        # One inter-op thread: with more, the executor's order, and so the peak, varies.
        tf.config.threading.set_inter_op_parallelism_threads(1)
        # The first allocation opens a region of 2 MiB, this one the other that holds the rest.
        # Its pages are not touched, so they cost nothing yet.
        shape = tf.constant([rows, MIB])
        try:
            whole = _empty(shape)
        except (tf.errors.ResourceExhaustedError, tf.errors.InvalidArgumentError):
            given = mebibytes(self.limit_bytes)
            raise MemtradeError(
                f"an arena of {given} is more than this machine sets aside: give a smaller limit"
            ) from None
        if tf.config.experimental.get_memory_info(self.name)["current"] < rows * MIB:
            raise MemtradeError(
                "the arena is off: TF_CPU_ALLOCATOR_USE_BFC and TF_CPU_BFC_MEM_LIMIT_IN_MB must be "
                "set before TensorFlow is imported; `memtrade run` does so for its child"
            )
        self._starts = address_of(shape), address_of(whole)
        self._rest_bytes = rows * MIB
        del whole, shape
        self.reset_peak()
        Arena.started = self

    def runs_onednn(self) -> bool:
        """oneDNN's convolutions ask the allocator for scratchpads, Eigen's for its output only. For
        old instructions, oneDNN's do so only where the channels do not fill a vector."""
        return any(self._convolution_has_scratch(*channels) for channels in ((16, 32), (15, 31)))

    def _convolution_has_scratch(self, channels: int, filters_out: int) -> bool:
        @tf.function(autograph=False)
        def convolve(images: tf.Tensor, filters: tf.Tensor) -> tf.Tensor:
            return tf.nn.conv2d(images, filters, 1, "SAME")

        images = tf.zeros([2, 8, 8, channels])
        filters = tf.zeros([3, 3, channels, filters_out])
        before = self.in_use_bytes()
        self.reset_peak()
        made = convolve(images, filters)
        scratch_bytes = self.peak_bytes() - before - made.shape.num_elements() * made.dtype.size
        del made, images, filters
        self.reset_peak()
        return scratch_bytes > 0

    def offset(self, tensor: tf.Tensor) -> int:
        """Where a tensor lies, counted through the regions; -1 of what lies in none: TensorFlow has
        some whole numbers, such as a lookup table's default, elsewhere."""
        first, rest = self._starts
        address = address_of(tensor)
        if first <= address < first + FIRST_BYTES:
            return address - first
        in_rest = rest <= address < rest + self._rest_bytes
        return address - rest + FIRST_BYTES if in_rest else -1

    def free_pieces(self) -> list[tuple[int, int]]:
        """(offset, bytes) of each free piece of the allocator's. See `plugged`."""
        return self.plugged()[0]

    def plugged(self) -> tuple[list[tuple[int, int]], list[tf.Tensor]]:
        """(offset, bytes) of each free piece of the allocator's, by asking for them; and tensors
        that fill all of these but the last.

        A request gets the smallest piece that holds it, whole if that is less than twice as large;
        so requests that halve find each piece, and the bytes in use tell how large it is. The last
        piece, which ends with the arena, is known by its place and never taken for good.

        Raises tf.errors.ResourceExhaustedError where that one is not half of what is free, and
        ValueError where nothing is.
        """
        end = FIRST_BYTES + self._rest_bytes
        half = (end - self.in_use_bytes()) // (2 * GRAIN_BYTES)
        if not half:
            raise ValueError("the arena is full")
        grains = [half, *(1 << k for k in reversed(range(half.bit_length())))]
        # The shapes are tensors themselves. They are made first, and given back last.
        shapes = [tf.constant([each, GRAIN_BYTES]) for each in grains]
        pieces, taken = [(self.offset(shape), GRAIN_BYTES) for shape in shapes], []
        tail = self.offset(_empty(shapes[0]))
        for shape in shapes[1:]:
            before = self.in_use_bytes()
            while self.offset(piece := _empty(shape)) < tail:
                taken.append(piece)
                pieces.append((self.offset(piece), self.in_use_bytes() - before))
                before = self.in_use_bytes()
            del piece
        pieces.append((tail, end - tail))
        return merged(pieces), [*shapes, *taken]

    def filled(self, below: int, apart: Collection[int]) -> tuple[dict[int, tf.Tensor], Any]:
        """Tensors of the smallest size at each of the offsets `apart` that is free, by their own
        offsets; and tensors that fill all else that is free below an offset.

        A request gets the smallest piece that holds it, from its start on, and the rest stays free
        if it is no smaller. So pieces are filled one after the other, the smallest first, each
        from its start, by requests for no more than half of what is left of it.

        Args:
            below: where the last free piece begins, or within that.
        """
        found: dict[int, tf.Tensor] = {}
        shapes: list[tf.Tensor] = []  # of 1, 2, 4, ... of the smallest size
        while len(shapes) < (self._rest_bytes // GRAIN_BYTES).bit_length():
            shape = tf.constant([1 << len(shapes), GRAIN_BYTES])
            at = self.offset(shape)
            if at in apart:
                found[at] = shape
            else:
                shapes.append(shape)
        pieces, others = self.free_pieces(), []
        starts = sorted(apart)
        for start, size in sorted(pieces, key=lambda piece: piece[::-1]):
            at, end = start, start + size
            while at < min(end, below):
                if at in apart:
                    found[at] = _empty(shapes[0])
                    at += GRAIN_BYTES
                    continue
                place = bisect_right(starts, at)
                gap_bytes = min(end, below, *starts[place : place + 1]) - at
                grains = max(1, min(gap_bytes, (end - at) // 2) // GRAIN_BYTES)
                others.append(_empty(shapes[grains.bit_length() - 1]))
                at += GRAIN_BYTES << (grains.bit_length() - 1)
        return found, [*shapes, *others]

    def resident_bytes(self) -> int:
        """Touched pages of the larger region, by mincore(2)."""
        page = 4096
        start = self._starts[1] // page * page
        pages = (self._rest_bytes + page - 1) // page
        resident = (ctypes.c_ubyte * pages)()
        libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
        failed = libc.mincore(
            ctypes.c_void_p(start), ctypes.c_size_t(self._rest_bytes), ctypes.byref(resident)
        )
        if failed:
            return 0
        return int(np.count_nonzero(np.ctypeslib.as_array(resident) & 1)) * page


class GpuDevice(LocalDevice):
    """A GPU under a limit of its own."""

    def __init__(self, limit_bytes: int):
        super().__init__("GPU:0", limit_bytes, DeviceCopyTransfer("/device:GPU:0", "/device:CPU:0"))

    def start(self) -> None:
        gpus = tf.config.list_physical_devices("GPU")
        if not gpus:
            raise MemtradeError(
                "TensorFlow sees no GPU: `memtrade devices` lists what there is, "
                "--device arena needs none"
            )
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=self.limit_bytes // MIB)
        tf.config.set_logical_device_configuration(gpus[0], [limit])

    def runs_onednn(self) -> bool:
        return False

    def resident_bytes(self) -> int:
        return 0


def address_of(tensor: tf.Tensor) -> int:
    """Of a tensor in host memory."""
    buffer: Any = tf.bitcast(tensor, tf.uint16) if tensor.dtype == tf.bfloat16 else tensor
    return np.asarray(memoryview(buffer)).ctypes.data


def _empty(shape: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.Empty(shape=shape, dtype=tf.uint8, init=False)


def merged(pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(offset, bytes) of pieces, with neighbours in one region as one."""
    made: list[tuple[int, int]] = []
    for start, size in sorted(pieces):
        if made and sum(made[-1]) == start != FIRST_BYTES:
            made[-1] = (made[-1][0], made[-1][1] + size)
        else:
            made.append((start, size))
    return made


def make_device(name: str, limit_bytes: int) -> LocalDevice:
    """The device of a trial. Only one GPU is visible to it, whichever was asked for."""
    return Arena(limit_bytes) if name == "arena" else GpuDevice(limit_bytes)
