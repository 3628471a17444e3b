"""Records: written whole or not at all, read back as they were, damaged ones set aside."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from memtrade.errors import MemtradeError
from memtrade.measure import records as module
from memtrade.measure.protocol import Outcome, TrialSpec
from memtrade.measure.records import (
    DamagedRecordWarning,
    Record,
    load_records,
    options_text,
    save_record,
    to_frame,
    trial_id,
)

MakeRecord = Callable[..., Record]


def test_a_record_comes_back_as_it_was(tmp_path: Path, make_record: MakeRecord) -> None:
    record = make_record("ome", spec={"strategy_options": {"select": "all", "count": 4}})
    path = save_record(record, tmp_path / "new" / "runs")
    assert path.name == f"resnet-50_b32_ome_{record.id}.json"
    assert load_records(tmp_path) == [record]


def test_the_same_trial_again_replaces_its_record(tmp_path: Path, make_record: MakeRecord) -> None:
    save_record(make_record(peak_mb=1.0), tmp_path)
    save_record(make_record(peak_mb=2.0), tmp_path)
    [record] = load_records(tmp_path)
    assert record.measured is not None
    assert record.measured.peak_bytes == 2_000_000


def test_the_same_record_is_the_same_file(tmp_path: Path, make_record: MakeRecord) -> None:
    record = make_record()
    first = save_record(record, tmp_path / "a").read_bytes()
    again = save_record(load_records(tmp_path / "a")[0], tmp_path / "b").read_bytes()
    assert first == again
    assert first.endswith(b"}\n")


def test_a_write_that_fails_leaves_the_old_record_and_no_rest(
    tmp_path: Path, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_record(peak_mb=1.0)
    save_record(old, tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MemtradeError, match="No space left on device"):
        save_record(make_record(peak_mb=2.0), tmp_path)
    assert load_records(tmp_path) == [old]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (b'{"schema_version": 1, "id"', "truncated"),
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"schema_version": 1}', "missing required field"),
        (b"\xff\xfe", "malformed|invalid"),
    ],
)
def test_a_damaged_file_is_set_aside_by_name_and_reason(
    tmp_path: Path, make_record: MakeRecord, contents: bytes, reason: str
) -> None:
    save_record(make_record(), tmp_path)
    (tmp_path / "damaged.json").write_bytes(contents)
    with pytest.warns(DamagedRecordWarning, match=rf"damaged\.json.*({reason})"):
        assert len(load_records(tmp_path)) == 1
    assert (tmp_path / "damaged.json").exists()


def test_a_step_that_took_no_memory_is_no_record(tmp_path: Path, make_record: MakeRecord) -> None:
    path = save_record(make_record(), tmp_path)
    path.write_text(re.sub(r'"peak_bytes": *\d+', '"peak_bytes": 0', path.read_text()))
    with pytest.warns(DamagedRecordWarning, match=r"Expected `int` >= 1 .*peak_bytes"):
        assert load_records(tmp_path) == []


def test_another_schema_is_set_aside(tmp_path: Path, make_record: MakeRecord) -> None:
    save_record(make_record(schema_version=99), tmp_path)
    with pytest.warns(DamagedRecordWarning, match="schema version 99, not 1"):
        assert load_records(tmp_path) == []


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MemtradeError, match="no folder of records"):
        load_records(tmp_path / "none")


# What makes a trial the same trial.


def test_the_id_does_not_hang_on_the_order_of_options(make_record: MakeRecord) -> None:
    spec, machine = make_record().spec, make_record().machine
    turned = dict(reversed(spec.model_options.items()))
    again = msgspec.structs.replace(spec, model_options=turned)
    assert trial_id(again, machine) == trial_id(spec, machine)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "inception-v4"},
        {"model_options": {"batch_size": 33}},
        {"optimizer": "adam"},
        {"learning_rate": 0.02},
        {"strategy": "lms"},
        {"strategy_options": {"lb": 2}},
        {"order": "dataflow"},
        {"device": "gpu:0"},
        {"memory_limit_bytes": 1 << 30},
        {"steps": 6},
        {"warmup": 2},
    ],
)
def test_the_id_tells_trials_apart(make_record: MakeRecord, change: dict[str, object]) -> None:
    record = make_record()
    changed = msgspec.structs.replace(record.spec, **change)
    assert trial_id(changed, record.machine) != record.id


@pytest.mark.parametrize(
    "change",
    [
        {"tensorflow_version": "2.22.0"},
        {"memtrade_version": "0.1+g0123456"},
        {"cpu_model": "Another"},
        {"cpu_features": ("avx", "avx2")},
        {"cores": 64},
        {"settings": ("TF_ENABLE_ONEDNN_OPTS=0",)},
    ],
)
def test_the_id_tells_apart_what_can_change_a_figure(
    make_record: MakeRecord, change: dict[str, object]
) -> None:
    """Machines, too, since their kernels differ; but not by how much memory is built in."""
    record = make_record()
    assert trial_id(record.spec, msgspec.structs.replace(record.machine, **change)) != record.id
    larger = msgspec.structs.replace(record.machine, memory_bytes=1 << 40)
    assert trial_id(record.spec, larger) == record.id


def test_an_older_record_loads_and_keeps_its_id(make_record: MakeRecord, tmp_path: Path) -> None:
    path = save_record(msgspec.structs.replace(make_record(), id="0123456789ab"), tmp_path)
    older = json.loads(path.read_bytes())
    for name in ("cpu_features", "settings"):
        older["machine"].pop(name, None)
    path.write_text(json.dumps(older))
    (loaded,) = load_records(tmp_path)
    assert (loaded.id, loaded.machine.cpu_features) == ("0123456789ab", None)


def test_a_saved_plan_counts_by_its_contents(tmp_path: Path, make_record: MakeRecord) -> None:
    record = make_record()

    def with_plan(name: str, contents: str) -> TrialSpec:
        (tmp_path / name).write_text(contents, encoding="utf-8")
        return msgspec.structs.replace(record.spec, plan_path=str(tmp_path / name))

    ids = [
        trial_id(with_plan(name, contents), record.machine)
        for name, contents in (("a", "1"), ("b", "1"), ("c", "2"))
    ]
    assert ids[0] == ids[1]
    assert len({*ids, record.id}) == 3


def test_the_machine_is_described_without_its_name(make_record: MakeRecord) -> None:
    record = module.make_record(
        make_record().spec, Outcome(status="timeout"), command="memtrade run"
    )
    assert (record.model, record.status, record.measured) == ("resnet-50", "timeout", None)
    assert record.machine.cores >= 1
    assert os.uname().nodename not in record.machine.platform.split()
    assert record.created.endswith("+00:00")


# The frame.


def test_the_frame_has_units_in_its_names_and_keeps_what_is_missing(
    make_record: MakeRecord,
) -> None:
    failed = make_record(
        "lms",
        peak_mb=None,
        status="out_of_memory",
        reason="OOM",
        plan=None,
        spec={
            "model_options": make_record().spec.model_options | {"num_classes": 10},
            "strategy_options": {"lb": 3, "ub": 10000, "fuse_swapins": True},
        },
    )
    frame = to_frame([make_record(), failed])
    assert frame["peak_bytes"].tolist()[0] == 2_880_000_000
    assert frame["median_seconds"].tolist()[0] == 7.0
    assert frame["memory_limit_bytes"].tolist() == [7254 << 20] * 2
    assert frame["peak_bytes"].isna().tolist() == [False, True]
    assert frame["status"].tolist() == ["ok", "out_of_memory"]
    assert frame["model_options"].tolist() == ["", "num_classes=10"]
    assert frame["strategy_options"].tolist() == ["", "lb=3 fuse_swapins=true"]
    assert frame["swapped"].tolist()[0] == 3
    assert frame["predicted_peak_bytes"].isna().tolist() == [True, True]
    assert frame["cores"].tolist() == [2, 2]


def test_predictions_have_columns_of_their_own(make_record: MakeRecord) -> None:
    predicted = module.Predicted(
        device_profile="v100",
        peak_bytes=5,
        persistent_bytes=3,
        memory_cost_bytes=2,
        host_bytes=0,
        fits=True,
        step_seconds=0.5,
    )
    frame = to_frame([make_record(peak_mb=None, predicted=predicted)])
    assert frame["predicted_peak_bytes"].tolist() == [5]
    assert frame["predicted_device_profile"].tolist() == ["v100"]
    assert frame["peak_bytes"].isna().tolist() == [True]


def test_an_empty_frame_has_the_same_columns(make_record: MakeRecord) -> None:
    assert list(to_frame([]).columns) == list(to_frame([make_record()]).columns)


def test_options_as_text() -> None:
    assert options_text({"a": True, "b": 1.5, "c": "x"}) == "a=true b=1.5 c=x"
