"""Host transfer: how a tensor leaves the device and comes back, in two forms.

Arena   host and device share one allocator, so a copy to "/CPU:0" would stay in the arena. The
        value is serialized instead: a string tensor's bytes live on the process heap. A proto
        holds less than 2 GiB, so a larger tensor travels in slices of its first dimension.
GPU     `Identity` placed on the host. TensorFlow's copy streams move the bytes beside compute.

Each form makes the nodes of a swap. Their first node waits for whatever triggers the swap, their
last one is what others wait for and, on the way in, read.
"""

import itertools
import math
from typing import Protocol

import numpy as np
import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import Tensor
from memtrade.simulate.walk import MAX_SLICE_BYTES
from memtrade.target import ARENA
from memtrade.tf.nodes import NodeDef, make_node


class HostTransfer(Protocol):
    """Makes the nodes of a swap. `blocking`: compute waits while bytes move."""

    @property
    def blocking(self) -> bool: ...

    def swap_out(self, name: str, source: str, tensor: Tensor) -> list[NodeDef]: ...

    def swap_in(self, name: str, out_name: str, tensor: Tensor) -> list[NodeDef]: ...


class SerializeTransfer:
    """The arena's form: SerializeTensor out, ParseTensor in."""

    blocking = True

    def __init__(self, max_slice_bytes: int = MAX_SLICE_BYTES):
        self.max_slice_bytes = max_slice_bytes

    def swap_out(self, name: str, source: str, tensor: Tensor) -> list[NodeDef]:
        ranges = self._ranges(tensor)
        if len(ranges) == 1:
            return [make_node("SerializeTensor", name, [source], T=tensor.dtype)]
        # A slice of the first dimension is a view: only one slice's copy is in flight at a time.
        nodes = []
        rank = len(tensor.shape or ())
        for k, (start, end) in enumerate(ranges):
            begin = const_node(f"{name}/begin{k}", [start] + [0] * (rank - 1))
            size = const_node(f"{name}/size{k}", [end - start] + [-1] * (rank - 1))
            view = make_node(
                "Slice", f"{name}/slice{k}", [source, begin.name, size.name],
                T=tensor.dtype, Index="int32",
            )  # fmt: skip
            out = make_node("SerializeTensor", f"{name}/{k}", [view.name], T=tensor.dtype)
            if nodes:
                view.input.append("^" + nodes[-1].name)
            nodes += [view, begin, size, out]
        return nodes

    def swap_in(self, name: str, out_name: str, tensor: Tensor) -> list[NodeDef]:
        ranges = self._ranges(tensor)
        if len(ranges) == 1:
            return [make_node("ParseTensor", name, [out_name], out_type=tensor.dtype)]
        # The whole is allocated once and filled in place, so only one slice is there twice.
        shape = const_node(f"{name}/shape", list(tensor.shape or ()))
        whole = make_node("Empty", f"{name}/empty", [shape.name], dtype=tensor.dtype)
        nodes, filled = [whole, shape], whole
        for k, (start, end) in enumerate(ranges):
            part = make_node(
                "ParseTensor", f"{name}/{k}", [f"{out_name}/{k}"], out_type=tensor.dtype
            )
            part.input.append("^" + filled.name)
            rows = const_node(f"{name}/rows{k}", list(range(start, end)))
            last = k == len(ranges) - 1
            filled = make_node(
                "InplaceUpdate", name if last else f"{name}/filled{k}",
                [filled.name, rows.name, part.name], T=tensor.dtype,
            )  # fmt: skip
            nodes += [part, rows, filled]
        return nodes

    def _ranges(self, tensor: Tensor) -> list[tuple[int, int]]:
        """First and last row, exclusive, of each slice of the first dimension."""
        rows = tensor.shape[0] if tensor.shape else 1
        count = max(1, min(rows, math.ceil(tensor.size_bytes / self.max_slice_bytes)))
        return list(itertools.pairwise(rows * k // count for k in range(count + 1)))


class DeviceCopyTransfer:
    """The GPU's form: Identity on the host, Identity back on the device."""

    blocking = False

    def __init__(self, device: str, host: str):
        self.device, self.host = device, host

    def swap_out(self, name: str, source: str, tensor: Tensor) -> list[NodeDef]:
        return [make_node("Identity", name, [source], device=self.host, T=tensor.dtype)]

    def swap_in(self, name: str, out_name: str, tensor: Tensor) -> list[NodeDef]:
        # What triggers the copy must hold a node on the host: TensorFlow sends a tensor to the
        # other device as soon as its producer has run, whatever its reader waits for.
        host = make_node("Identity", f"{name}/host", [out_name], device=self.host, T=tensor.dtype)
        return [host, make_node("Identity", name, [host.name], device=self.device, T=tensor.dtype)]


def transfer_from(device: str) -> HostTransfer:
    """How tensors leave "arena", or "gpu:N". Raises UnsupportedGraphError for what is not here."""
    if device == ARENA:
        return SerializeTransfer()
    kind, _, number = device.partition(":")
    count = len(tf.config.list_logical_devices("GPU"))
    if kind != "gpu" or not number.isdecimal() or int(number) >= count:
        raise UnsupportedGraphError(
            f"there is no device {device!r}: choose arena"
            + (f", or a GPU from gpu:0 to gpu:{count - 1}" if count else ": TensorFlow sees no GPU")
        )
    return DeviceCopyTransfer(device=f"/device:GPU:{number}", host="/device:CPU:0")


def empty_node(name: str, size_bytes: int) -> NodeDef:
    """An allocation of that many bytes, a multiple of 256, whose pages are never touched.

    Empty reads its shape, and leaves two constants in the arena for each size. No public op has its
    shape as an attribute and writes nothing; tests/tf/test_swap.py notices if this one goes.
    """
    shape = tf.TensorShape([size_bytes // 256, 64])
    return make_node("_ParallelConcatStart", name, dtype=tf.float32, shape=shape)


def size_node(name: str, source: str, dtype: str = "float32") -> NodeDef:
    """Reads a tensor, of more than 2 GiB too, without touching it."""
    return make_node("Size", name, [source], T=dtype, out_type="int64")


def const_node(name: str, values: int | list[int]) -> NodeDef:
    """Whole numbers, as int32."""
    return make_node("Const", name, dtype=tf.int32, value=np.asarray(values, np.int32))
