"""A pipelined trial as the parent runs it, and its record: a process for each stage and one that
drives them.

The parent imports no TensorFlow. It starts the stages (or, with a cluster, finds them running),
hands the driver its orders, and watches all of them. Whatever ends one ends the trial: a stage that
dies or runs out of memory is a result that names it. However the trial ends, no process of it stays
behind (`memtrade.measure.children`).
"""

import contextlib
import math
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from memtrade.errors import MemtradeError, reason_of
from memtrade.measure import host
from memtrade.measure.children import Child, children, start, supervise
from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import Runtime, Status, TrialSpec
from memtrade.measure.records import PIPELINE_PREFIX, AnyRecord, record_id
from memtrade.measure.trial import WORKER, Conversation
from memtrade.pipeline.design.partition import Partition
from memtrade.pipeline.design.predict import PipelinePrediction
from memtrade.pipeline.design.schedule import Schedule
from memtrade.pipeline.measure.protocol import (
    DriverSpec,
    Lost,
    PipelineEvent,
    PipelineFinished,
    PipelineMeasured,
    PipelineOutcome,
    PipelineTrial,
    Serving,
    StageSpec,
)
from memtrade.plan import Action

# Made before there are threads, as in `memtrade.measure.trial`.
_EVENTS = msgspec.json.Decoder(PipelineEvent)

_REACH_SECONDS = 4.0  # for a server to accept a connection; two addresses may be out of reach
_LOOK_SECONDS = 5.0  # from one look at the servers of a cluster to the next
_GRACE_SECONDS = 2.0  # for the process to be seen that made the driver fail


def run_pipeline(
    trial: PipelineTrial,
    partition: Partition,
    schedule: Schedule,
    *,
    plans: Sequence[Sequence[Action]] = (),
    timeout_seconds: float | None = None,
    on_event: Callable[[PipelineEvent], None] = lambda event: None,
    on_log: Callable[[str], None] = lambda line: None,
) -> PipelineOutcome:
    """Runs and measures the trial.

    Args:
        partition: of the step's graph on one micro-batch.
        timeout_seconds: for the trial, or for each of its stages, one at a time.
        plans: for each stage, the actions of a plan of its graph; none keep every activation.
        on_event, on_log: called with each event of a child, and each line of their logs. Whatever
            they raise ends the trial, and is raised here.

    Raises MemtradeError where an address of the cluster cannot be reached, or a child says that the
    input is bad.
    """
    check_each_has_one(trial.cluster, trial.partitions)
    check_reachable(trial.cluster)
    order = DriverSpec(
        trial=trial,
        partition=partition,
        schedule=schedule,
        plans=tuple(map(tuple, plans)),
        addresses=trial.cluster or _free_addresses(trial.partitions),
    )
    if not trial.one_at_a_time:
        return _drive(order, timeout_seconds, on_event, on_log)
    outcomes = []
    for i in range(trial.partitions):
        alone = msgspec.structs.replace(order, alone=i)
        outcomes.append(_drive(alone, timeout_seconds, on_event, on_log))
        if outcomes[-1].measured is None:
            return outcomes[-1]
    return msgspec.structs.replace(outcomes[-1], measured=_together(outcomes, trial))


def _together(outcomes: Sequence[PipelineOutcome], trial: PipelineTrial) -> PipelineMeasured:
    """Of stages that ran one after the other."""
    each = [outcome.measured for outcome in outcomes if outcome.measured is not None]
    seconds = [math.fsum(own) for own in zip(*(one.step_seconds for one in each), strict=True)]
    stages = tuple(stage for one in each for stage in one.stages)
    median = statistics.median(seconds)
    busy = math.fsum(stage.busy_seconds for stage in stages)
    return msgspec.structs.replace(
        each[-1],
        stages=stages,
        step_seconds=tuple(seconds),
        median_seconds=median,
        forward_seconds=math.fsum(one.forward_seconds for one in each),
        backward_seconds=math.fsum(one.backward_seconds for one in each),
        bubble=1 - busy / (len(stages) * median),
        samples_per_second=trial.batch_size / median,
        build_seconds=math.fsum(one.build_seconds for one in each),
    )


