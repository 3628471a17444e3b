"""The thesis' log, printed of records, read by the rules by which the published one was read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from memtrade.errors import MemtradeError
from memtrade.measure.protocol import Measured, NamedCheckpoint, StepDone
from memtrade.measure.records import Record
from memtrade.papers.published import load_published
from memtrade.papers.thesis_log import STEPS, thesis_log

MakeRecord = Callable[..., Record]

HEADS = {
    "Running with checkpoints": "checkpoints",
    "Running without checkpoints": "original",
    "Running with tensorflow_large_model_support": "lms",
    "Running with OME": "ome",
}
MEMORY = re.compile(r"\('max_mem:', ([\d.]+), 'mem_used:', ([\d.]+)\)")
SIZE = re.compile(r"--- Size:(\d+)")
STEP = re.compile(r"\|_+ memory_cost:([\d.]+), execute_time:([\d.]+)")
EDIT = re.compile(r"INFO:tensorflow:\[LMS\]\[0\] (.*)")
TENSOR = re.compile(r"(checkpoints but not swap out|swap out) to /cpu: "
                    r'Tensor\("([^"]+)", shape=\(([\d, ]+)\), dtype=(\w+)\)')  # fmt: skip


def read(log: str) -> list[dict[str, Any]]:
    """A run per "Size": the memory lines before it, the steps behind it. A heading holds for all
    runs up to the next one, "sleep" ends a run, and what is none of these lines is passed over."""
    runs: list[dict[str, Any]] = []
    strategy, run = "", {}

    def fresh() -> dict[str, Any]:
        return {"memory": [], "steps": [], "edits": [], "tensors": []}

    run = fresh()
    for line in log.splitlines():
        if line in HEADS:
            strategy = HEADS[line]
        elif found := MEMORY.fullmatch(line):
            run["memory"].append((float(found[1]), float(found[2])))
        elif found := SIZE.fullmatch(line):
            run |= {"strategy": strategy, "size": int(found[1])}
        elif found := STEP.fullmatch(line):
            run["steps"].append((float(found[1]), float(found[2])))
        elif found := EDIT.fullmatch(line):
            run["edits"].append(found[1])
        elif found := TENSOR.fullmatch(line):
            run["tensors"].append((found[2], found[3], found[4], found[1] == "swap out"))
        elif line == "sleep 5 sec":
            runs.append(run)
            run = fresh()
    return runs


def measured(peaks_mb: list[float]) -> Measured:
    steps = [StepDone(0.1 * i, round(peak * 1e6), 1.0) for i, peak in enumerate(peaks_mb, 1)]
    return Measured.of(
        steps, warmup=0, persistent_bytes=141_918_208, host_bytes=3_200_000_000,
        trace_seconds=1.0, plan_seconds=0.25, rewrite_seconds=0.5,
        in_use_bytes=(1280, 141_913_088, *(141_918_208 for _ in steps)),
    )  # fmt: skip


PEAKS = [514.143232, *[514.400256] * 8]


def test_nine_steps_are_read_as_the_published_ones_were(make_record: MakeRecord) -> None:
    record = make_record("checkpoints", measured=measured(PEAKS))
    [run] = read(thesis_log([record]))
    published = load_published("thesis_log_memory").query(
        "layers == 18 and strategy == 'checkpoints'"
    )
    assert (run["strategy"], run["size"]) == ("checkpoints", 50)
    assert len(run["memory"]) == len(published) == STEPS + 2
    assert run["memory"][0] == (0.00128, 0.00128)
    assert run["memory"][1] == (141.913088, 141.913088)
    assert run["memory"][2:] == [(peak, 141.918208) for peak in PEAKS]
    assert [cost for cost, _ in run["steps"]] == pytest.approx([p - 141.918208 for p in PEAKS])
    assert [seconds for _, seconds in run["steps"]] == [round(0.1 * i, 3) for i in range(1, 10)]


def test_max_mem_is_the_highest_so_far(make_record: MakeRecord) -> None:
    record = make_record("original", measured=measured([500.0, 700.0, 600.0]))
    [run] = read(thesis_log([record]))
    assert [high for high, _ in run["memory"][2:]] == [500.0, 700.0, 700.0]
    assert [round(cost + 141.918208) for cost, _ in run["steps"]] == [500, 700, 600]


def test_what_lms_and_ome_say_of_themselves(make_record: MakeRecord) -> None:
    plan = make_record().plan
    assert plan is not None
    lms = make_record(
        "lms", measured=measured(PEAKS),
        plan=msgspec.structs.replace(plan, swapped=68, ops_added=150),
    )  # fmt: skip
    shape = (32, 35, 35, 384)
    ome = make_record(
        "ome", measured=measured(PEAKS),
        plan=msgspec.structs.replace(plan, checkpoints=(
            NamedCheckpoint("Mixed_5d/concat:0", shape, "float32", "keep"),
            NamedCheckpoint("Logits/Reshape:0", (32, 1536), "float32", "swap"),
        )),
    )  # fmt: skip
    log = thesis_log([lms, ome])
    edited, disconnected = read(log)
    assert edited["edits"] == [
        "Editing model for LMS", "n_tensors: all tensors", "lb: 1",
        "Edited model is valid and logically equivalent to the original one",
        "Added 150 ops into the model", "Editing model for LMS, took: 750.0 ms",
        "68 tensors will be swapped out(in) to(from) the host",
    ]  # fmt: skip
    assert "total checkpoints disconnected count : 2\n" in log
    assert disconnected["tensors"] == [
        ("Mixed_5d/concat:0", "32, 35, 35, 384", "float32", False),
        ("Logits/Reshape:0", "32, 1536", "float32", True),
    ]
    assert log.count("cpu used :3.20\n") == 2


def test_runs_of_one_strategy_stand_under_one_heading(make_record: MakeRecord) -> None:
    one = make_record("ome", measured=measured(PEAKS))
    failed = make_record("original", peak_mb=None, status="out_of_memory")
    other = make_record("optimal", measured=measured(PEAKS))
    log = thesis_log([one, one, failed, other])
    assert log.count("Running with OME") == 1
    runs = read(log)
    assert [run["strategy"] for run in runs] == ["ome", "ome", "original"]
    assert runs[2]["memory"] == runs[2]["steps"] == []


def test_what_the_log_cannot_say_is_said(make_record: MakeRecord) -> None:
    with pytest.raises(MemtradeError, match="does not say what was in use between its steps"):
        thesis_log([make_record("original")])
    with pytest.raises(MemtradeError, match="there is no record of one of them"):
        thesis_log([make_record("optimal")])
