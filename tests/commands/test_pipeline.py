"""`memtrade partition` and `memtrade pipeline`: what they print, write, and refuse."""

from __future__ import annotations

import inspect
import json
import math
import socket
from pathlib import Path

import msgspec
import pytest

from memtrade.comparison import Difference, Verified
from memtrade.measure.records import save_record
from memtrade.pipeline.commands import partition, runner
from memtrade.pipeline.commands.partition import CutFlags
from memtrade.pipeline.commands.pipeline import PipelineFlags
from memtrade.pipeline.commands.runner import run as run_command
from memtrade.pipeline.measure.protocol import PipelineOutcome
from memtrade.pipeline.measure.trial import PipelineRecord
from tests.commands.conftest import SMALL_GPT2, Run, trace_here
from tests.pipeline.records import record


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "extract_graph", trace_here)


def test_a_partition_with_real_times_is_a_folder_of_three_files(run: Run) -> None:
    measured = ("--iterations", "3", "--results", "out")
    status, out, _ = run("partition", *SMALL_GPT2, "--partitions", "2", *measured)
    assert status == 0
    assert "Real times, measured on this machine" in out
    stem = "gpt2-2x32_k2"
    assert sorted(each.name for each in Path("out").iterdir()) == [
        f"{stem}.json", f"{stem}.md", f"{stem}.svg",
    ]  # fmt: skip
    page = Path("out", f"{stem}.md").read_text()
    assert "cutting edges: 1," in page
    assert "mean deviation ms" in page
    assert "    memtrade partition --model gpt2" in page
    numbered = [line[2] for line in page.splitlines() if line[:2] == "| " and line[2].isdigit()]
    assert numbered == ["1", "2", "1", "2"]  # in both tables, as messages count
    assert "stage 2" in (picture := Path("out", f"{stem}.svg").read_text())
    assert "stage 0" not in picture
    report = json.loads(Path("out", f"{stem}.json").read_bytes())["report"]
    real = report["real_times"]
    assert real["iterations"] == 3
    for phase in ("forward", "backward"):
        means, deviations = real["mean"][phase], real["mean_deviation"][phase]
        assert len(means) == 2
        for mean, variance, deviation in zip(
            means, real["variance"][phase], deviations, strict=True
        ):
            assert mean > 0
            assert 0 <= deviation <= math.sqrt(variance) * (1 + 1e-9)
    for phase, ratio in report["real"]["imbalance"].items():
        assert ratio == pytest.approx(min(real["mean"][phase]) / max(real["mean"][phase]))


def test_a_partition_is_theoretical_unless_iterations_are_asked_for(run: Run) -> None:
    status, out, _ = run("partition", *SMALL_GPT2, "--partitions", "2", "--json")
    assert status == 0
    assert json.loads(out)["report"]["real_times"] is None


def test_a_partition_keeps_layers_whole_from_a_depth_on(run: Run) -> None:
    found = []
    for depth in ("1", "2"):
        wanted = ("--partitions", "4", "--slack", "0", "--depth", depth, "--json")
        status, out, _ = run("partition", *SMALL_GPT2, *wanted)
        assert status == 0
        found.append(json.loads(out)["partition"]["boundaries"])
    blocks, layers = found
    assert len({name.split("/")[0] for name in blocks}) == 3
    assert len({name.split("/")[0] for name in layers}) < 3, layers


def test_predicted_stages_are_numbered_from_1(run: Run) -> None:
    one = ("--partitions", "2", "--micro-batches", "2", "--schedule", "gpipe")
    status, out, _ = run("pipeline", "predict", *SMALL_GPT2, *one, "--picture", "schedule.svg")
    assert status == 0
    rows = out.partition("stage  peak in")[2].splitlines()[2:4]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    picture = Path("schedule.svg").read_text()
    assert ("stage 0" in picture, "stage 1" in picture) == (False, True)


def test_a_pipeline_with_swapping_stages_is_a_record(run: Run) -> None:
    wanted = ("--micro-batches", "2", "--checkpoint", "never", "--strategy", "lms")
    limits = ("--memory-limit", "200MiB", "--steps", "1", "--verify", "--results", "out")
    status, out, _ = run("pipeline", "run", *SMALL_GPT2, *wanted, *limits)
    assert status == 0, out
    (made,) = PipelineRecord.load("out")
    assert (made.trial.strategy, made.status) == ("lms", "ok")
    assert made.measured is not None
    assert made.measured.verified is not None
    assert made.measured.verified.equal
    assert made.measured.verified.max_difference is not None
    assert made.measured.verified.max_difference < 1e-4
    assert sum(stage.host_bytes for stage in made.predicted.stages) > 0
    assert "Equal to the unpipelined step: off by " in out


