"""What flags come to: commands as they are recorded, strategies, devices, targets."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from memtrade import cli
from memtrade.errors import MemtradeError
from memtrade.measure import flags, here, host
from memtrade.measure.flags import StrategyFlags

BENCHMARK = Path(__file__).parents[2] / "results" / "benchmark"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["memtrade", "run", "--results", "my runs"], "memtrade run --results 'my runs'"),
        (["memtrade", "run", "--results=/a/b/runs"], "memtrade run --results=runs"),
        (["memtrade", "run", "--plan", "{here}/plans/p.json"], "memtrade run --plan plans/p.json"),
        (["memtrade", "run", "--option", "tensors=a/b:0"], "memtrade run --option tensors=a/b:0"),
    ],
)
def test_commands_are_recorded_without_folders(words: list[str], text: str) -> None:
    assert cli.command_text([word.format(here=Path.cwd()) for word in words]) == text


def test_an_encoding_without_a_sign_is_written_with_a_question_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert cli.main(["table", str(BENCHMARK)]) == 0
    assert b"224 ? 224 pixels" in written.getvalue()


@pytest.mark.parametrize("words", ["strategies", "run --help"])
@pytest.mark.parametrize(
    ("stdout", "status", "said"),
    [
        (">&-", 0, ""),
        ("| true", 0, ""),
        ("> /dev/full", 2, "memtrade: cannot write: No space left on device: make room\n"),
    ],
)
def test_a_stdout_that_takes_nothing_ends_in_no_traceback(
    stdout: str, status: int, said: str, words: str
) -> None:
    command = f"set -o pipefail; {sys.executable} -m memtrade {words} {stdout}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (status, said)


# Options of strategies.


def test_an_option_goes_to_the_strategies_that_have_it() -> None:
    chosen = StrategyFlags(option=["mode=speed", "ome.mode=collection", "lb=7"]).typed_options(
        ["original", "checkpoints", "lms", "ome"]
    )
    assert chosen["checkpoints"].mode == "speed"
    assert chosen["ome"].mode == "collection"
    assert chosen["lms"].lb == 7


def test_a_flag_is_for_those_whose_option_says_nothing() -> None:
    flags = StrategyFlags(option=["optimal.budget=1GB"], budget="2GB")
    chosen = flags.typed_options(["rotor", "optimal"])
    assert (chosen["rotor"].budget, chosen["optimal"].budget) == ("2GB", "1GB")


def test_strategies_are_taken_once_in_the_order_given() -> None:
    assert StrategyFlags(strategy="ome, lms,ome").names() == ["ome", "lms"]


# The device.


def test_a_gpu_is_the_default_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = host.Gpu(index=0, name="A GPU", memory_bytes=8 << 30, free_bytes=8_000_000_000)
    monkeypatch.setattr(host, "gpus", lambda: [gpu])
    device, limit_bytes = flags.DeviceFlags().resolve()
    assert device == "gpu:0"
    assert 7_198_000_000 < limit_bytes <= 7_200_000_000
    assert limit_bytes % (1 << 20) == 0
    assert flags.DeviceFlags(device="arena").resolve()[0] == "arena"


def test_what_is_neither_here_nor_a_profile_names_both_lists() -> None:
    both = "Here are arena; profiles, to plan and predict for, are a100-40gb, arena, gtx-1070"
    for ask in (flags.DeviceFlags.resolve, flags.DeviceFlags.target):
        with pytest.raises(MemtradeError) as refused:
            ask(flags.DeviceFlags(device="gtx1070"))
        assert str(refused.value).startswith("unknown device 'gtx1070': did you mean 'gtx-1070'? H")
        assert both in str(refused.value)
        assert "\n" not in str(refused.value)
    with pytest.raises(MemtradeError, match="h100 is a profile, and nothing can run") as refused:
        flags.DeviceFlags(device="h100").resolve()
    assert both in str(refused.value)


def test_a_target_is_made_of_the_flags() -> None:
    """What is here can be asked; what is not is as its profile says."""
    arena = flags.DeviceFlags(device="arena", memory_limit="1GB").target("dataflow")
    assert (arena.name, arena.order, arena.limit_bytes) == ("arena", "dataflow", 1_000_000_000)
    assert arena.here == "arena"
    elsewhere = flags.DeviceFlags(device="h100").target()
    assert (elsewhere.name, elsewhere.here) == ("h100", "")
    assert elsewhere.limit_bytes == elsewhere.device.memory_bytes == 80_000_000_000
    assert arena.copies_in_line
    assert not elsewhere.copies_in_line
    assert elsewhere.facts.name != arena.facts.name


def test_a_gpu_here_has_the_profile_whose_name_is_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = {
        "NVIDIA A100-SXM4-40GB": "a100-40gb",
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA GeForce GTX 1070": "gtx-1070",
        "Tesla V100-SXM2-16GB": "v100-16gb",
        "NVIDIA GPU": here.GENERIC,
    }
    names = list(cards)
    gpus = [host.Gpu(index=i, name=n, free_bytes=10 << 30) for i, n in enumerate(names)]
    monkeypatch.setattr(host, "gpus", lambda: gpus)
    for i, name in enumerate(names):
        target = flags.DeviceFlags(device=f"gpu:{i}").target()
        assert (target.name, target.limit_bytes) == (cards[name], int(0.9 * (10 << 30)))
        assert target.here == f"gpu:{i}"


def test_a_gpu_of_unknown_size_needs_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "gpus", lambda: [host.Gpu(index=0, name="A GPU")])
    assert flags.DeviceFlags().resolve()[0] == "arena"
    with pytest.raises(MemtradeError, match="say --memory-limit"):
        flags.DeviceFlags(device="gpu:0").resolve()
    limited = flags.DeviceFlags(device="gpu:0", memory_limit="1GB").resolve()
    assert limited == ("gpu:0", 953 << 20)


# plan
