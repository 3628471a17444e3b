"""PyTorch's reserved memory, as the GPT-2 pipeline logs count it."""

import pytest

from memtrade.papers.gpipe_reserved import PublishedRun, hypotheses_sheet, published_runs
from memtrade.papers.gpipe_torch import reserved
from memtrade.papers.published import load_published
from memtrade.papers.torch_allocator import MIB, CachingAllocator, TorchTensor


def test_segments_are_of_their_sizes_and_kept():
    device = CachingAllocator()
    for size, segment in ((1, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB, 10), (10 * MIB + 1, 12)):
        before = device.reserved_bytes
        tensor = TorchTensor(device, size, stream=size)
        assert device.reserved_bytes - before == segment * MIB
        del tensor
    assert device.used_bytes == 0
    assert device.reserved_bytes == 46 * MIB


def test_free_blocks_are_split_and_merge():
    device = CachingAllocator()
    parts = [TorchTensor(device, 5 * MIB) for _ in range(4)]
    assert device.reserved_bytes == 20 * MIB
    del parts[1:3]
    between = TorchTensor(device, 9 * MIB)  # fits only where two neighbours have merged
    assert device.reserved_bytes == 20 * MIB
    del between, parts
    assert device.used_bytes == 0
    whole = TorchTensor(device, 19 * MIB)
    assert device.reserved_bytes == 20 * MIB
    assert device.used_bytes == 20 * MIB  # what is left, 1 MiB, is not worth a block
    del whole


def test_streams_do_not_share():
    device = CachingAllocator()
    first = TorchTensor(device, MIB, stream=1)
    del first
    second = TorchTensor(device, MIB, stream=2)
    assert device.reserved_bytes == 4 * MIB
    del second


def test_parameters_take_what_the_logs_print():
    lines = load_published("gpipe_gpt2_devices").dropna(subset=["partition_bytes"])
    for partitions in (1, 2, 4):
        printed = set(lines[lines["partitions"] == partitions]["partition_bytes"])
        loaded = reserved(partitions, 32, "never", "self", steps=0)
        assert {device.reserved_bytes for device in loaded} == printed


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("gpt2_K1_M2_self", 0.01),
        ("gpt2_K4_M8_check_torchgpipe", 0.05),
        ("gpt2_K1_M8_check_torchgpipe", 0.10),
    ],
)
def test_runs_of_each_kind_are_predicted(name: str, most: float):
    run = next(run for run in published_runs() if run.name == name)
    case = run.partitions, run.micro_batches, run.checkpoint, run.implementation
    devices = reserved(*case)
    assert abs(run.error([device.reserved_bytes for device in devices])) < most


def test_recomputing_ahead_is_what_one_device_shows():
    run = next(run for run in published_runs() if run.name == "gpt2_K1_M8_check_self")
    devices = reserved(1, 8, "always", "self", order="in turn")
    assert run.error([device.reserved_bytes for device in devices]) < -0.5


def test_medians_are_of_their_groups():
    runs = [
        PublishedRun("a", "self", "never", 1, 1, 0, (100,)),
        PublishedRun("b", "self", "never", 1, 2, 0, (100,)),
        PublishedRun("c", "torchgpipe", "never", 1, 1, 0, (100,)),
    ]
    sheet = hypotheses_sheet(runs, {"x": [run.error([110]) for run in runs[:2]] + [-0.5]})
    assert [row[-1] for row in sheet.rows] == ["10.0%", "50.0%", "10.0%"]
