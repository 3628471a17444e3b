"""Sweeps on a real Ray cluster of this machine: two nodes, and what goes wrong.

The first has a real trial; the others are about where trials run and how they end, and have the
fake worker, which lasts as long as a test says.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from ray.cluster_utils import Cluster

import memtrade
from memtrade.commands.sweep import sweep
from memtrade.errors import MemtradeError
from memtrade.measure import host
from memtrade.measure.records import load_records
from memtrade.sweep import cluster as on_cluster
from tests.sweep.conftest import Fake, Write
from tests.sweep.workers import use_worker_on_nodes

ROOT = Path(memtrade.__file__).resolve().parents[1]
NODE: dict[str, Any] = {"num_cpus": 1, "memory": 2 << 30, "object_store_memory": 80 << 20}
# That a node is dead is known after some seconds, by default after up to twenty.
NOTICED_SOON = {
    "health_check_initial_delay_ms": 250,
    "health_check_period_ms": 250,
    "health_check_failure_threshold": 3,
}
SMALL = """
    device = "arena"
    memory_limit = "512MiB"
    image_size = 32
    num_classes = 10
    batch_size = 2
    steps = 1
    warmup = 0
    [[grid]]
    model = { name = "resnet", layers = 18 }
    strategy = ["original", "checkpoints", "lms", "ome"]
"""
ONE = SMALL.replace('["original", "checkpoints", "lms", "ome"]', '"original"')
NAMES = ["original", "checkpoints", "lms", "ome"]


def test_auto_starts_a_cluster_of_this_machine_where_there_is_none(
    write: Write, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First, while the others' cluster does not run yet."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert sweep(write(ONE), cluster="auto") == 0
    assert "one of this machine alone is started" in capfd.readouterr().err
    assert [record.status for record in load_records("runs")] == ["ok"]
    wait_for(lambda: not any(map(is_trial, descendants(os.getpid()))))


@pytest.fixture(scope="module")
def head() -> Iterator[Cluster]:
    """A cluster of one node, whose processes find this memtrade."""
    with pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        patch.setenv("PYTHONPATH", path)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head_node = NODE | {"include_dashboard": False, "_system_config": NOTICED_SOON}
        head_node |= {"no_monitor": True, "include_log_monitor": False}  # nobody reads them
        cluster = Cluster(initialize_head=True, head_node_args=head_node)
        yield cluster
        cluster.shutdown()


@pytest.fixture
def fake_on_nodes(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """The fake worker in place of the real one, on the nodes, too."""
    use_worker_on_nodes(fake.script, monkeypatch.setattr)
    return fake


@pytest.fixture
def surely_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test's sweep has a process try whether it can join the cluster, which takes long."""
    monkeypatch.setattr(on_cluster, "_runs", lambda address: True)


def trials_of(node: Any, fake: Fake) -> list[psutil.Process]:
    """The processes of the fake worker that run on a node: below its raylet."""
    (raylet,) = node.all_processes["raylet"]
    return [
        each for each in descendants(raylet.process.pid) if words_of(each) == [str(fake.script)]
    ]


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()[1:]
    except psutil.Error:
        return []


def is_trial(process: psutil.Process) -> bool:
    return words_of(process) == ["-m", "memtrade.measure"]


