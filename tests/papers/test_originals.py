"""The original tools' trials, as far as they go without TensorFlow 1."""

from __future__ import annotations

import ast
import importlib.util
import re
import socket
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from memtrade.measure.protocol import Outcome
from memtrade.measure.records import Record, load_record, save_record
from memtrade.papers.originals import CHILD, PROOF, Tools, main, make_spec, measure, record_of
from memtrade.papers.thesis_nets import TOOLS
from memtrade.papers.thesis_tools import is_thesis_net, rule_of, tools_sheets
from memtrade.pipeline.measure import loopback

MakeRecord = Callable[..., Record]
VERSIONS = ("3.7.16", "1.15.5")


def script(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def checkouts(tmp_path: Path) -> dict[str, Path]:
    for name, proof in PROOF.items():
        (tmp_path / name / proof).parent.mkdir(parents=True)
        (tmp_path / name / proof).touch()
    return {name: tmp_path / name for name in PROOF}


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("", "there is no .*nowhere, name one by --python37"),
        ('echo \'["3.9.1", "1.15.5"]\'', "says Python 3.9.1, TensorFlow 1.15.5$"),
        ('echo \'["3.7.16", "2.1.0"]\'', "says Python 3.7.16, TensorFlow 2.1.0$"),
        ("echo ' x' >&2; echo 'ImportError: no tensorflow' >&2; exit 1", "says ImportError: no"),
        ("echo 'pyenv: not found' >&2; exit 127", "says pyenv: not found$"),
    ],
)
def test_another_python_is_refused_in_one_line(
    checkouts: dict[str, Path], tmp_path: Path, capfd: Any, says: str, why: str
):
    python = script(tmp_path / "python", says) if says else str(tmp_path / "nowhere")
    named = [f"--{name}={folder}" for name, folder in checkouts.items()]
    assert main([str(tmp_path / "results"), *named, f"--python37={python}"]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert re.search(why, line)
    assert "protobuf<3.21" in line


@pytest.mark.parametrize("missing", sorted(PROOF))
def test_a_folder_that_is_no_checkout_is_refused(
    checkouts: dict[str, Path], missing: str, capfd: Any
):
    (checkouts[missing] / PROOF[missing]).unlink()
    named = [f"--{name}={folder}" for name, folder in checkouts.items()]
    assert main(["results", *named]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert f"--{missing} names a checkout with {PROOF[missing]}" in line


# Says what the child says, of a net that it finds drawn.
FAKE = """
import json, os, sys
spec = json.load(sys.stdin)
assert b"head/logits/kernel/read" in open(sys.argv[sys.argv.index("--graph") + 1], "rb").read()
assert os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] == "7254"
def say(kind, **said): print(json.dumps(dict(said, type=kind)), flush=True)
say("ready", runtime=dict(tensorflow_version="1.15.5", device="CPU:0", onednn=False,
    limit_bytes=spec["memory_limit_bytes"], intra_op_threads=2, inter_op_threads=1))
say("planned", summary=dict(kept=0, recomputed=5, swapped=1, kept_bytes=0, recomputed_bytes=9,
    swapped_bytes=8, clones=5, actions=0, ops_added=7,
    checkpoints=[["a:0", [2], "float32", "swap"]]))
say("done", measured=dict(peak_bytes=500_000_000, peak_bytes_by_step=[500_000_000],
    persistent_bytes=9, memory_cost_bytes=9, host_bytes=9, step_seconds=[3.0], warmup_seconds=[],
    median_seconds=3.0, fastest_seconds=3.0, slowest_seconds=3.0, trace_seconds=1.0,
    plan_seconds=0.0, rewrite_seconds=2.0, losses=[1.0], in_use_bytes=[9]))
"""


def test_a_childs_answer_is_a_record_beside_ours(
    checkouts: dict[str, Path], tmp_path: Path, make_record: MakeRecord
):
    (tmp_path / "fake.py").write_text(textwrap.dedent(FAKE))
    python = script(
        tmp_path / "python", f'shift; exec "{sys.executable}" "{tmp_path}/fake.py" "$@"'
    )
    spec = make_spec("tf1-ome", 18, 2)
    outcome = measure(spec, Tools(python=python, **checkouts), timeout_seconds=60)
    assert (outcome.status, outcome.reason) == ("ok", "")
    record = record_of(spec, outcome, VERSIONS, command="python -m memtrade.papers.originals")
    assert (record.machine.python_version, record.machine.tensorflow_version) == VERSIONS
    assert record.measured
    assert load_record(save_record(record, tmp_path)) == record
    assert record.id != record_of(spec, outcome, ("3.7.16", "1.15.4"), command="").id
    assert is_thesis_net(record)
    assert rule_of(record, 18) == ""  # none of our own rules

    ours = make_record("original", spec={**_fields(spec), "strategy_options": {}})
    [sheet] = tools_sheets([ours, record], predicted=tmp_path / "none.csv")
    peaks = {(s, row[0]): row[1] for s, row in zip(sheet.sections, sheet.rows, strict=True)}
    originals = "the originals, TensorFlow 1, here, batch 2"
    assert peaks["ome", originals] == "500.0"
    assert peaks["lms", originals] == "-"
    assert peaks["ome", "the thesis' way, here, batch 2"] == "-"
    assert any(note.startswith("tf1-ome, here: 7 ops added, 1 tensors") for note in sheet.notes)
    assert "the losses of the 1 trials under TensorFlow 1 are the same to the bit" in sheet.notes
    another = msgspec.structs.replace(
        record, measured=msgspec.structs.replace(record.measured, losses=(2.0,))
    )
    [sheet] = tools_sheets([record, another], predicted=tmp_path / "none.csv")
    assert any(note.endswith("TensorFlow 1 are not the same") for note in sheet.notes)
    [without] = tools_sheets([ours], predicted=tmp_path / "none.csv")
    assert not any("originals" in row[0] for row in without.rows)


def _fields(spec: Any) -> dict[str, Any]:
    return {
        name: getattr(spec, name)
        for name in ("model_options", "optimizer", "learning_rate", "order", "memory_limit_bytes")
    }


def test_the_child_is_one_file_for_python_3_7():
    tree = ast.parse(CHILD.read_text("utf-8"), feature_version=(3, 7))
    imported = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import)
                for each in node.names}  # fmt: skip
    assert "tensorflow" in imported
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))
    assert not any(name.startswith("memtrade") for name in imported)


