"""Micro-benchmarks of a device: what share of its peak rates the kernels of each op class reach.

Kernels run as they do in a step, one op of a tf.function each, on tensors of a ResNet's shapes.
What an op costs is what the simulator says it costs (`memtrade.costs`), so that rates and
predictions are of one mind.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from memtrade.costs import OpCost, op_cost
from memtrade.devices import Device
from memtrade.graph import GraphData, Op, StepGraph, Tensor
from memtrade.simulate.calibration import shares_of_peaks
from memtrade.tf.device import LocalDevice

_LAYERS = 100  # of the chain of tiny ops
_FEWEST_REPEATS = 3

# What a kernel's tensors may take of the device's memory, and the largest batch that is needed to
# be out of the caches. The widest kernel holds four tensors, and its result goes as the next comes.
_IMAGE_BYTES = 56 * 56 * 64 * 4
_SHARE, _MOST_IMAGES = 1 / 10, 64


@dataclass(frozen=True)
class Kernel:
    """One op: `inputs` are shapes, or whole numbers that the op takes as a list."""

    type: str
    inputs: dict[str, tuple[int, ...] | list[int]]
    output: tuple[int, ...]
    attrs: dict[str, Any] = field(default_factory=dict)

    def cost(self) -> OpCost:
        """What the simulator takes this op to cost."""
        shapes = [
            (len(value),) if isinstance(value, list) else value for value in self.inputs.values()
        ]
        shapes.append(self.output)
        tensors = tuple(
            Tensor(i, i, 0, "float32", shape, 4 * math.prod(shape))
            for i, shape in enumerate(shapes)
        )
        last = len(shapes) - 1
        sources = (Op(i, f"input{i}", "Placeholder", (), (), (i,), False, {}) for i in range(last))
        own = Op(last, self.type, self.type, tuple(range(last)), (), (last,), False, self.attrs)
        data = GraphData(self.type, (*sources, own), tensors, (), (), (), (last,), (), last, ())
        return op_cost(own, StepGraph(data))

    def function(self) -> tuple[Callable[..., Any], list[tf.Tensor]]:
        """The op as a function of its tensors, and such tensors."""
        fixed = {k: tf.constant(v) for k, v in self.inputs.items() if isinstance(v, list)}
        shapes = {k: v for k, v in self.inputs.items() if not isinstance(v, list)}
        run = getattr(tf.raw_ops, self.type)

        @tf.function(autograph=False)
        def kernel(*tensors: tf.Tensor) -> tf.Tensor:
            made = run(**dict(zip(shapes, tensors, strict=True)), **fixed, **self.attrs)
            return made[0] if isinstance(made, tuple) else made

        return kernel, [tf.random.uniform(shape) for shape in shapes.values()]


def kernels(images: int) -> list[Kernel]:
    """A ResNet's, at a batch of so many images."""
    wide, deep = (images, 56, 56, 64), (images, 14, 14, 256)
    narrow, pooled = (64,), (images, 28, 28, 64)
    images_at = {64: wide, 256: deep}
    found = []
    for channels, x in images_at.items():
        found += _convolutions(x, 3, channels)
        found += _convolutions(x, 1, 4 * channels)
    side = 64 * math.ceil(math.sqrt(images) * 2)
    pool = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    vectors = {"scale": narrow, "offset": narrow, "mean": (0,), "variance": (0,)}
    saved = {"scale": narrow, "reserve_space_1": narrow, "reserve_space_2": narrow}
    return [
        *found,
        Kernel("MatMul", {"a": (side, side), "b": (side, side)}, (side, side)),
        Kernel("FusedBatchNormV3", {"x": wide, **vectors}, wide),
        Kernel(
            "FusedBatchNormGradV3",
            {"y_backprop": wide, "x": wide, **saved, "reserve_space_3": (0,)},
            wide,
        ),
        Kernel("AddV2", {"x": wide, "y": wide}, wide),
        Kernel("Relu", {"features": wide}, wide),
        Kernel("ReluGrad", {"gradients": wide, "features": wide}, wide),
        Kernel("MaxPool", {"input": wide}, pooled, pool),
        Kernel(
            "MaxPoolGrad", {"orig_input": wide, "orig_output": pooled, "grad": pooled}, wide, pool
        ),
        Kernel("Transpose", {"x": wide, "perm": [0, 3, 1, 2]}, (images, 64, 56, 56)),
        Kernel("Tile", {"input": wide, "multiples": [1, 1, 1, 2]}, (images, 56, 56, 128)),
    ]


