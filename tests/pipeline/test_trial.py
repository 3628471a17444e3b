"""Pipelined trials as processes: what is measured, and how they end."""

import contextlib
import dataclasses
import shutil
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from memtrade.errors import MemtradeError
from memtrade.measure.here import here_target, learned_target
from memtrade.measure.protocol import Progress
from memtrade.measure.records import load_records, save_record
from memtrade.models import make_model
from memtrade.pipeline.design.partitioner import Partitioner
from memtrade.pipeline.design.predict import PipelinePredictor
from memtrade.pipeline.design.schedule import make_schedule
from memtrade.pipeline.measure.protocol import (
    PipelineOutcome,
    PipelineTrial,
    Serving,
)
from memtrade.pipeline.measure.trial import (
    PipelineRecord,
    check_reachable,
    make_pipeline_record,
    run_pipeline,
)
from memtrade.pipeline.results.tables import device_sheet, runs_sheet
from memtrade.pipeline.tf import draw_step
from tests import forks
from tests.graphs import ARENA

OPTIONS = {"layers": 2, "width": 128, "heads": 4, "vocabulary": 500, "batch_size": 8}
MICRO_BATCHES = 4
SCHEDULE = make_schedule("gpipe", stages=2, micro_batches=MICRO_BATCHES, checkpoint="always")


