"""The published figures: all there, in the units their columns name, slips kept and said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from memtrade.errors import UnknownNameError
from memtrade.papers import published
from memtrade.papers.published import load_published, published_names

ROW_COUNTS = {
    "gpipe_gpt2_devices": 196,
    "gpipe_gpt2_runs": 84,
    "gpt2_partition_imbalance": 36,
    "gpt2_partition_reports": 3,
    "gpt2_partition_stages": 10,
    "nvidia_resnet50": 2,
    "thesis_inception_v4": 4,
    "thesis_log_lms_edits": 7,
    "thesis_log_memory": 299,
    "thesis_log_ome_tensors": 12,
    "thesis_log_runs": 28,
    "thesis_log_steps": 243,
    "thesis_max_batch": 4,
    "thesis_other": 3,
    "thesis_resnet": 36,
    "thesis_resnet_lists": 36,
    "torchgpipe_accuracy": 9,
    "torchgpipe_amoebanetd_memory": 10,
    "torchgpipe_speed": 31,
    "torchgpipe_unet_memory": 5,
}
FOLDER = Path(published.__file__).with_name("published")
# Name -> DataFrame. `Any`, for pandas' own annotations give every selection a union type.
Frames = dict[str, Any]
RUN_KEYS = ["log", "strategy", "size_label"]


@pytest.fixture(scope="module")
def frames() -> Frames:
    return {name: load_published(name) for name in ROW_COUNTS}


def only(frame: Any, **values: object) -> dict[str, Any]:
    """The one row that has these values."""
    for column, value in values.items():
        frame = frame[frame[column] == value]
    assert len(frame) == 1, values
    return frame.iloc[0].to_dict()


# The loader.


def test_names_are_the_files_of_the_folder() -> None:
    assert published_names() == tuple(sorted(ROW_COUNTS))


def test_unknown_name_lists_the_valid_ones_and_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_published("thesis_resnets")
    assert "did you mean 'thesis_resnet'?" in str(caught.value)
    for name in ROW_COUNTS:
        assert name in str(caught.value)


def test_a_path_is_not_a_name() -> None:
    with pytest.raises(UnknownNameError):
        load_published("../published/thesis_resnet")


# Every file.


@pytest.mark.parametrize(("name", "count"), ROW_COUNTS.items())
def test_row_count(frames: Frames, name: str, count: int) -> None:
    assert len(frames[name]) == count
    assert not frames[name].duplicated().any()


@pytest.mark.parametrize("name", ROW_COUNTS)
def test_every_row_has_a_provenance_and_a_note_column(frames: Frames, name: str) -> None:
    frame = frames[name]
    assert frame["provenance"].str.len().gt(10).all()
    assert not frame["provenance"].str.contains("seed").any()
    assert frame["note"].notna().all()


@pytest.mark.parametrize("name", ROW_COUNTS)
def test_memory_columns_say_their_unit(frames: Frames, name: str) -> None:
    labels = {"memory_lines", "max_mem_is_own", "max_mem_carried_over"}
    for column, dtype in frames[name].dtypes.items():
        text = str(column)
        if re.search(r"peak|mem|host|bytes", text) and text not in labels:
            assert text.endswith(("_bytes", "_mb", "_gb", "_printed")), text
        if text.endswith("_bytes"):
            assert dtype == "Int64", text
        if text.endswith(("_mb", "_gb", "_seconds", "_ms")):
            assert dtype == "float64", text


@pytest.mark.parametrize("name", ROW_COUNTS)
def test_words_are_the_agreed_ones(frames: Frames, name: str) -> None:
    frame = frames[name]
    if "strategy" in frame:
        assert set(frame["strategy"]) <= {"original", "checkpoints", "lms", "ome"}
    if "status" in frame:
        assert set(frame["status"]) <= {"ok", "out_of_memory", "not_available"}


@pytest.mark.parametrize("name", ROW_COUNTS)
def test_readme_describes_every_file_and_column(frames: Frames, name: str) -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"| `{name}.csv` ({ROW_COUNTS[name]}) |" in readme
    for column in frames[name].columns:
        assert f"`{column}`" in readme, column


# Figures, against the sources.


def test_thesis_resnet(frames: Frames) -> None:
    frame = frames["thesis_resnet"]
    row = only(frame, layers=50, batch_size=32, strategy="original")
    assert (row["peak_mb"], row["host_gb"], row["step_seconds"]) == (3015.52, 4.11, 0.538)
    row = only(frame, layers=200, batch_size=32, strategy="lms")
    assert (row["peak_mb"], row["host_gb"], row["step_seconds"]) == (7559.23, 13.11, 3.087)
    row = only(frame, layers=152, batch_size=128, strategy="ome")
    assert (row["peak_mb"], row["host_gb"], row["step_seconds"]) == (5449.61, 8.61, 4.227)
    failed = frame[frame["status"] != "ok"]
    assert failed[["layers", "batch_size", "strategy"]].values.tolist() == [[200, 32, "original"]]
    assert failed[["peak_mb", "host_gb", "step_seconds"]].isna().all(axis=None)


def test_thesis_peaks_are_mb_not_gb(frames: Frames) -> None:
    """An 8 GB device: every peak lies between 500 and 8,000 MB; host memory is real GB."""
    for name in ("thesis_resnet", "thesis_resnet_lists", "thesis_inception_v4"):
        peaks = frames[name]["peak_mb"].dropna()
        assert peaks.between(500, 8000).all()
    assert frames["thesis_resnet"]["host_gb"].dropna().between(3, 14).all()
    assert frames["thesis_inception_v4"]["host_gb"].between(3, 8).all()


def test_thesis_max_batch(frames: Frames) -> None:
    frame = frames["thesis_max_batch"].set_index("strategy")
    assert dict(frame["max_batch"]) == {"original": 87, "lms": 111, "checkpoints": 212, "ome": 214}
    assert frame["peak_mb"].to_dict()["ome"] == 7017.42
    assert frame["step_seconds"].to_dict()["checkpoints"] == 2.831


def test_thesis_edits_and_tensors(frames: Frames) -> None:
    row = only(frames["thesis_log_lms_edits"], layers=200)
    assert (row["tensors_swapped"], row["ops_added"], row["edit_ms"]) == (738, 1672, 130430.437088)
    tensors = frames["thesis_log_ome_tensors"]
    assert tensors["action"].value_counts().to_dict() == {"keep": 10, "swap": 2}
    assert only(tensors, order=12)["tensor"] == "InceptionV4/InceptionV4/Mixed_6g/concat:0"


def test_gpipe_runs_are_the_full_grid(frames: Frames) -> None:
    runs = frames["gpipe_gpt2_runs"]
    grid = runs.groupby(["implementation", "strategy", "partitions"])["micro_batches"].apply(list)
    assert len(grid) == 12
    assert all(micro_batches == [1, 2, 4, 8, 16, 32, 64] for micro_batches in grid)
    assert set(runs["status"]) == {"ok"}
    row = only(runs, run="gpt2_K4_M64_check_torchgpipe")
    assert row["peak_activation_bytes"] == 1_458_309_120
    assert row["total_bytes"] == 2_535_456_768
    assert (row["forward_seconds"], row["backward_seconds"]) == (0.578, 0.607)
    assert row["samples_per_second"] == 53.994
    assert (row["parameters"], row["parameter_bytes"]) == (89_762_304, 1_077_147_648)


def test_gpipe_bytes_add_up(frames: Frames) -> None:
    runs = frames["gpipe_gpt2_runs"].set_index("run")
    devices = frames["gpipe_gpt2_devices"]
    assert (runs["parameter_bytes"] + runs["peak_activation_bytes"] == runs["total_bytes"]).all()
    assert devices.groupby("run")["max_bytes"].sum().to_dict() == runs["total_bytes"].to_dict()
    assert devices.groupby("run").size().to_dict() == runs["partitions"].to_dict()
    own = devices["implementation"] == "self"
    assert own.sum() == 98
    assert (devices["partition_bytes"].notna() == own).all()
    row = only(devices, run="gpt2_K4_M64_check_self", device="cuda:3")
    assert (row["partition_bytes"], row["max_bytes"]) == (106_954_752, 926_941_184)


def test_torchgpipe_tables(frames: Frames) -> None:
    unet = only(frames["torchgpipe_unet_memory"], experiment="pipeline-8")
    assert (unet["blocks"], unet["channels"], unet["parameters"]) == (48, 160, 15_820_000_000)
    assert unet["memory_printed"] == "154.1 GiB"
    amoebanet = frames["torchgpipe_amoebanetd_memory"]
    baseline = only(amoebanet, experiment="baseline", implementation="torchgpipe")
    assert baseline["status"] == "out_of_memory"
    assert (amoebanet["status"] == "out_of_memory").sum() == 1
    speed = frames["torchgpipe_speed"]
    row = only(speed, model="resnet", experiment="pipeline-4", implementation="torchgpipe")
    assert (row["samples_per_second"], row["speedup"]) == (265.958, 2.774)
    row = only(speed, model="amoebanetd", experiment="n=8, m=32", implementation="huang_et_al")
    assert (row["speedup"], row["micro_batches"]) == (3.48, 32)
    row = only(frames["torchgpipe_accuracy"], batch_size_printed="4K", implementation="torchgpipe")
    assert (row["top1_error_percent"], row["top1_error_plus_minus"]) == (22.13, 0.09)


def test_converted_memory_is_the_printed_memory(frames: Frames) -> None:
    megabytes = {"GiB": 2**30 / 1e6, "GB": 1e3}
    checked = 0
    for name in ("torchgpipe_unet_memory", "torchgpipe_amoebanetd_memory"):
        frame = frames[name]
        for column in frame.columns[frame.columns.str.endswith("_mb")]:
            pairs = zip(frame[column], frame[column.replace("_mb", "_printed")], strict=True)
            for value, printed in pairs:
                if printed == "Out of memory":
                    assert pd.isna(value)
                    continue
                number, unit = printed.split()
                assert value == pytest.approx(float(number) * megabytes[unit], abs=0.051)
                checked += 1
    assert checked == 5 + 19


def test_partition_reports(frames: Frames) -> None:
    stages = frames["gpt2_partition_stages"]
    row = only(stages, report="gtx_1080_ti_4_partitions", partition=3)
    assert (row["real_backward_ms"], row["output_mb"]) == (91.07087516784668, 218.435588)
    times = frames["gpt2_partition_imbalance"]
    whole = times[times["scope"] == "all"]
    assert len(whole) == 18
    for row in whole.to_dict("records"):
        stage = stages.loc[stages["report"] == row["report"], f"{row['times']}_{row['phase']}_ms"]
        assert stage.min() / stage.max() == pytest.approx(row["fastest_over_slowest"])
    assert frames["gpt2_partition_reports"]["cutting_edges"].tolist() == [6, 6, 2]


# The slips: kept as printed, and said.


def step_peaks(frames: Frames, log: str) -> Any:
    """Per run of a log: the lowest and highest step peak, the last max_mem, the mean time."""
    keys = ["strategy", "layers"]
    steps = frames["thesis_log_steps"].query("log == @log")
    memory = frames["thesis_log_memory"].query("log == @log")
    last = memory.groupby(keys, dropna=False)[["max_mem_mb", "mem_used_mb"]].last()
    cost = steps.groupby(keys, dropna=False)["memory_cost_mb"]
    return pd.DataFrame(
        {
            "lowest_mb": cost.min() + last["mem_used_mb"],
            "highest_mb": cost.max() + last["mem_used_mb"],
            "max_mem_mb": last["max_mem_mb"],
            "mean_seconds": steps.groupby(keys, dropna=False)["step_seconds"].mean(),
        }
    ).reset_index()


def test_every_run_of_the_logs_is_whole(frames: Frames) -> None:
    runs = frames["thesis_log_runs"]
    assert runs["memory_lines"].sum() == len(frames["thesis_log_memory"])
    assert runs["steps"].sum() == len(frames["thesis_log_steps"])
    failed = runs[runs["status"] == "out_of_memory"]
    assert failed[RUN_KEYS].values.tolist() == [["resnet", "original", 200]]
    assert failed["steps"].tolist() == [0]


def test_inception_times_are_swapped_and_said(frames: Frames) -> None:
    table = frames["thesis_inception_v4"].set_index("strategy")
    seconds = table["step_seconds"].to_dict()
    log = step_peaks(frames, "inception_v4").set_index("strategy")["mean_seconds"].to_dict()
    assert (seconds["original"], seconds["checkpoints"]) == (2.5983, 1.9747)
    assert log["original"] == pytest.approx(1.9747, abs=5e-4)
    assert log["checkpoints"] == pytest.approx(2.5983, abs=5e-4)
    for strategy in ("lms", "ome"):
        assert log[strategy] == pytest.approx(seconds[strategy], abs=5e-4)
    assert table["note"].str.contains("swapped against the log").to_dict() == {
        "original": True, "checkpoints": True, "lms": False, "ome": False,
    }  # fmt: skip


def test_max_mem_that_was_never_reset_is_said(frames: Frames) -> None:
    runs, memory = frames["thesis_log_runs"], frames["thesis_log_memory"]
    borrowed = runs[(~runs["max_mem_is_own"]).fillna(value=False)]
    assert borrowed[RUN_KEYS].values.tolist() == [
        ["resnet", "original", 18],
        ["resnet", "original", 34],
        *(["resnet", "lms", size] for size in (18, 34, 50, 101, 152, 200)),
        ["inception_v4", "lms", 50],
        ["inception_v4", "ome", 50],
    ]
    assert borrowed["note"].str.contains("not reset").all()
    inception = memory[(memory["log"] == "inception_v4") & memory["strategy"].isin(["lms", "ome"])]
    assert len(inception) == 22
    assert inception["max_mem_mb"].eq(4268.211456).all()
    assert inception["max_mem_carried_over"].all()
    table = frames["thesis_inception_v4"].set_index("strategy")
    assert table["note"].str.contains("not reset").to_dict() == {
        "original": False, "checkpoints": False, "lms": True, "ome": True,
    }  # fmt: skip


def test_table_and_log_agree_or_the_note_says_so(frames: Frames) -> None:
    """Peaks and times of the batch-32 tables, each against its run in the log."""
    table = frames["thesis_resnet"].query("batch_size == 32 and status == 'ok'")
    log = step_peaks(frames, "resnet")
    both = table.merge(log, on=["strategy", "layers"], validate="one_to_one")
    assert len(both) == 23
    # The mean of the nine steps, cut or rounded to a millisecond.
    assert both["step_seconds"].sub(both["mean_seconds"]).abs().lt(1e-3).all()
    agrees = both["peak_mb"].sub(both["max_mem_mb"]).abs().lt(0.01)
    assert (agrees == both["note"].eq("")).all()
    assert agrees.sum() == 6 + 2  # checkpoints; original 50 and 152
    lowest = both["note"].str.contains("lowest step")
    assert lowest.sum() == 6 + 4  # all of LMS; OME from 50 layers up
    assert both["peak_mb"].sub(both["lowest_mb"])[lowest].abs().lt(0.02).all()
    slip = only(both, strategy="original", layers=101)
    assert slip["peak_mb"] == 4671.11
    assert slip["max_mem_mb"] == 4671.013376
    assert "disagrees with the log" in slip["note"]
    assert "1432.658176" in only(both, strategy="ome", layers=50)["note"]


def test_table_and_list_agree_or_the_note_says_so(frames: Frames) -> None:
    keys = ["layers", "batch_size", "strategy"]
    both = frames["thesis_resnet"].merge(
        frames["thesis_resnet_lists"], on=keys, suffixes=("", "_list"), validate="one_to_one"
    )
    assert len(both) == 36
    both = both[both["status"] == "ok"]
    peak_differs = both["peak_mb"] != both["peak_mb_list"]
    assert both.loc[peak_differs, [*keys, "peak_mb", "peak_mb_list"]].values.tolist() == [
        [34, 128, "checkpoints", 2304.05, 2301.05]
    ]
    assert both.loc[peak_differs, "note"].str.contains("2301.05").all()
    assert (both["step_seconds"] == both["step_seconds_list"]).all()
    idle_gb = float(only(frames["thesis_other"], quantity="idle_host_gb")["value"])
    assert idle_gb == 3.29
    host_differs = (both["host_gb"] + idle_gb - both["host_with_idle_gb"]).abs() > 0.005
    assert both.loc[host_differs, keys].values.tolist() == [
        [101, 128, "checkpoints"],
        [18, 128, "ome"],
    ]
    assert both.loc[host_differs, "note"].str.contains("idle").all()