def _convolutions(x: tuple[int, ...], reach: int, channels: int) -> list[Kernel]:
    """A convolution without stride and both of its gradients."""
    filters = (reach, reach, x[-1], channels)
    y = (*x[:-1], channels)
    attrs = {"strides": [1, 1, 1, 1], "padding": "SAME", "data_format": "NHWC"}
    sizes = {"input_sizes": list(x)}
    return [
        Kernel("Conv2D", {"input": x, "filter": filters}, y, attrs),
        Kernel("Conv2DBackpropInput", {**sizes, "filter": filters, "out_backprop": y}, x, attrs),
        Kernel(
            "Conv2DBackpropFilter",
            {"input": x, "filter_sizes": list(filters), "out_backprop": y},
            filters,
            attrs,
        ),
    ]


def measure_rates(
    device: LocalDevice,
    *,
    on_step: Callable[[int, int], None] = lambda i, of: None,
    seconds_each: float = 0.3,
) -> Device:
    """A profile with the device's rates, in about a minute at most; it has no name yet.

    Args:
        on_step: called with the number of each benchmark before it runs, and how many there are.
        seconds_each: how long each is repeated; the median counts.
    """
    images = min(_MOST_IMAGES, int(_SHARE * device.limit_bytes / _IMAGE_BYTES))
    chosen = kernels(max(images, 1))
    of = len(chosen) + 3
    costs, took = [], []
    for i, kernel in enumerate(chosen, start=1):
        on_step(i, of)
        costs.append(kernel.cost())
        took.append(median_seconds(*kernel.function(), seconds_each))
    on_step(of - 2, of)
    overhead = overhead_seconds(seconds_each)
    values = tf.random.uniform((max(images, 1), 56, 56, 64))
    size_bytes = 4 * int(tf.size(values))
    on_step(of - 1, of)
    leave, come = copies(device)
    out = size_bytes / median_seconds(leave, [values], seconds_each)
    on_step(of, of)
    back = size_bytes / median_seconds(come, [leave(values)], seconds_each)
    peak_flops, peak_bytes, shares = shares_of_peaks(costs, took)
    return Device(
        name="",
        source="",
        flops_per_s=peak_flops,
        memory_bandwidth_bytes_per_s=peak_bytes,
        host_to_device_bytes_per_s=back,
        device_to_host_bytes_per_s=out,
        # A chain of ops goes as fast as its slower half lets it: starting them or running them.
        launch_overhead_seconds=overhead,
        dispatch_seconds=overhead,
        memory_bytes=device.limit_bytes,
        blocking_transfers=device.transfer.blocking,
        efficiency=shares,
    )


def median_seconds(
    function: Callable[..., Any], arguments: Sequence[tf.Tensor], seconds_each: float
) -> float:
    """The median of the calls that fit into so many seconds, after one that is not counted."""
    _wait(function(*arguments))
    found: list[float] = []
    deadline = time.perf_counter() + seconds_each
    while len(found) < _FEWEST_REPEATS or time.perf_counter() < deadline:
        begin = time.perf_counter()
        _wait(function(*arguments))
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def _wait(made: tf.Tensor) -> None:
    """Until the device has made it: a GPU is behind the host."""
    if made.dtype != tf.string:
        tf.reshape(made, [-1])[:1].numpy()


def overhead_seconds(seconds_each: float) -> float:
    """Of one op in a chain of those that a network is made of, with next to nothing to do."""

    @tf.function(autograph=False)
    def chain(x: tf.Tensor, filters: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
        for _ in range(_LAYERS):
            x = tf.raw_ops.Conv2D(input=x, filter=filters, strides=[1, 1, 1, 1], padding="SAME")
            x = tf.raw_ops.FusedBatchNormV3(
                x=x, scale=vector, offset=vector, mean=[], variance=[]
            ).y
            x = tf.raw_ops.Relu(features=x)
        return x

    tensors = [tf.random.uniform(shape) for shape in ((1, 4, 4, 8), (1, 1, 8, 8), (8,))]
    return median_seconds(chain, tensors, seconds_each) / (3 * _LAYERS)


def copies(device: LocalDevice) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Out to host memory and back, as swaps do it: see `memtrade.tf.swap`."""

    @tf.function(autograph=False)
    def leave(x: tf.Tensor) -> tf.Tensor:
        if device.transfer.blocking:
            return tf.io.serialize_tensor(x)
        with tf.device("/CPU:0"):
            return tf.identity(x)

    @tf.function(autograph=False)
    def come(x: tf.Tensor) -> tf.Tensor:
        if device.transfer.blocking:
            return tf.io.parse_tensor(x, tf.float32)
        with tf.device(f"/{device.name}"):
            return tf.identity(x)

    return leave, come
