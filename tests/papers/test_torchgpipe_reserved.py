"""What PyTorch's allocator has reserved of torchgpipe's nets."""

from __future__ import annotations

import pytest

from memtrade.errors import MemtradeError
from memtrade.models import make_model
from memtrade.papers.published import load_published
from memtrade.papers.torch_allocator import MIB, CachingAllocator, TorchTensor
from memtrade.papers.torch_pipeline import reserved
from memtrade.papers.torch_tape import Gone, Tape, TapeNet, TapeOp, TapeTensor, draw
from memtrade.papers.torchgpipe_reserved import ROWS, figures_of


def row(model: str, run: str):
    [found] = [each for each in ROWS if (each.model, each.run) == (model, run)]
    return found


@pytest.mark.parametrize("each", ROWS[:7], ids=lambda each: f"{each.model} {each.run}")
def test_the_nets_have_the_published_parameters_and_modules(each):
    tape = each.tape()
    assert not each.balance or len(tape.ends) == sum(each.balance)
    counted = sum(sum(op.weights) for op in tape.events if isinstance(op, TapeOp)) / 4
    frame = load_published(each.table)
    printed = frame[frame["experiment"] == each.run]["parameters"].iloc[0]
    assert counted == pytest.approx(printed, rel=0.005)


def test_there_is_a_row_for_every_published_one():
    for table in {each.table for each in ROWS}:
        frame = load_published(table)
        runs = [each.run for each in ROWS if each.table == table]
        assert sorted(runs) == sorted(frame["experiment"].unique())


def test_reserved_bytes_come_closer_than_those_in_use():
    unet = figures_of(row("unet", "pipeline-2"))
    assert abs(unet["total_reserved_error"]) < 0.05
    plain = figures_of(row("amoebanet-d", "baseline"))
    assert plain["published_bytes"] is plain["predicted_reserved_bytes"] is None  # out of memory


def test_what_ops_keep_and_when_tensors_go():
    net = TapeNet("layers")
    x = TapeTensor(net, (1, 2, 4, 4))  # 128 bytes
    y = net.relu(x)
    del x
    pooled = net.max_pool(y, 2, stride=2)
    assert pooled.shape == (1, 2, 2, 2)
    relu, gone, pool = net.tape.events
    assert isinstance(relu, TapeOp)
    assert isinstance(pool, TapeOp)
    assert gone == Gone(0)
    assert relu.keeps == (1,)  # the output
    assert (pool.keeps, pool.aside_bytes) == ((1,), 8 * 8)  # the input, and the indices


def tiny() -> Tape:
    options = {"layers": 3, "filters": 8, "batch_size": 1, "image_size": 64, "data_format": "NCHW"}
    return draw(make_model("amoebanet-d", options), "blocks")


def test_each_side_stream_has_a_segment_of_its_own():
    few, many = (reserved(tiny(), [5, 4], count, "rmsprop") for count in (2, 32))
    more = many[1].most_reserved_bytes - few[1].most_reserved_bytes
    assert more == 30 * 2 * MIB  # of small tensors, on 30 more streams
    assert many[1].peak_bytes - few[1].peak_bytes < more / 4


def test_a_balance_of_another_net_is_refused():
    with pytest.raises(MemtradeError, match="8 modules together, the net 9"):
        reserved(tiny(), [4, 4], 2, "sgd")


def test_a_full_card_gives_back_what_is_empty_and_then_has_no_more():
    device = CachingAllocator(30 * MIB)
    first = TorchTensor(device, 12 * MIB)
    del first
    second = TorchTensor(device, 14 * MIB)
    assert device.reserved_bytes == 26 * MIB
    third = TorchTensor(device, 16 * MIB)  # the first one's segment goes
    assert (device.reserved_bytes, device.most_reserved_bytes) == (30 * MIB, 30 * MIB)
    with pytest.raises(MemoryError):
        device.allocate(5 * MIB)
    del second, third