def _drive(
    order: DriverSpec,
    timeout_seconds: float | None,
    on_event: Callable[[PipelineEvent], None],
    on_log: Callable[[str], None],
) -> PipelineOutcome:
    """Starts the stages that are this machine's, or the one alone, and what drives them."""
    trial = order.trial
    kills_before = host.oom_kills()
    deadline = time.monotonic() + (timeout_seconds or math.inf)
    with children() as started:
        here = range(0 if trial.cluster else trial.partitions)
        for i in here if order.alone is None else (order.alone,):
            stage = StageSpec(
                stage=i,
                device=f"gpu:{i}" if trial.device == "gpu" else "arena",
                addresses=order.addresses,
                local=True,
                memory_limit_bytes=trial.memory_limit_bytes,
            )
            started.append(_start_stage(stage))
        driver = _start("drive", order, _driver_environment(trial), "the driver", None)
        started.append(driver)
        watch = _Watch(_EVENTS, on_event, on_log, started, driver, cluster=trial.cluster)
        in_time = supervise(started, watch, deadline=deadline)
        oom_killed = host.oom_kills() > kills_before
        return watch.outcome(
            timeout_seconds=None if in_time else timeout_seconds, oom_killed=oom_killed
        )


def serve_stage(
    stage: int,
    addresses: Sequence[str],
    *,
    device: str,
    memory_limit_bytes: int,
    on_event: Callable[[PipelineEvent], None] = lambda event: None,
    on_log: Callable[[str], None] = lambda line: None,
) -> PipelineOutcome:
    """Serves one stage for pipelines that are driven from elsewhere, until it is stopped.

    `device` is "arena" or "gpu:N".

    Raises MemtradeError where an address, the limit or the number of the stage is bad.
    """
    for address in addresses:
        _host_and_port(address)
    if not 0 <= stage < len(addresses):
        raise MemtradeError(
            f"there is no stage {stage + 1} among {len(addresses)} addresses: "
            "number the stages from 1, in the order of --cluster"
        )
    order = StageSpec(
        stage=stage,
        device=device,
        addresses=tuple(addresses),
        memory_limit_bytes=memory_limit_bytes,
    )
    with children() as started:
        child = _start_stage(order)
        started.append(child)
        watch = _Watch(_EVENTS, on_event, on_log, started, child)
        supervise(started, watch, deadline=math.inf)
        return watch.outcome(timeout_seconds=None, oom_killed=False)


def check_each_has_one(addresses: Sequence[str], partitions: int) -> None:
    """Raises MemtradeError where there is a cluster, with more addresses or fewer."""
    if addresses and len(addresses) != partitions:
        raise MemtradeError(
            f"a cluster needs one address per partition: {len(addresses)} are given "
            f"for {partitions} partitions"
        )


def check_reachable(addresses: Sequence[str]) -> None:
    """Raises MemtradeError that names the first address where nobody answers."""
    for address in addresses:
        if error := _unreachable(address):
            raise MemtradeError(
                f"no server answers at {address} ({reason_of(error)}): start it there by "
                "`memtrade pipeline serve`"
            )


def _unreachable(address: str) -> OSError | None:
    """Why no connection to the address comes about, if none does."""
    try:
        socket.create_connection(_host_and_port(address), timeout=_REACH_SECONDS).close()
    except OSError as error:
        return error
    return None


def _host_and_port(address: str) -> tuple[str, int]:
    name, colon, port = address.rpartition(":")
    if not (colon and name and port.isdigit() and 0 < int(port) < 1 << 16):
        raise MemtradeError(f"an address of a cluster is host:port, not {address!r}")
    return name, int(port)