@pytest.mark.parametrize("why", ["", "is not a number", "has no partner"])
def test_a_pipeline_that_computes_something_else_exits_with_1(
    run: Run, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    made = record(partitions=2, micro_batches=2, schedule="gpipe")
    assert made.measured is not None
    share = None if why else 0.5
    verified = Verified(
        equal=False, tolerance=0.05, max_difference=share, of_update=share, steps=1, variables=3,
        differing=(Difference("w", share, share, why),),
    )  # fmt: skip
    measured = msgspec.structs.replace(made.measured, verified=verified)
    outcome = PipelineOutcome(status="ok", measured=measured)
    monkeypatch.setattr(runner, "run_pipeline", lambda *given, **named: outcome)
    status, out, _ = run("pipeline", "run", *SMALL_GPT2, "--micro-batches", "2", "--verify")
    assert status == 1
    assert f"Differs from the unpipelined step: w {why or 'by 0.5 of the update'}" in out


def test_a_table_over_records_says_what_was_measured_and_what_predicted(run: Run) -> None:
    for schedule in ("gpipe", "1f1b"):
        saved = record(partitions=2, micro_batches=4, schedule=schedule)
        save_record(saved, Path("runs"))
    status, out, _ = run(
        "pipeline", "table", "runs", "--output", "table.md", "--format", "markdown"
    )
    assert status == 0
    assert Path("table.md").read_text() in out
    assert "| gpipe | never | original | 2 | 4 | ok |" in out
    assert "| 1f1b | never | original | 2 | 4 | ok |" in out
    assert "total MiB: measured | predicted" in out
    assert "    memtrade pipeline table runs" in out


def test_a_damaged_record_is_left_out_with_a_warning(run: Run) -> None:
    path = save_record(record(partitions=2, micro_batches=4), Path("runs"))
    path.with_stem(f"{path.stem}_bad").write_text("{")
    status, out, err = run("pipeline", "table", "runs")
    assert (status, "gpipe" in out) == (0, True)
    assert err.startswith(f"memtrade: warning: left out runs/{path.stem}_bad.json, which is not a")
    assert err.count("\n") == 1


TYPED = " ".join(SMALL_GPT2)
BAD = [
    (f"partition {TYPED} --partitions 100000", "can be cut into 1 to"),
    (f"partition {TYPED} --boundary block1/nothing", "'block1/nothing' is no op of"),
    ("partition --model gpt2 --iterations -1", "--iterations is a number from 0 on, not -1"),
    ("pipeline run --model gpt2 --batch-size 8 --micro-batches 3", "take 1 or 2 or 4"),
    ("pipeline run --model gpt2 --batch-size 8 --strategy lms,ome", "one strategy, not lms, ome"),
    ("pipeline run --model gpt2 --batch-size 8 --strategy xla", "xla has no plan"),
    ("pipeline run --model gpt2 --batch-size 8 --order dataflow", "one fixed order"),
    (
        f"pipeline run {TYPED} --model-option dropout=0.1 --micro-batches 2 --verify",
        "draw no random numbers",
    ),
    ("pipeline run --model gpt2 --batch-size 8 --steps 0", "--steps must be at least 1, not 0"),
    ("pipeline run --model gpt2 --batch-size 8 --warmup=-1", "--warmup must be at least 0, not -1"),
    ("pipeline run --model gpt2 --batch-size 8 --timeout 0", "a positive number of seconds, not 0"),
    ("pipeline run --model gpt2 --batch-size 8 --memory-limit 1KB", "at least 3MiB, not 1KB"),
    ("pipeline run --size a,b", "--size 'a,b' of resnet: option 'layers' must be a whole number"),
    ("pipeline run --model gpt2 --size 0", "--size '0' of gpt2: "),
    ("pipeline sweep pipeline_schedules --steps 0", "--steps must be at least 1, not 0"),
    ("pipeline serve --cluster x --stage 1", "an address of a cluster is host:port, not 'x'"),
    ("pipeline run --model keras/MobileNetV2", "a pipeline runs built-in models, and "),
    ("pipeline run --model-option draw_batch=true", "leave draw_batch out"),
    ("pipeline run --model gpt2 --cluster a:1", "1 are given for 2 partitions"),
    ("pipeline run --model gpt2 --cluster a:1,a:1", "--cluster names a:1 more than once"),
    ("pipeline serve --cluster a:1,a:1 --stage 1", "--cluster names a:1 more than once"),
    (
        "pipeline run --model gpt2 --cluster 127.0.0.1:1,localhost:1 --one-at-a-time",
        "--one-at-a-time runs stages apart, on this machine: without --cluster and --verify",
    ),
    ("partition --model keras/MobileNetV2 --iterations 1", "a pipeline runs built-in models"),
    ("pipeline table nowhere", "there is no folder of records of pipelines 'nowhere': make some"),
    ("pipeline table .", "there are no records of pipelines in '.': make some"),
    ("pipeline predict --model gpt2 --bandwidth 12", "more than 0, not '12': write 12GB/s"),
]


@pytest.mark.parametrize(("command", "message"), BAD, ids=[each[0] for each in BAD])
def test_bad_input_is_one_line(run: Run, command: str, message: str) -> None:
    status, out, err = run(*command.split())
    said = [line for line in err.splitlines() if not line.startswith("[1/1]")]
    assert (status, out, len(said)) == (2, "", 1)
    assert message in said[0]
    assert not list(Path().iterdir())


def test_a_grid_without_trials_is_refused(run: Run) -> None:
    lists = "partitions = []\nmicro_batches = [2]"
    Path("grid.toml").write_text(f'[[pipeline]]\nmodel = "gpt2"\nbatch_size = 8\n{lists}\n')
    said = "memtrade: grid.toml makes no trials: a list in it is empty\n"
    assert run("pipeline", "sweep", "grid.toml") == (2, "", said)


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        ("--depth 0", "--depth is a number from 1 on, not 0"),
        ("--slack nan", "--slack must be at lea"),
        ("--bandwidth 0GB/s", "--bandwidth is bytes a second, more than 0, not '0GB/s'"),
        (
            "--boundary gpt2/block_0/add --partitions 5",
            "boundaries are one less than partitions, not 1 for 5: give as many, or none\n",
        ),
    ],
)
def test_how_to_cut_is_checked_before_the_step_is_traced(run: Run, flags: str, rule: str) -> None:
    for command in ("partition", "pipeline predict", "pipeline run"):
        status, _, err = run(*f"{command} --model gpt2 {flags}".split())
        assert status == 2
        assert err.startswith(f"memtrade: {rule}")


