"""The micro-benchmarks: what they time is what they count, and they give rates for every class."""

from __future__ import annotations

import math

import msgspec
import pytest
import tensorflow as tf

from memtrade.costs import OpClass, OpCost, op_cost
from memtrade.devices import parse_device, to_toml
from memtrade.models import make_model
from memtrade.simulate.calibration import shares_of_peaks
from memtrade.tf.build import make_step
from memtrade.tf.calibrate import Kernel, kernels, measure_rates
from memtrade.tf.device import LocalDevice
from memtrade.tf.extract import trace
from memtrade.tf.swap import SerializeTransfer

CLASSES = {each for each in OpClass if each is not OpClass.FREE}


class PlainCpu(LocalDevice):
    """The CPU of this process, of which a little may be used."""

    def start(self) -> None:
        pass

    def resident_bytes(self) -> int:
        return 0

    def runs_onednn(self) -> bool:
        return False


def test_every_class_is_measured() -> None:
    assert {kernel.cost().op_class for kernel in kernels(2)} == CLASSES


@pytest.mark.parametrize("kernel", kernels(2), ids=lambda kernel: kernel.type)
def test_a_kernel_runs_and_makes_what_is_counted(kernel: Kernel) -> None:
    function, tensors = kernel.function()
    made = function(*tensors)
    assert tuple(made.shape) == kernel.output
    named = {k: v for k, v in kernel.inputs.items() if not isinstance(v, list)}
    assert [tuple(tensor.shape) for tensor in tensors] == list(named.values())


def test_a_kernels_cost_is_that_of_the_same_op_in_a_step() -> None:
    """ResNet's second stage has the shapes of the benchmark."""
    with tf.Graph().as_default():
        graph = trace(make_step(make_model("resnet", {"layers": 18, "batch_size": 2}))).graph
    for kernel in kernels(2):
        if kernel.type not in ("Conv2D", "FusedBatchNormV3", "Relu"):
            continue
        same = [
            op
            for op in graph.ops
            if op.type == kernel.type
            and graph.tensors[op.outputs[0]].shape == kernel.output
            and graph.tensors[op.inputs[0]].shape == next(iter(kernel.inputs.values()))
            and (
                op.type != "Conv2D" or graph.tensors[op.inputs[1]].shape == kernel.inputs["filter"]
            )
        ]
        if kernel.inputs.get("filter", (3,))[0] == 3:
            assert same
        for op in same[:1]:
            assert kernel.cost() == op_cost(op, graph)


def test_shares_are_of_the_highest_rate_of_their_kind() -> None:
    costs = [
        OpCost(OpClass.MATMUL, 1000, 10),
        OpCost(OpClass.CONV, 1000, 10),
        OpCost(OpClass.CONV, 1000, 10),
        OpCost(OpClass.ELEMENTWISE, 5, 100),
        OpCost(OpClass.MEMORY, 0, 100),
    ]
    flops, bandwidth, shares = shares_of_peaks(costs, [1.0, 1.0, 3.0, 2.0, 8.0])
    assert (flops, bandwidth) == (1000, 50)
    assert shares == {"matmul": 1.0, "conv": 0.5, "elementwise": 1.0, "memory": 0.25}


def test_rates_make_a_profile() -> None:
    seen: list[tuple[int, int]] = []
    rates = measure_rates(
        PlainCpu("CPU:0", 20 << 20, SerializeTransfer()),
        on_step=lambda i, of: seen.append((i, of)),
        seconds_each=0.0,
    )
    assert [i for i, _ in seen] == list(range(1, seen[0][1] + 1))
    assert set(rates.efficiency) == {each.value for each in CLASSES}
    assert all(0 < share <= 1 for share in rates.efficiency.values())
    for rate in (
        rates.flops_per_s,
        rates.memory_bandwidth_bytes_per_s,
        rates.host_to_device_bytes_per_s,
        rates.device_to_host_bytes_per_s,
    ):
        assert 1e6 < rate < 1e15
    assert 1e-8 < rates.dispatch_seconds < 1e-2
    assert math.isclose(rates.memory_bytes, 20 << 20)
    device = parse_device(
        to_toml(msgspec.structs.replace(rates, name="tiny", source="here")), where="tiny.toml"
    )
    assert device.blocking_transfers