def wait_for(condition: Callable[[], object], *, seconds: float = 100.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def test_a_node_that_is_killed_costs_nothing_but_the_trial_that_it_ran(
    head: Cluster, write: Write, fake_on_nodes: Fake, capfd: pytest.CaptureFixture[str]
) -> None:
    fake = fake_on_nodes
    fake.tricks(dict.fromkeys(NAMES, "wait"))
    path = write(SMALL)
    victim = head.add_node(**NODE)
    lost: list[psutil.Process] = []

    def kill() -> None:
        wait_for(lambda: len(fake.started()) == 2)
        lost.extend(trials_of(victim, fake))
        head.remove_node(victim, allow_graceful=False)
        wait_for(lambda: not any(map(words_of, lost)))  # or it might end in time
        fake.go()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    status = sweep(path, cluster=head.address, command_line="memtrade sweep sweep.toml")
    killer.join()
    out, err = capfd.readouterr()
    assert status == 0, err
    # Nothing is lost: every trial has its record, written here.
    records = load_records("runs")
    assert sorted(record.spec.strategy for record in records) == sorted(NAMES)
    assert {(x.status, x.command, x.jobs) for x in records} == {
        ("ok", "memtrade sweep sweep.toml", 1)
    }
    assert "2 nodes, 2 trials at a time" in err
    assert "4 trials: 4 ran" in out
    # Nothing ran twice but what was running on the node when it died.
    assert len(lost) == 1
    assert err.count("it will run again") == 1
    [twice] = [name for name, pid, _ in fake.notes("start") if pid == lost[0].pid]
    assert sorted(fake.started()) == sorted([*NAMES, twice])
    # Nothing stays behind, not even on the dead node.
    assert not any(map(words_of, lost))
    # And nothing is left to do.
    assert sweep(path, cluster=head.address) == 0
    assert "4 trials: 4 skipped" in capfd.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_stopped_leaves_nothing_running_on_the_cluster(
    head: Cluster, write: Write, fake_on_nodes: Fake, number: signal.Signals
) -> None:
    fake = fake_on_nodes
    fake.tricks({"original": "hang"})
    tokens = [str(write(ONE)), "--cluster", str(head.address)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.sweep.drive", str(fake.script), *tokens],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: trials_of(head.head_node, fake))
    process.send_signal(number)
    _, err = process.communicate(timeout=100)
    wait_for(lambda: not trials_of(head.head_node, fake))
    assert not list(Path("runs").glob("*"))
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "stopped; 0 of 1 trials had finished" in err


@pytest.mark.usefixtures("surely_there")
@pytest.mark.parametrize(
    ("retries", "reason"),
    [
        (0, "lost: its node or process was lost in the last of 1 tries"),
        (3, "lost: no node is left for it: resnet-18 batch 2 image_size=32 num_classes=10"),
    ],
)
def test_a_trial_that_no_node_is_left_for_is_lost_and_said(
    head: Cluster,
    write: Write,
    fake_on_nodes: Fake,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    retries: int,
    reason: str,
) -> None:
    fake_on_nodes.tricks({"original": "hang"})
    monkeypatch.setattr(on_cluster, "RETRIES", retries)
    monkeypatch.setattr(on_cluster, "_POLL_SECONDS", 0.5)
    # Ray takes a while to say that a try was lost, on a busy machine more than a second.
    monkeypatch.setattr(on_cluster, "_NODELESS_SECONDS", 1.0 if retries else 60.0)
    monkeypatch.setattr(on_cluster, "_CANCEL_SECONDS", 1.0)
    roomy: dict[str, Any] = NODE | {"memory": 4 << 30}
    large = head.add_node(**roomy)

    def kill() -> None:
        wait_for(lambda: trials_of(large, fake_on_nodes))
        head.remove_node(large, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert sweep(write(ONE.replace("512MiB", "2GiB")), cluster=head.address) == 1
    killer.join()
    assert reason in capfd.readouterr().out
    assert not list(Path("runs").glob("*"))


@pytest.mark.usefixtures("surely_there")
def test_a_trial_that_no_node_can_take_is_an_error(head: Cluster, write: Write) -> None:
    path = write(ONE.replace("512MiB", "2GiB"))
    with pytest.raises(MemtradeError, match=r"needs a node with 1 cores, 3,221\.2 MB; the largest"):
        sweep(path, cluster=head.address)


@pytest.mark.usefixtures("surely_there")
def test_a_node_with_other_versions_is_an_error(
    head: Cluster, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(ONE)
    here = msgspec.structs.replace(
        host.describe_machine(), memtrade_version="9.9", tensorflow_version="2.99"
    )
    monkeypatch.setattr(on_cluster.host, "describe_machine", lambda: here)
    with pytest.raises(MemtradeError, match=r"the sweep has 9\.9 and 2\.99: install the same"):
        sweep(path, cluster=head.address)
    assert not list(Path("runs").glob("*"))


# Where there is no cluster.


@pytest.fixture
def port() -> Iterator[int]:
    """A port where something listens that is no cluster."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_nothing_at_the_address_is_said_at_once(write: Write, port: int) -> None:
    path = write(ONE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(MemtradeError, match=f"no Ray cluster at 127.0.0.1:{free}: Connection re"):
        sweep(path, cluster=f"127.0.0.1:{free}")
    assert time.monotonic() - began < 10


def test_something_else_at_the_address(
    write: Write, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_cluster, "_JOIN_SECONDS", 3.0)
    with pytest.raises(MemtradeError, match=f"what answers at 127.0.0.1:{port} is no Ray cluster"):
        sweep(write(ONE), cluster=f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["", "foo", "host:", ":6379", "host:99999", "ray://host"])
def test_what_is_no_address(write: Write, address: str) -> None:
    with pytest.raises(MemtradeError, match="--cluster takes auto, HOST:PORT or ray://HOST:PORT"):
        sweep(write(ONE), cluster=address)
    assert not Path("runs").exists()


def test_ray_is_asked_for_only_where_it_is_needed(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MemtradeError, match=r"not installed: pip install 'memtrade\[cluster\]'"):
        sweep(write(ONE), cluster="auto")
    assert sweep(write(ONE), dry_run=True) == 0