def test_an_address_where_nobody_answers_is_named(run: Run) -> None:
    with socket.socket() as held:  # bound, but nobody listens
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        cluster = ("--micro-batches", "2", "--partitions", "1", "--cluster", address)
        status, _, err = run("pipeline", "run", *SMALL_GPT2, *cluster)
    assert status == 2
    assert f"no server answers at {address}" in err


def test_stages_on_gpus_need_gpus_and_elsewhere_a_profile(run: Run) -> None:
    """Here the card says which profile; what cards the servers of a cluster have is not known."""
    gpus = ("--micro-batches", "2", "--device", "gpu")
    status, _, err = run("pipeline", "run", *SMALL_GPT2, *gpus, "--cluster", "a:1,b:2")
    assert status == 2
    assert "name it with --profile, one of a100-40gb, arena," in err
    status, _, err = run("pipeline", "run", *SMALL_GPT2, *gpus)
    assert status == 2
    assert "unknown device 'gpu:0'" in err
    profiled = ("--device", "gpu", "--profile", "p40")
    status, _, err = run("pipeline", "run", *SMALL_GPT2, "--micro-batches", "2", *profiled)
    assert status == 2
    assert "unknown device 'gpu:0'" in err
    status, _, err = run(
        "pipeline", "serve", "--cluster", "a:1,b:2", "--stage", "1", "--device", "gpu:7"
    )
    assert status == 2
    assert "unknown device 'gpu:7'" in err


def test_what_is_predicted_is_what_would_run() -> None:
    run, told = inspect.signature(run_command).parameters, PipelineFlags()
    assert (run["schedule"].default, run["checkpoint"].default) == (told.schedule, told.checkpoint)
    [case] = told.cases(batch_size=64, cut=CutFlags(), strategies=["original"])
    found = (case.partitions, case.micro_batches)
    assert found == (run["partitions"].default, run["micro_batches"].default)