@pytest.fixture(scope="module")
def graph():
    whole = make_model("gpt2", OPTIONS)
    part = dataclasses.replace(whole, batch_size=whole.batch_size // MICRO_BATCHES)
    return draw_step(part, whole, optimizer="momentum").trace.graph


@pytest.fixture(scope="module")
def partition(graph):
    return Partitioner(graph).by_time(2, ARENA, slack=0.1)


def trial(**changes):
    given = {
        "model": "gpt2",
        "model_options": dataclasses.asdict(make_model("gpt2", OPTIONS)),
        "optimizer": "momentum",
        "partitions": 2,
        "micro_batches": MICRO_BATCHES,
        "memory_limit_bytes": 300 << 20,
        "steps": 2,
    }
    return PipelineTrial(**given | changes)


def stages_left():
    """The worker processes of this test that still live."""
    found = []
    for child in forks.descendants():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if child.cmdline()[-1:] in (["stage"], ["drive"]):
                found.append(child)
    return found


@dataclasses.dataclass
class Ran:
    """A trial that went well, and what was seen of it on its way."""

    outcome: PipelineOutcome | None = None
    serving: list[Serving] = dataclasses.field(default_factory=list)
    devices: list[set[str]] = dataclasses.field(default_factory=list)  # that the stages listen to

    def see(self, event: object) -> None:
        if isinstance(event, Serving):
            self.serving.append(event)
        elif isinstance(event, Progress) and event.phase == "step" and not self.devices:
            stages = [child for child in stages_left() if child.cmdline()[-1] == "stage"]
            self.devices.extend(map(listening_on, stages) if shutil.which("ss") else [set()])


@pytest.fixture(scope="module")
def ran(partition) -> Ran:
    made = Ran()
    made.outcome = run_pipeline(
        trial(verify=True), partition, SCHEDULE, timeout_seconds=120, on_event=made.see
    )
    assert not stages_left()
    return made


def test_peaks_are_measured_and_predicted(graph, partition, ran: Ran, tmp_path: Path):
    outcome = ran.outcome
    assert outcome is not None
    measured = outcome.measured
    assert outcome.status == "ok", outcome.reason
    assert measured is not None
    assert measured.verified is not None
    assert measured.verified.equal
    assert measured.verified.max_difference is not None
    assert measured.verified.max_difference < 1e-4
    predicted = PipelinePredictor(graph, partition, ARENA).predict(
        SCHEDULE, micro_batch_size=2, arenas=True
    )
    for seen, said in zip(measured.stages, predicted.stages, strict=True):
        assert said.peak_bytes == pytest.approx(seen.peak_bytes, rel=0.03)
        assert seen.persistent_bytes < seen.peak_bytes
    assert all(loss is not None and loss > 0 for loss in measured.losses)
    assert measured.forward_seconds + measured.backward_seconds <= measured.median_seconds

    record = make_pipeline_record(trial(), outcome, predicted, command="memtrade pipeline run")
    save_record(record, tmp_path)
    assert PipelineRecord.load(tmp_path) == [record]
    assert load_records(tmp_path) == []  # other tables do not trip over it
    assert len(device_sheet(record).rows) == 2
    assert runs_sheet([record]).rows[0][:5] == ("gpipe", "always", "2", "4", "ok")


def test_a_stage_alone_takes_what_it_takes_among_the_others(graph, partition, ran: Ran):
    apart = trial(one_at_a_time=True, steps=1)
    outcome = run_pipeline(apart, partition, SCHEDULE, timeout_seconds=120)
    assert outcome.measured is not None, outcome.reason
    assert ran.outcome is not None
    assert ran.outcome.measured is not None
    # Among others, what crosses comes a moment sooner or stays longer: two micro-batches at once.
    crossing = 2 * max(graph.tensors[each.tensor].size_bytes for each in partition.sends(0))
    for alone, among in zip(outcome.measured.stages, ran.outcome.measured.stages, strict=True):
        assert alone.parameters == among.parameters
        assert abs(alone.peak_bytes - among.peak_bytes) <= crossing + 0.002 * among.peak_bytes
    assert not stages_left()


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("checkpoint", ["never", "except_last"])
def test_long_skips_take_what_is_predicted(checkpoint):
    """Tensors of several sizes, which go past a stage in between.

    What a stage sends is predicted to lie there until the schedule's clock has its reader start; a
    reader ahead of the clock, as it may be where stages share cores, takes a micro-batch's sooner.
    """
    options = {"num_convs": 1, "base_channels": 16, "image_size": 128, "batch_size": 16}
    whole = make_model("unet", options)
    step = draw_step(dataclasses.replace(whole, batch_size=4), whole, optimizer="momentum")
    made = Partitioner(step.trace.graph).by_time(3, ARENA, slack=0.1)
    schedule = make_schedule("gpipe", stages=3, micro_batches=4, checkpoint=checkpoint)
    run = trial(model="unet", model_options=dataclasses.asdict(whole), partitions=3)
    outcome = run_pipeline(run, made, schedule, timeout_seconds=120)
    assert outcome.measured is not None, outcome.reason
    target = learned_target(here_target("arena"), [step.trace.graph])
    predicted = PipelinePredictor(step.trace.graph, made, target).predict(
        schedule, micro_batch_size=4, arenas=True
    )
    tensors = step.trace.graph.tensors
    for index, seen in enumerate(outcome.measured.stages):
        said = predicted.stages[index].peak_bytes
        sent = sum(tensors[crossing.tensor].size_bytes for crossing in made.sends(index))
        assert 0.97 * (said - sent) <= seen.peak_bytes <= 1.03 * said


def test_a_stage_without_room_is_named(partition):
    outcome = run_pipeline(
        trial(memory_limit_bytes=6 << 20), partition, SCHEDULE, timeout_seconds=120
    )
    assert outcome.status == "out_of_memory"
    assert outcome.stage in (0, 1)
    assert outcome.reason.startswith(f"stage {outcome.stage + 1}: ")
    assert "OOM" in outcome.reason
    assert not stages_left()


def test_a_killed_stage_is_named_and_nothing_stays_behind(partition):
    killed: list[psutil.Process] = []

    def kill_second(event: object) -> None:
        # Once: several events may arrive together, and the next one would hit the first stage.
        if isinstance(event, Progress) and event.phase == "step" and not killed:
            stages = [child for child in stages_left() if child.cmdline()[-1] == "stage"]
            killed.append(max(stages, key=lambda child: (child.create_time(), child.pid)))
            killed[0].kill()

    outcome = run_pipeline(
        trial(steps=50), partition, SCHEDULE, timeout_seconds=120, on_event=kill_second
    )
    assert (outcome.status, outcome.stage) == ("crashed", 1)
    assert outcome.reason.startswith("stage 2: killed by SIGKILL")
    assert not stages_left()


def test_a_local_stage_listens_to_this_machine_alone(ran: Ran):
    assert [event.exposed for event in ran.serving] == [False, False]
    if shutil.which("ss"):  # else nothing but the stage itself can tell
        assert ran.devices == [{"lo"}] * 2


def listening_on(process: psutil.Process) -> set[str]:
    """The devices that a process's listening sockets are bound to; "" is any.

    The kernel tells no other process: `ss` asks it by netlink, and prints them behind a %.
    """
    shown = subprocess.run(["ss", "-Htlnp"], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in shown.splitlines() if f"pid={process.pid}," in line]
    return {row[3].rpartition(":")[0].partition("%")[2] for row in rows}


def test_a_server_that_ends_before_it_is_connected_to_is_named(partition):
    with contextlib.ExitStack() as held:
        # They answer nobody, as a server that hangs; TensorFlow waits for either.
        servers = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        cluster = tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in servers)

        def end_second(event: object) -> None:
            if event == Progress("connect"):
                servers[1].close()

        outcome = run_pipeline(
            trial(cluster=cluster), partition, SCHEDULE, timeout_seconds=60, on_event=end_second
        )
    assert (outcome.status, outcome.stage) == ("crashed", 1)
    assert outcome.reason.startswith(f"stage 2: no server answers at {cluster[1]} any more")
    assert not stages_left()


def test_an_unreachable_address_is_named_within_ten_seconds():
    with socket.socket() as held:  # bound, but nobody listens
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(MemtradeError, match=f"no server answers at {address}"):
            check_reachable([address])
        assert time.monotonic() - begin < 10


@pytest.mark.parametrize("address", ["nohost", "host:", ":80", "host:port", "host:99999"])
def test_an_address_is_host_and_port(address):
    with pytest.raises(MemtradeError, match="an address of a cluster is host:port"):
        check_reachable([address])


def test_a_cluster_has_an_address_for_each_stage(partition):
    with pytest.raises(MemtradeError, match="1 are given for 2 partitions"):
        run_pipeline(trial(cluster=("127.0.0.1:1",)), partition, SCHEDULE)
