"""`memtrade explain` as one types it: a record, an error text, and what is neither."""

from __future__ import annotations

import dataclasses
import io
import json
import shlex
from pathlib import Path

import pytest

from memtrade.measure.flags import ModelFlags
from memtrade.measure.protocol import Outcome, Status, TrialSpec
from memtrade.measure.records import make_record, save_record
from tests.commands.conftest import Run

STEP = ["--layers", "18", "--image-size", "32", "--num-classes", "10", "--batch-size", "256"]
REASON = (
    "OOM when allocating tensor with shape[256,16,16,64] and type float on /job:localhost/replica:"
    "0/task:0/device:CPU:0 by allocator cpu"
)


@pytest.fixture
def limit_mib(run: Run) -> int:
    """Four fifths of what the step takes."""
    [told] = json.loads(run("predict", *STEP, "--strategy", "original", "--json")[1])
    return int(0.8 * told["predicted"]["peak_bytes"]) >> 20


def record(folder: Path, limit_mib: int = 100, *, status: Status = "out_of_memory") -> str:
    model = ModelFlags(layers=18, image_size=32, num_classes=10, batch_size=256).make_model()
    spec = TrialSpec(
        model=model.family,
        model_options=dataclasses.asdict(model),
        memory_limit_bytes=limit_mib << 20,
    )
    made = make_record(spec, Outcome(status=status, reason=REASON), command="memtrade run")
    return str(save_record(made, folder))


def test_a_record_on_a_page(run: Run, tmp_path: Path, limit_mib: int) -> None:
    status, out, _ = run("explain", record(tmp_path, limit_mib))
    assert status == 0
    for part in ("Out of memory: resnet-18, batch 256", "the batch is too large", "of 256 examples",
                 "memtrade/models/resnet.py:", "What held memory then", "What fits",
                 "--batch-size 256", 'memtrade.apply(train_step, batch, strategy="'):  # fmt: skip
        assert part in out


def test_what_held_the_rest_by_line(run: Run, tmp_path: Path, limit_mib: int) -> None:
    _, out, _ = run("explain", record(tmp_path, limit_mib), "--by", "source")
    _, table = out.split("What held memory then, by line")
    assert table.split("What fits")[0].count("memtrade/models/resnet.py:") > 2


def test_the_command_that_is_offered_can_be_typed_and_fits(
    run: Run, tmp_path: Path, limit_mib: int
) -> None:
    _, out, _ = run("explain", record(tmp_path, limit_mib), "--json")
    told = json.loads(out)
    assert told["explanation"]["kind"] == "batch"
    assert told["remedy"]["peak_bytes"] <= limit_mib << 20
    program, command, *flags = shlex.split(told["command"])
    assert (program, command) == ("memtrade", "run")
    status, predicted, _ = run("predict", *flags, "--json")
    assert status == 0
    [prediction] = json.loads(predicted)
    assert prediction["predicted"]["fits"]
    assert prediction["predicted"]["peak_bytes"] == told["remedy"]["peak_bytes"]


def test_an_error_text_alone_and_with_its_step(run: Run, tmp_path: Path, limit_mib: int) -> None:
    error = tmp_path / "error.txt"
    error.write_text(f"{REASON}\n\t [[{{{{node block/Conv2D}}}}]]\n")
    status, out, _ = run("explain", "--error", "error.txt")
    assert status == 0
    assert "block/Conv2D asked for 16.8 MB" in out
    assert "no dump of the allocator" in out
    limit = ["--memory-limit", f"{limit_mib}MiB"]
    _, out, _ = run("explain", "--error", "error.txt", *STEP, *limit)
    assert "the batch is too large" in out


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        ([], "name the record of a trial, or a file with an error by --error"),
        (["odd.json", "--error", "oom.txt"], "a record and --error both say what ran out of"),
        (["none.json"], "cannot read the record 'none.json': No such file or directory"),
        (["odd.json"], "odd.json is not the record of a trial: "),
        (["--error", "odd.json"], "this is no out-of-memory error of TensorFlow"),
        (["--error", "oom.txt", "--by", "source"], "--strategy, --device and --by are of the step"),
        (["--error", "none.txt"], "cannot read 'none.txt': No such file or directory"),
    ],
)
def test_bad_input(run: Run, tmp_path: Path, tokens: list[str], complaint: str) -> None:
    (tmp_path / "odd.json").write_text("{}")
    (tmp_path / "oom.txt").write_text("OOM when allocating tensor with shape[32,3] and type float")
    status, out, err = run("explain", *tokens)
    assert (status, out) == (2, "")
    assert err.startswith(f"memtrade: {complaint}")
    assert err.count("\n") == 1


def test_an_error_on_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "OOM when allocating tensor with shape[32,3] and type float"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    status, out, err = run("explain", "--error", "-", "--json")
    assert (status, err) == (0, "")
    assert '"requested_bytes":384' in "".join(out.split())


def test_a_trial_that_ran_and_flags_that_a_record_has(run: Run, tmp_path: Path) -> None:
    status, _, err = run("explain", record(tmp_path, status="timeout"))
    assert (status, "this trial did not run out of memory: timeout" in err) == (2, True)
    status, _, err = run("explain", record(tmp_path), "--layers", "50")
    assert (status, "leave the flags out" in err) == (2, True)