def _free_addresses(count: int) -> tuple[str, ...]:
    """Addresses of this machine that are free now: all held at once, so that they differ."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            each = held.enter_context(socket.socket())
            each.bind(("127.0.0.1", 0))
            ports.append(each.getsockname()[1])
    return tuple(f"127.0.0.1:{port}" for port in ports)


def _start_stage(order: StageSpec) -> Child:
    environment = child_environment(
        TrialSpec(device=order.device, memory_limit_bytes=order.memory_limit_bytes)
    )
    return _start("stage", order, environment, f"stage {order.stage + 1}", order.stage)


def _driver_environment(trial: PipelineTrial) -> dict[str, str]:
    """The driver computes nothing but a reference, and under no limit."""
    spec = TrialSpec(device="arena", memory_limit_bytes=trial.memory_limit_bytes)
    environment = child_environment(spec)
    for name in ("TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB"):
        del environment[name]
    return environment


def _start(
    role: str, order: msgspec.Struct, environment: dict[str, str], name: str, stage: int | None
) -> Child:
    # A proxy for the web would be asked for the way to this machine's own ports.
    environment |= {"no_grpc_proxy": "*", "no_proxy": "*"}
    return start([*WORKER, role], msgspec.json.encode(order), environment, name=name, stage=stage)


@dataclass
class _Watch(Conversation):
    """Until the child that leads has said its last word or any child has ended."""

    children: Sequence[Child]
    leader: Child
    runtime: Runtime | None = None
    lost: Lost | None = None
    lost_at: float = math.inf
    cluster: Sequence[str] = ()
    looked_at: float = field(default_factory=time.monotonic)

    def has_enough(self, *, quiet: bool) -> bool:
        if self.end or self.noise:
            return True
        if self.lost is None and quiet:
            self._look_at_cluster()
        if self.lost is None:
            return quiet and self._ended() is not None
        # If a stage died of it, its end tells more than the lost connection.
        late = time.monotonic() >= self.lost_at + _GRACE_SECONDS
        return late or self.lost.status == "out_of_memory" or self._ended() is not None

    def _look_at_cluster(self) -> None:
        """For a server that has ended before its session began, TensorFlow waits without end."""
        if time.monotonic() < self.looked_at + _LOOK_SECONDS:
            return
        for stage, address in enumerate(self.cluster):
            if isinstance(error := _unreachable(address), ConnectionRefusedError):
                told = f"no server answers at {address} any more ({reason_of(error)})"
                self.note(Lost("crashed", told, stage))
                break
        self.looked_at = time.monotonic()

    def outcome(self, *, timeout_seconds: float | None, oom_killed: bool) -> PipelineOutcome:
        """Raises MemtradeError on bad input."""
        ended, stage = self._ended(), None
        if self.lost and not (self.end or self.noise or ended):
            status, reason, stage = self.lost.status, self.lost.reason, self.lost.stage
            reason = reason if stage is None else f"stage {stage + 1}: {reason}"
        else:
            status, reason = self.verdict(
                ended, timeout_seconds=timeout_seconds, oom_killed=oom_killed
            )
            if ended and not (self.end or self.noise):
                stage, reason = ended.stage, f"{ended.name}: {reason}"
        measured = getattr(self.end, "measured", None)
        return PipelineOutcome(
            status=status, reason=reason, stage=stage, measured=measured, runtime=self.runtime
        )

    def _ended(self) -> Child | None:
        """A child that has ended, which none should before its time: a stage rather than the
        driver, whose end may have followed from it."""
        ended = [child for child in self.children if child.has_ended]
        if self.lost:
            ended = [child for child in ended if child is not self.leader]
        return min(ended, key=lambda child: child is self.leader, default=None)

    def take_log(self, child: Child, text: str) -> None:
        self.on_log(f"{child.name}: {text}")

    def note(self, event: PipelineEvent) -> None:
        match event:
            case Serving(runtime=runtime):
                self.runtime = runtime
            case PipelineFinished():
                self.end = event
            case Lost():
                self.lost, self.lost_at = event, time.monotonic()


class PipelineRecord(AnyRecord, frozen=True, kw_only=True):
    """One finished pipelined trial, whichever way it ended.

    Attributes:
        stage: that failed, from 0, where one did.
        predicted: what the simulator said of it before it ran.
    """

    prefix: ClassVar[str] = PIPELINE_PREFIX

    trial: PipelineTrial
    status: Status
    reason: str = ""
    stage: int | None = None
    measured: PipelineMeasured | None = None
    predicted: PipelinePrediction
    runtime: Runtime | None = None

    @property
    def words(self) -> tuple[str, ...]:
        trial = self.trial
        sizes = (f"b{trial.batch_size}", f"k{trial.partitions}", f"m{trial.micro_batches}")
        return self.model, *sizes, trial.schedule, trial.checkpoint

    @property
    def peak_errors(self) -> tuple[float, ...]:
        """For each stage, the predicted peak's error as a share of the measured one."""
        if self.measured is None:
            return ()
        pairs = zip(self.predicted.stages, self.measured.stages, strict=True)
        return tuple(said.peak_bytes / seen.peak_bytes - 1 for said, seen in pairs)


def pipeline_record_id(trial: PipelineTrial) -> str:
    """Of the record that the trial would have on this machine."""
    return record_id((trial,), host.describe_machine())


def make_pipeline_record(
    trial: PipelineTrial, outcome: PipelineOutcome, predicted: PipelinePrediction, *, command: str
) -> PipelineRecord:
    """The record of a trial that ends now, driven from this machine."""
    told = msgspec.structs.asdict(outcome)
    return PipelineRecord.made_now(
        trial, (trial,), command=command, trial=trial, predicted=predicted, **told
    )
