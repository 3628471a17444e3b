"""Runs the trials of a sweep on a Ray cluster (extra [cluster]): one task per trial.

A task claims what its trial needs of a node and runs the trial in a child process, so that the
allocator's limit holds there as it does here. Its record travels back by value and is written by
this process alone: nodes share no folder. What is lost with a node is run again elsewhere, by this
process and not by Ray: it knows which trials have ended, and what it said of the lost ones.

Every node has the same versions of memtrade and TensorFlow installed as this machine, because the
versions are part of a trial's identity; a node that has others ends the sweep.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from memtrade.errors import MemtradeError, UnknownNameError, reason_of
from memtrade.measure import host
from memtrade.measure.children import signals_raise
from memtrade.measure.environment import child_environment
from memtrade.measure.flags import DeviceFlags
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import Record, make_record
from memtrade.measure.trial import run_child
from memtrade.sweep.grid import Trial
from memtrade.sweep.runner import Demand, End, NoRecord, Watch, need_of
from memtrade.units import megabytes

# How often a trial runs again whose node or process was lost under it.
RETRIES = 3

_CONNECT_SECONDS = 5.0  # for an address to accept a connection
_JOIN_SECONDS = 20.0  # for what accepts it to be a Ray cluster
_POLL_SECONDS = 5.0  # between looks at the nodes while no trial ends
_NODELESS_SECONDS = 60.0  # how long to wait for a node that could take a trial
_CANCEL_SECONDS = 10.0

# The least that Ray accepts; records are small, and the trials need the memory.
_OBJECT_STORE_BYTES = 80 << 20

_OMP = "OMP_NUM_THREADS"

# Ray cannot be interrupted while it looks for a cluster, and takes minutes: a child tries first.
_PROBE = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except ConnectionError as error:
    print(error)
    sys.exit(3)
"""
_NONE_RUNNING = 3


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a task returns.

    Attributes:
        node: Ray's id of the node that ran it.
        seconds: that the trial took.
        record: None if the input was bad.
        refused: then, why.
    """

    node: str
    seconds: float
    record: Record | None = None
    refused: str = ""


def resolve_on_cluster(flags: DeviceFlags) -> tuple[str, int]:
    """The device and the limit, which a file for a cluster says: nodes differ in what they have.

    Raises:
        MemtradeError: for what is not said or out of bounds.
    """
    if flags.device is None:
        raise MemtradeError('on a cluster, say device = "arena" or "gpu:0": nodes differ')
    if flags.device not in ("arena", "gpu:0"):  # Ray picks the GPU, and shows the trial only that
        raise UnknownNameError("device on a cluster", flags.device, ["arena", "gpu:0"])
    if flags.memory_limit is None:
        raise MemtradeError('on a cluster, say the memory limit, such as memory_limit = "7254MiB"')
    arena = DeviceFlags(device="arena", memory_limit=flags.memory_limit, timeout=flags.timeout)
    return flags.device, arena.resolve()[1]


def run_on_cluster(
    trials: Sequence[Trial], *, address: str, jobs: int, watch: Watch, command_line: str = ""
) -> None:
    """Runs the trials on the cluster at `address`, "auto" for the one that this machine is part of,
    or else for a new one of this machine alone.

    A node runs up to `jobs` trials at a time if it is the smallest, and larger ones as many more as
    they have cores and memory for. Trials that run out of tries, or that no node can take any more,
    end as "lost".

    Raises:
        MemtradeError: Ray is not installed, there is no cluster at the address, no node can take
            one of the trials, or a node has other versions.
    """
    with _joined(address, watch) as ray, signals_raise():
        sweep = _Sweep(ray, trials, jobs, watch, command_line)
        try:
            sweep.run()
        finally:
            sweep.cancel()


class _Sweep:
    """The trials that are on the cluster, by the reference of their task's result."""

    def __init__(
        self, ray: Any, trials: Sequence[Trial], jobs: int, watch: Watch, command_line: str
    ):
        self._ray, self._watch, self._command_line = ray, watch, command_line
        self._trials = trials
        self._nodes = self._look()
        cores = [int(node["CPU"]) for node in self._nodes.values() if node.get("CPU", 0) >= 1]
        # That a trial in the arena claims: the smallest node then runs `jobs` at a time.
        self._cpus = max(min(cores, default=1) // jobs, 1)
        self._running: dict[Any, Trial] = {}
        self._tries: Counter[str] = Counter()
        self._task = ray.remote(run_task)

    def run(self) -> None:
        for trial in self._trials:
            if not any(self._slots(node, trial) for node in self._nodes.values()):
                raise MemtradeError(self._too_large(trial))
        at_a_time = sum(self._slots(node, self._trials[0]) for node in self._nodes.values())
        self._watch.note(f"{len(self._nodes)} nodes, {at_a_time} trials at a time")
        for trial in self._trials:
            self._submit(trial)
        looked = time.monotonic()
        while self._running:
            done, _ = self._ray.wait(list(self._running), timeout=_POLL_SECONDS)
            for reference in done:
                self._take(reference)
            if done or self._can_go_on():
                looked = time.monotonic()
            elif time.monotonic() - looked > _NODELESS_SECONDS:
                self._give_up()

    def cancel(self) -> None:
        """Ends what still runs, with its children."""
        if not self._running:
            return
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        left = list(self._running)
        self._ray.wait(left, num_returns=len(left), timeout=_CANCEL_SECONDS)

    def _submit(self, trial: Trial) -> None:
        need = need_of(trial.spec)
        task = self._task.options(
            name=trial.label,
            num_cpus=self._cpus_of(need),
            num_gpus=need.gpus,
            memory=need.memory_bytes,
            max_retries=0,
            scheduling_strategy="SPREAD",
        )
        reference = task.remote(
            msgspec.json.encode(trial.spec),
            trial.timeout_seconds,
            host.describe_machine().versions,
            self._command_line,
            os.environ.get(_OMP),
        )
        self._running[reference] = trial

    def _take(self, reference: Any) -> None:
        """Takes what a task came to."""
        trial = self._running.pop(reference)
        try:
            reply = msgspec.json.decode(self._ray.get(reference), type=Reply)
        except self._ray.exceptions.RayTaskError as error:
            last_line = str(error).strip().splitlines()[-1]
            raise MemtradeError(f"a node could not run {trial.label}: {last_line}") from error
        except self._ray.exceptions.RayError as error:
            self._lost(trial, type(error).__name__)
            return
        self._watch.ended(trial, self._end(trial, reply), reply.seconds)

    def _end(self, trial: Trial, reply: Reply) -> End:
        if reply.record is None:
            return NoRecord(kind="refused", reason=reply.refused)
        if reply.node not in self._nodes:
            self._nodes |= self._look()
        slots = self._slots(self._nodes.get(reply.node, {}), trial)
        return msgspec.structs.replace(reply.record, jobs=max(min(slots, len(self._trials)), 1))

    def _lost(self, trial: Trial, why: str) -> None:
        self._tries[trial.id] += 1
        if (tries := self._tries[trial.id]) > RETRIES:
            reason = f"its node or process was lost in the last of {tries} tries ({why})"
            self._watch.ended(trial, NoRecord(kind="lost", reason=reason), 0.0)
            return
        self._watch.again(trial, f"its node or process was lost ({why})")
        self._submit(trial)

    def _can_go_on(self) -> bool:
        """Whether a node is left for some of the trials."""
        nodes, trials = self._look().values(), self._running.values()
        return any(self._slots(node, trial) for node in nodes for trial in trials)

    def _give_up(self) -> None:
        lost = list(self._running.values())
        self.cancel()
        self._running.clear()
        for trial in lost:
            reason = f"no node is left for it: {self._too_large(trial)}"
            self._watch.ended(trial, NoRecord(kind="lost", reason=reason), 0.0)

    def _look(self) -> dict[str, Mapping[str, float]]:
        """The resources of the nodes that are alive, by id."""
        return {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}

    def _cpus_of(self, need: Demand) -> int:
        """A step on a GPU leaves the cores to others; in the arena it computes on them."""
        return 1 if need.gpus else self._cpus

    def _slots(self, node: Mapping[str, float], trial: Trial) -> int:
        """How many such trials the node holds at a time."""
        need = need_of(trial.spec)
        shares = [
            node.get("CPU", 0) // self._cpus_of(need),
            node.get("memory", 0) // need.memory_bytes,
            *([node.get("GPU", 0)] if need.gpus else []),
        ]
        return int(min(shares))

    def _too_large(self, trial: Trial) -> str:
        need = need_of(trial.spec)
        have = max((node.get("memory", 0) for node in self._look().values()), default=0)
        gpu = " and a GPU" if need.gpus else ""
        return (
            f"{trial.label} needs a node with {self._cpus_of(need)} cores, "
            f"{megabytes(need.memory_bytes)} MB{gpu}; the largest has {megabytes(int(have))} MB: "
            "lower the memory limit or join a larger node"
        )


def run_task(
    encoded_spec: bytes,
    timeout_seconds: float,
    versions: tuple[str, str | None],
    command_line: str,
    omp_num_threads: str | None,
) -> bytes:
    """Runs on a node: the trial in a child process, and a `Reply` with its record.

    Args:
        versions: of memtrade and TensorFlow, which every node must have.

    Raises:
        RuntimeError: the node has other versions than the process that asks.
    """
    import ray

    spec = msgspec.json.decode(encoded_spec, type=TrialSpec)
    found = host.describe_machine().versions
    if found != versions:
        raise RuntimeError(
            f"it has memtrade {found[0]} and TensorFlow {found[1]}, the sweep has {versions[0]} "
            f"and {versions[1]}: install the same versions on every node"
        )
    node = ray.get_runtime_context().get_node_id()
    # Ray limits OpenMP to the cores that a task claims. A trial sees what it sees in a local sweep.
    base = {name: value for name, value in os.environ.items() if name != _OMP}
    if omp_num_threads is not None:
        base[_OMP] = omp_num_threads
    began = time.monotonic()
    try:
        environment = child_environment(spec, base)
        outcome = run_child(spec, timeout_seconds=timeout_seconds, environment=environment)
        said: Any = {"record": make_record(spec, outcome, command=command_line)}
    except MemtradeError as error:
        said = {"refused": str(error)}
    return msgspec.json.encode(Reply(node=node, seconds=time.monotonic() - began, **said))


@contextlib.contextmanager
def _joined(address: str, watch: Watch) -> Iterator[Any]:
    """Ray, connected to the cluster while the context lasts."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a new cluster reports to nobody
    try:
        import ray
    except ImportError:
        raise MemtradeError(
            "--cluster needs Ray, which is not installed: pip install 'memtrade[cluster]'"
        ) from None
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if _runs(address):
        ray.init(address=address, **quiet)
    else:
        watch.note("no Ray cluster runs here: one of this machine alone is started for the sweep")
        ray.init(
            address="local",
            num_cpus=host.describe_machine().cores,
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            **quiet,
        )
    try:
        yield ray
    finally:
        ray.shutdown()


def check_answers(address: str) -> None:
    """Raises MemtradeError unless something accepts connections at HOST:PORT, or it is "auto"."""
    if address == "auto":
        return
    name, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and name and port.isdigit() and int(port) < 1 << 16):
        raise MemtradeError(f"--cluster takes auto, HOST:PORT or ray://HOST:PORT, not {address!r}")
    try:
        socket.create_connection((name.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise MemtradeError(
            f"there is no Ray cluster at {address}: {reason_of(error)}: start one there by "
            "`ray start --head`, or say --cluster auto"
        ) from error


def _runs(address: str) -> bool:
    """Whether a cluster can be joined; False only if "auto" finds none.

    Raises:
        MemtradeError: there is one that cannot be joined.
    """
    command = [sys.executable, "-c", _PROBE, address]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=_JOIN_SECONDS)
    except subprocess.TimeoutExpired:
        raise MemtradeError(
            f"what answers at {address} is no Ray cluster that lets us in within "
            f"{_JOIN_SECONDS:g} s: look at `ray status`; a dead one goes by `ray stop`"
        ) from None
    if tried.returncode == 0:
        return True
    if tried.returncode == _NONE_RUNNING and address == "auto":
        return False
    lines = (tried.stdout + tried.stderr).strip().splitlines()
    raise MemtradeError(f"cannot join the Ray cluster at {address}: {lines[-1] if lines else '?'}")
