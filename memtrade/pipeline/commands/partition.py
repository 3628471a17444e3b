"""`memtrade partition`: a model cut into stages, and how well they are balanced.

A child traces the step; this process partitions and predicts. Real times are those of a pipeline of
one micro-batch, each stage in a process of its own, one at work at a time.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
from cyclopts import Parameter

from memtrade.commands.progress import extract_graph, ignore, log, reporting
from memtrade.commands.reading import picture_format, write_output
from memtrade.commands.screen import Form, check_form, show, show_json
from memtrade.errors import MemtradeError, RuleError
from memtrade.graph import StepGraph
from memtrade.measure.environment import default_limit_bytes
from memtrade.measure.flags import (
    CommandLine,
    DeviceFlags,
    Flag,
    ModelFlags,
    Pairs,
    StepFlags,
    Verbose,
    check_writable,
    make_specs,
)
from memtrade.measure.here import learned_target
from memtrade.measure.host import describe_machine
from memtrade.measure.protocol import Progress
from memtrade.models import MODELS, options_of
from memtrade.pipeline.design.partition import Partition
from memtrade.pipeline.design.partitioner import Partitioner
from memtrade.pipeline.design.report import PartitionReport, StageSamples, Volumes, analyse
from memtrade.pipeline.design.runnable import check_runs
from memtrade.pipeline.design.schedule import make_schedule
from memtrade.pipeline.measure.protocol import PipelineTrial
from memtrade.pipeline.measure.trial import run_pipeline
from memtrade.pipeline.results.picture import draw_partition
from memtrade.pipeline.results.tables import report_sheets
from memtrade.results.paper import render
from memtrade.results.words import status_text
from memtrade.target import ARENA, Target
from memtrade.units import parse_bytes


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CutFlags:
    """Where to cut.

    Attributes:
        size: The options that are the model's own, in order, such as 36,544 for the layers and
            filters of AmoebaNet-D (36, 544).
        balance: time, forward and backward on the device, or memory, of variables, gradients
            and activations.
        slack: How much heavier than in the best balance a stage may be, to send less: 0.1 is 10%.
        depth: Cut anywhere between layers, but within none that is nested so deep: 1 keeps whole
            what the model is made of (a block of GPT-2), 2 the layers in that, and so on. Unless
            given, cut at the narrow places.
        boundary: The name of the op that ends a stage, in place of a balance; repeatable, one
            less than there are partitions.
        bandwidth: Between stages, such as 12GB/s. Unless given: the profile's from the device.
    """

    size: str | None = None
    balance: Literal["time", "memory"] = "time"
    slack: float = 0.1
    depth: int | None = None
    boundary: Pairs = field(default_factory=list)
    bandwidth: str | None = None

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth < 1:
            raise MemtradeError(f"--depth is a number from 1 on, not {self.depth}")
        if not self.slack >= 0:
            raise MemtradeError(f"--slack must be at least 0, not {self.slack:g}")
        if self.bandwidth is not None:
            _bytes_per_s(self.bandwidth)

    def sized(self, model: ModelFlags) -> ModelFlags:
        """The model's flags, with the options that --size stands for.

        Raises MemtradeError for more values than the model has options of its own.
        """
        if self.size is None:
            return model
        family = model.make_model().family
        known = {each.name: each for each in options_of(MODELS[family])}
        own = [name for name in vars(MODELS[family])["__annotations__"] if name in known]
        numbers = [number.strip() for number in self.size.split(",")]
        if len(numbers) > len(own):
            raise MemtradeError(
                f"--size of {family} takes up to {len(own)} values ({', '.join(own)}), "
                f"not {len(numbers)}"
            )
        pairs = [f"{name}={number}" for name, number in zip(own, numbers, strict=False)]
        sized = dataclasses.replace(model, model_option=[*pairs, *model.model_option])
        try:
            sized.make_model()
        except RuleError as error:
            said = f"--size {self.size!r} of {family}: {error}"
            raise MemtradeError(said) from None
        return sized

    def link_bytes_per_s(self, target: Target) -> float:
        if self.bandwidth is None:
            return target.device.device_to_host_bytes_per_s
        return _bytes_per_s(self.bandwidth)

    def stages(self, partitions: int | None) -> int:
        """How many there will be: as many as the boundaries make, or 2, unless it is said.

        Raises MemtradeError where the boundaries make another number.
        """
        count = len(self.boundary)
        if count and partitions not in (None, count + 1):
            raise MemtradeError(
                f"boundaries are one less than partitions, not {count} for {partitions}: "
                "give as many, or none"
            )
        return partitions or (count + 1 if count else 2)

    def cut(
        self, graph: StepGraph, partitions: int | None, target: Target, *, in_flight: int = 1
    ) -> Partition:
        """The graph in that many stages.

        Args:
            in_flight: of how many micro-batches a stage holds the activations at once.

        Raises MemtradeError for too many partitions, or boundaries that do not exist.
        """
        partitioner = Partitioner(graph, depth=self.depth)
        count = self.stages(partitions)
        if self.boundary:
            return partitioner.cut_at(self.boundary, target)
        if self.balance == "memory":
            return partitioner.by_memory(count, in_flight=in_flight, slack=self.slack)
        return partitioner.by_time(count, target, slack=self.slack)


def _bytes_per_s(bandwidth: str) -> int:
    try:
        rate = parse_bytes(bandwidth.removesuffix("/s"))
    except MemtradeError:
        rate = 0
    if not rate:
        raise MemtradeError(
            f"--bandwidth is bytes a second, more than 0, not {bandwidth!r}: write 12GB/s"
        )
    return rate


def trace_step(model: ModelFlags, *, timeout_seconds: float, verbose: bool) -> StepGraph:
    """The step's graph."""
    step = StepFlags(model=model, device=DeviceFlags(device=ARENA, timeout=timeout_seconds))
    specs = make_specs(step, task="extract", names=["original"])
    return extract_graph(specs[0], timeout_seconds=timeout_seconds, verbose=verbose)


