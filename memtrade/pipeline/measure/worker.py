"""The processes of a pipelined trial: servers that hold a stage each, and the driver.

Each stage is a `tf.distribute.Server` in a process with an arena or a GPU of its own, so that its
allocator measures the stage's peak. The server's devices take their memory from the arena that the
process set up, and its statistics are those of the process. To ask for them from wherever the
driver runs, a question and its answer travel through TensorFlow, too, by two queues on the stage:

    driver   enqueue "reset" ──► questions ──► stage: look, reset
             dequeue ◄───────── answers ◄───── [peak bytes, bytes in use]

A GPU computes behind the clock that a graph can read: there the times of tasks say when their
kernels were queued, and only those of whole steps are the GPU's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import tensorflow as tf

from memtrade.comparison import ANOTHER_ORDER, Verified
from memtrade.errors import MemtradeError, UnsupportedGraphError
from memtrade.explain.error import first_line
from memtrade.measure.child import Say
from memtrade.measure.protocol import Failed, Progress, Runtime
from memtrade.models import make_model
from memtrade.pipeline.design.stages import StageGraph, stage_graphs
from memtrade.pipeline.measure import loopback
from memtrade.pipeline.measure.protocol import (
    DriverSpec,
    Lost,
    PipelineFinished,
    PipelineMeasured,
    Serving,
    StageDevice,
    StageMeasured,
    StageSpec,
)
from memtrade.pipeline.tf import PipelineGraph, build_pipeline, draw_step, session_config
from memtrade.tf.build import make_step
from memtrade.tf.construction import Construction
from memtrade.tf.device import make_device
from memtrade.tf.verify import compare_values

v1 = tf.compat.v1

JOB = "stage"
_CONNECT_MILLISECONDS = 60_000  # for all stages to import TensorFlow, on a busy machine
_RELEASE_MILLISECONDS = 5_000
_TASK = re.compile(rf"/job:{JOB}/replica:\d+/task:(\d+)")


def main(role: str, request: bytes, say: Say) -> int:
    try:
        if role == "stage":
            _serve(msgspec.json.decode(request, type=StageSpec), say)
        else:
            _Driver(msgspec.json.decode(request, type=DriverSpec), say).run()
    except UnsupportedGraphError as error:
        say(Failed("unsupported", str(error)))
    except MemtradeError as error:
        say(Failed("bad_input", str(error)))
    except tf.errors.OpError as error:
        say(_lost(error))
    return 0


def stage_device(stage: int, device: StageDevice = "arena") -> str:
    """TensorFlow's name of a stage's device. A process sees one GPU, its own."""
    return f"/job:{JOB}/task:{stage}/device:{'GPU' if device == 'gpu' else 'CPU'}:0"


# A stage


def _serve(spec: StageSpec, say: Say) -> None:
    """Serves the stage, and answers questions about its memory, until the process is ended."""
    device = make_device(spec.device, spec.memory_limit_bytes)
    device.start()
    config = session_config()
    if spec.device != "arena":  # a server sets its GPU up by itself; the limit is one for both
        virtual = config.gpu_options.experimental.virtual_devices.add()
        virtual.memory_limit_mb.append(spec.memory_limit_bytes >> 20)
    server = tf.distribute.Server(
        tf.train.ClusterSpec({JOB: list(spec.addresses)}),
        job_name=JOB,
        task_index=spec.stage,
        config=config,
        start=False,  # it listens, and answers nobody yet
    )
    exposed = not (spec.local and loopback.confine_listeners())
    server.start()
    runtime = Runtime(
        tensorflow_version=tf.__version__,
        device=device.name,
        limit_bytes=spec.memory_limit_bytes,
        onednn=device.runs_onednn(),
        intra_op_threads=os.cpu_count() or 1,
        inter_op_threads=1,
    )
    with tf.Graph().as_default():
        questions, answers = _queues(spec.stage)
        question = questions.dequeue()
        seen = v1.placeholder(tf.int64, [2])
        answer = answers.enqueue(seen)
        config = session_config()
        config.device_filters.append(f"/job:{JOB}/task:{spec.stage}")  # waits for nobody else
        with v1.Session(server.target, config=config) as session:
            say(Serving(spec.stage, runtime, exposed))
            while True:
                asked = session.run(question)
                bytes_seen = [device.peak_bytes(), device.in_use_bytes()]
                if asked == b"reset":
                    device.reset_peak()
                session.run(answer, {seen: bytes_seen})


def _queues(stage: int) -> tuple[Any, Any]:
    with tf.device(stage_device(stage)):
        return (
            v1.FIFOQueue(1, [tf.string], shapes=[[]], shared_name="questions"),
            v1.FIFOQueue(1, [tf.int64], shapes=[[2]], shared_name="answers"),
        )


# The driver


class _Driver:
    def __init__(self, spec: DriverSpec, say: Say):
        self.spec, self.trial, self._say = spec, spec.trial, say

    def run(self) -> None:
        trial, started = self.trial, time.perf_counter()
        self._say(Progress("trace"))
        whole = make_model(trial.model, trial.model_options)
        size = whole.batch_size // trial.micro_batches
        step = draw_step(
            dataclasses.replace(whole, batch_size=size),
            whole,
            optimizer=trial.optimizer,
            learning_rate=trial.learning_rate,
        )
        self._say(Progress("build"))
        stages = stage_graphs(step.trace.graph, self.spec.partition)
        devices = [stage_device(i, trial.device) for i in range(len(stages))]
        alone = self.spec.alone
        self.shown = range(len(stages)) if alone is None else [alone]
        pipeline = build_pipeline(
            step,
            self.spec.partition,
            self.spec.schedule,
            devices,
            plans=self.spec.plans,
            deferred_batch_norm=trial.deferred_batch_norm,
            apart=trial.tasks_alone,
            alone=alone,
        )
        with pipeline.graph.as_default():
            self.questions = [self._question(i) for i in self.shown]
        build_seconds = time.perf_counter() - started
        target = f"grpc://{self.spec.addresses[self.shown[0]]}"
        self._say(Progress("connect"))
        config = session_config()
        if alone is not None:
            config.device_filters.append(f"/job:{JOB}/task:{alone}")  # waits for nobody else
        made = v1.Session(target, graph=pipeline.graph, config=config)
        with contextlib.closing(made) as session:  # not made the default: verifying is eager
            try:
                shown = [stages[i] for i in self.shown]
                measured = self._measure(session, pipeline, shown, build_seconds)
            finally:
                if trial.cluster:  # these servers live on
                    patience = v1.RunOptions(timeout_in_ms=_RELEASE_MILLISECONDS)
                    with contextlib.suppress(tf.errors.OpError):
                        session.run(pipeline.release, options=patience)
        self._say(PipelineFinished(measured))

    def _measure(
        self,
        session: Any,
        pipeline: PipelineGraph,
        stages: Sequence[StageGraph],
        build_seconds: float,
    ) -> PipelineMeasured:
        self._ask(session, "look", patient=True)
        session.run(pipeline.initialize)
        ran = self._run_steps(session, pipeline)
        verified = None
        if self.trial.verify:
            self._say(Progress("verify"))
            losses = [step.loss for step in ran]
            verified = self._verified(session.run(pipeline.values), losses, pipeline.averages)
        counted = ran[self.trial.warmup :]
        times = [self._times(step.clocks) for step in counted]
        seconds = statistics.median(step.seconds for step in counted)
        return PipelineMeasured(
            stages=tuple(
                self._stage_measured(i, stage, pipeline.parameters[i], ran, times)
                for i, stage in enumerate(stages)
            ),
            step_seconds=tuple(step.seconds for step in counted),
            median_seconds=seconds,
            forward_seconds=statistics.median(step.forward for step in times),
            backward_seconds=statistics.median(step.backward for step in times),
            bubble=statistics.median(step.bubble for step in times),
            samples_per_second=self.trial.batch_size / seconds,
            build_seconds=build_seconds,
            losses=tuple(step.loss for step in ran),
            verified=verified,
        )

    def _run_steps(self, session: Any, pipeline: PipelineGraph) -> list[_Step]:
        """What was seen of each step, those that warm up included."""
        trial = self.trial
        step = session.make_callable(pipeline.step)
        losses = [] if pipeline.loss is None else [pipeline.loss]
        look = session.make_callable([pipeline.times, *losses])
        ran: list[_Step] = []
        for i in range(trial.warmup + trial.steps):
            self._say(Progress.of_step(i, warmup=trial.warmup, steps=trial.steps))
            self._ask(session, "reset")
            begin = time.perf_counter()
            step()
            seconds = time.perf_counter() - begin
            seen = self._ask(session, "look")
            clocks, *losses = look()
            loss = float(losses[0]) if losses else math.nan
            peaks, in_use = zip(*seen, strict=True)
            ran.append(_Step(seconds, loss, peaks, in_use, clocks))
        return ran

    def _verified(self, values: Any, losses: Sequence[float], averages: frozenset[str]) -> Verified:
        """Compared with the unpipelined step, which runs here."""
        trial = self.trial
        unpipelined = make_step(
            make_model(trial.model, trial.model_options),
            optimizer=trial.optimizer,
            learning_rate=trial.learning_rate,
            construction=Construction(micro_batches=trial.micro_batches),
        )
        comparison = compare_values(unpipelined, values, losses, left_out=averages)
        return comparison.verified(ANOTHER_ORDER)

    def _question(self, stage: int) -> tuple[Any, Any, Any]:
        questions, answers = _queues(stage)
        with tf.device(stage_device(stage)):
            asked = v1.placeholder(tf.string, [])
        return asked, questions.enqueue(asked), answers.dequeue()

    def _ask(self, session: Any, question: str, *, patient: bool = False) -> list[tuple[int, int]]:
        """(peak bytes, bytes in use) of each stage."""
        options = v1.RunOptions(timeout_in_ms=_CONNECT_MILLISECONDS) if patient else None
        found = []
        for asked, ask, answer in self.questions:
            session.run(ask, {asked: question}, options=options)
            peak, now = session.run(answer, options=options)
            found.append((int(peak), int(now)))
        return found

    def _times(self, looks: Sequence[np.ndarray]) -> _Times:
        """Of one step, by each stage's looks at the clock: begin and end of its tasks, in turn, and
        the end of its update."""
        stages, turns = [], []
        shown = (self.spec.schedule.tasks[i] for i in self.shown)
        for tasks, own in zip(shown, looks, strict=True):
            early = np.array([task.kind == "forward" for task in tasks])
            begun, ended = own[:-1:2], own[1:-1:2]
            spans = ended - begun
            stages.append((spans[early].sum(), spans[~early].sum(), own[-1] - ended[-1]))
            turns.append((begun[0], ended[early].max(), ended[-1]))
        starts, forwards, ends = np.transpose(turns)
        start, forward, end = float(starts.min()), float(forwards.max()), float(ends.max())
        tasks = np.array(stages, dtype=float)
        bubble = 1 - sum(tasks[:, 0] + tasks[:, 1]) / (len(tasks) * (end - start))
        return _Times(forward - start, end - forward, float(bubble), tasks)

    def _stage_measured(
        self, i: int, stage: StageGraph, parameters: int, ran: list[_Step], times: list[_Times]
    ) -> StageMeasured:
        tasks = np.transpose([step.tasks[i] for step in times])
        forward, backward, update = (tuple(map(float, each)) for each in tasks)
        peaks = tuple(step.peaks[i] for step in ran)
        return StageMeasured(
            parameters=parameters,
            variable_bytes=stage.variable_bytes,
            gradient_bytes=stage.gradient_bytes,
            slot_bytes=stage.slot_bytes,
            persistent_bytes=ran[-1].in_use[i],
            peak_bytes=max(peaks),
            peak_bytes_by_step=peaks,
            activation_bytes=max(peaks) - stage.parameter_bytes,
            busy_seconds=statistics.median(map(sum, zip(forward, backward, strict=True))),
            forward_seconds=forward,
            backward_seconds=backward,
            update_seconds=None if self.trial.tasks_alone else statistics.median(update),
        )


class _Step(NamedTuple):
    """What was seen of one step: bytes by stage, and each stage's looks at the clock."""

    seconds: float
    loss: float
    peaks: tuple[int, ...]
    in_use: tuple[int, ...]
    clocks: Sequence[np.ndarray]


class _Times(NamedTuple):
    """The times of one step, in seconds. `tasks`: [stages, 3], those of each stage in forward
    tasks, in all others, and in its update."""

    forward: float
    backward: float
    bubble: float
    tasks: np.ndarray


def _lost(error: tf.errors.OpError) -> Lost:
    """What an error of the runtime means: which stage, and whether it had no more memory."""
    message = str(error.message)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if isinstance(error, tf.errors.ResourceExhaustedError):
        told = first_line(error)
        return Lost("out_of_memory", told, _stage_of(told))
    told = [line for line in lines if _TASK.search(line)] or lines or [type(error).__name__]
    stage = _stage_of(message)
    where = "" if stage is None else f" to stage {stage + 1}"
    return Lost("crashed", f"the connection{where} failed: {told[0]}"[:300], stage)


def _stage_of(text: str) -> int | None:
    found = _TASK.search(text)
    return int(found[1]) if found else None