def test_the_childs_servers_are_confined_before_they_answer(monkeypatch: pytest.MonkeyPatch):
    tree = ast.parse(Path(loopback.__file__).read_text("utf-8"), feature_version=(3, 7))
    [future] = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)} - {
        "collections.abc", "pathlib"
    }  # fmt: skip
    assert future == "__future__"
    loaded = importlib.util.spec_from_file_location("originals_child", CHILD)
    assert loaded
    assert loaded.loader
    child = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(child)
    assert Path(child.LOOPBACK).resolve() == Path(loopback.__file__).resolve()
    held: list[Any] = []

    class Server:
        def __init__(self, cluster: Any, *, job_name: str, config: Any, start: bool):
            assert not start
            held.append(socket.create_server(("", 0)))

        def start(self):
            bound = held[0].getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
            held.append(bound.rstrip(b"\0"))

    child.start_server(SimpleNamespace(train=SimpleNamespace(Server=Server)), {}, "arena")
    held[0].close()
    assert held[1] == b"lo"
    monkeypatch.delattr(socket, "SO_BINDTODEVICE")
    with pytest.raises(OSError, match=r"Linux can from 5\.7 on"):
        child.start_server(SimpleNamespace(train=SimpleNamespace(Server=Server)), {}, "arena")
    held[2].close()


def test_what_no_child_can_run_is_refused(checkouts: dict[str, Path], capfd: Any):
    named = [f"--{name}={folder}" for name, folder in checkouts.items()]
    assert main(["results", *named, "--strategy=tf1-openai,best"]) == 2
    assert f"best is none of {', '.join(TOOLS)}" in capfd.readouterr().err


def test_a_trial_that_ended_early_is_a_record_too():
    spec = make_spec("tf1-tflms", None, 8)
    assert spec.model == "inception-v4"
    record = record_of(spec, Outcome(status="out_of_memory", reason="OOM"), VERSIONS, command="")
    assert (record.status, record.measured) == ("out_of_memory", None)
    assert not any("ONEDNN" in setting for setting in record.machine.settings)