def micro_batch_graphs(
    model: ModelFlags, *, timeout_seconds: float, verbose: bool
) -> Callable[[int], StepGraph]:
    """The step's graphs by the size of a micro-batch, each traced once."""

    @functools.cache
    def at(size: int) -> StepGraph:
        sized = dataclasses.replace(model, batch_size=size)
        return trace_step(sized, timeout_seconds=timeout_seconds, verbose=verbose)

    return at


def _time_stages(
    flags: ModelFlags,
    made: Partition,
    iterations: int,
    recomputation: bool,
    timeout_seconds: float,
    verbose: bool,
) -> list[StageSamples]:
    """Runs the stages, one at a time, `iterations` + 1 times. What each took.

    Raises MemtradeError where a stage fails.
    """
    model, stages = flags.make_model(), len(made.stages)
    schedule = make_schedule(
        "gpipe", stages=stages, micro_batches=1, checkpoint="always" if recomputation else "never"
    )
    trial = PipelineTrial(
        model=flags.model,
        model_options=dataclasses.asdict(model),
        optimizer=flags.optimizer,
        learning_rate=flags.learning_rate,
        partitions=stages,
        micro_batches=1,
        checkpoint=schedule.checkpoint,
        boundaries=made.boundaries,
        memory_limit_bytes=default_limit_bytes() // stages,
        steps=iterations + 1,
        warmup=2,
        tasks_alone=True,
    )
    with reporting() as reporter:
        reporter.trial(1, 1, model.name)
        outcome = run_pipeline(
            trial,
            made,
            schedule,
            timeout_seconds=timeout_seconds,
            on_event=lambda event: reporter.event(event) if isinstance(event, Progress) else None,
            on_log=log if verbose else ignore,
        )
    if outcome.measured is None:
        raise MemtradeError(
            f"the stages could not be timed: {status_text(outcome.status)}: {outcome.reason}"
        )
    return [
        StageSamples(forward=each.forward_seconds, backward=each.backward_seconds)
        for each in outcome.measured.stages
    ]


def _write(
    folder: Path, graph: StepGraph, made: Partition, report: PartitionReport, command_line: str
) -> None:
    """The report as NAME_kK.md, .json and .svg."""
    stem = f"{graph.name}_k{report.partitions}"
    pages = [sheet.to_markdown() for sheet in report_sheets(report, command=command_line)]
    write_output(folder / f"{stem}.md", "\n".join(pages).encode())
    encoded = msgspec.json.encode({"report": report, "machine": describe_machine()})
    write_output(folder / f"{stem}.json", msgspec.json.format(encoded, indent=2) + b"\n")
    write_output(folder / f"{stem}.svg", render(draw_partition(graph, made, report), "svg"))


def partition(
    *,
    model: ModelFlags = ModelFlags(),
    cut: CutFlags = CutFlags(),
    device: DeviceFlags = DeviceFlags(),
    partitions: int | None = None,
    iterations: int = 0,
    recomputation: bool = True,
    volumes: Volumes = "sum",
    picture: Path | None = None,
    results: Path | None = None,
    format: Form = "terminal",
    json: Flag = False,
    verbose: Verbose = False,
    command_line: CommandLine = "",
) -> int:
    """Cut a model into the stages of a pipeline, and say how well they are balanced.

    Theoretical times are predicted for a device profile; with --iterations the stages are also run
    and timed on this machine. The step is traced at its batch size, so give that of a micro-batch.

    Parameters
    ----------
    partitions
        How many stages: 2, or one more than there are boundaries.
    iterations
        Also run each stage so many times, and once more, of which the slowest does not count.
        Unless given, nothing is run.
    recomputation
        Add the forward time to the backward times.
    volumes
        Times to receive and send: of all tensors together, or of the largest alone.
    picture
        Also draw the partition, into a .pdf, .svg or .png file.
    results
        Also write the report into this folder, as Markdown, JSON and a picture.
    json
        Print the report and the partition to stdout as JSON, and no table.
    """
    check_form(format, json)
    target = device.target()
    link = cut.link_bytes_per_s(target)
    kind = picture_format(picture)
    if results is not None:
        check_writable(results)
    if iterations < 0:
        raise MemtradeError(f"--iterations is a number from 0 on, not {iterations}")
    if partitions is not None and partitions < 1:
        raise MemtradeError(f"--partitions is a number from 1 on, not {partitions}")
    cut.stages(partitions)
    sized = cut.sized(model)
    if iterations:
        check_runs(sized.make_model())
    graph = trace_step(sized, timeout_seconds=device.timeout, verbose=verbose)
    target = learned_target(target, [graph])
    made = cut.cut(graph, partitions, target)
    samples = None
    if iterations:
        samples = _time_stages(sized, made, iterations, recomputation, device.timeout, verbose)
    report = analyse(
        graph,
        made,
        target,
        link_bytes_per_s=link,
        recomputation=recomputation,
        volumes=volumes,
        samples=samples,
    )
    if results is not None:
        _write(results, graph, made, report, command_line)
    if picture is not None:
        write_output(picture, render(draw_partition(graph, made, report), kind))
    if json:
        show_json({"report": report, "partition": made})
        return 0
    show(report_sheets(report, command=command_line), format)
    return 0
