"""`memtrade pipeline`: pipelined training."""

import itertools
from dataclasses import dataclass
from pathlib import Path

from cyclopts import App, Parameter

from memtrade.commands.reading import check_folder, picture_format, read_kind, write_output
from memtrade.commands.screen import Form, check_form, show, show_json
from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.graph import StepGraph
from memtrade.measure.flags import (
    CommandLine,
    DeviceFlags,
    Flag,
    ModelFlags,
    StrategyFlags,
    Verbose,
    check_writable,
)
from memtrade.options import Value
from memtrade.papers.gpipe_runs import PUBLISHED_RUNS, published_sheet
from memtrade.papers.pipelines import compare_published, load_comparison
from memtrade.papers.pipelines_page import errors_sheet, to_markdown
from memtrade.papers.published import load_published
from memtrade.pipeline.commands.partition import (
    CutFlags,
    micro_batch_graphs,
    trace_step,
)
from memtrade.pipeline.commands.runner import planned_stages, run, serve
from memtrade.pipeline.commands.sweep import sweep
from memtrade.pipeline.design.predict import Case, Hosts, PipelinePrediction, PipelinePredictor
from memtrade.pipeline.design.schedule import Schedule, make_schedule, micro_batch_size
from memtrade.pipeline.measure.trial import PipelineRecord
from memtrade.pipeline.results.picture import ScheduleStrip, draw_schedules
from memtrade.pipeline.results.tables import prediction_sheet, schedules_sheet, stages_sheet
from memtrade.results.paper import render
from memtrade.strategies import find_planned
from memtrade.sweep.shipped import sweep_file
from memtrade.target import profile_target
from memtrade.units import mebibytes

pipeline = App(name="pipeline", help="Pipelined training: GPipe and 1F1B over stages of a model.")
for _measured in (run, sweep, serve):
    pipeline.command(_measured)

# Unless told, as many micro-batches per partition: from here on GPipe's authors found the bubble
# negligible.
_MICRO_BATCHES_PER_PARTITION = 4


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PipelineFlags:
    """What to compare: lists are separated by commas, and all combinations are shown.

    Attributes:
        partitions: How many stages. Unless given: 2, or as many as the boundaries make.
        micro_batches: Into how many to split the batch. Unless given: 4 per partition, or the next
            number below that divides the batch.
        schedule: gpipe or 1f1b.
        checkpoint: always recomputes all micro-batches, except_last all but the last one, never
            none.
        hosts: own, where each stage is a process, or shared, where one process starts all ops, as
            torchgpipe does.
    """

    partitions: str | None = None
    micro_batches: str | None = None
    schedule: str = "gpipe"
    checkpoint: str = "always"
    hosts: Hosts = "own"

    def cases(self, *, batch_size: int, cut: CutFlags, strategies: list[str]) -> list[Case]:
        """Raises MemtradeError for micro-batches that do not divide the batch, and the like."""
        given = self.partitions or str(cut.stages(None))
        found = []
        for partitions in _numbers(given, "--partitions"):
            cut.stages(partitions)
            split = self.micro_batches or str(_fitting(batch_size, partitions))
            for micro_batches, schedule, checkpoint, strategy in itertools.product(
                _numbers(split, "--micro-batches"),
                _words(self.schedule),
                _words(self.checkpoint),
                strategies,
            ):
                micro_batch_size(batch_size, micro_batches)
                case = Case(
                    partitions=partitions,
                    micro_batches=micro_batches,
                    schedule=schedule,  # pyright: ignore[reportArgumentType]  # checked below
                    checkpoint=checkpoint,  # pyright: ignore[reportArgumentType]
                    strategy=strategy,
                )
                schedule_of(case)
                found.append(case)
        return list(dict.fromkeys(found))


def schedule_of(case: Case) -> Schedule:
    return make_schedule(
        case.schedule,
        stages=case.partitions,
        micro_batches=case.micro_batches,
        checkpoint=case.checkpoint,
    )


@pipeline.command
def predict(
    *,
    model: ModelFlags = ModelFlags(),
    cut: CutFlags = CutFlags(),
    flags: PipelineFlags = PipelineFlags(),
    strategy: StrategyFlags = StrategyFlags(),
    device: DeviceFlags = DeviceFlags(),
    picture: Path | None = None,
    format: Form = "terminal",
    json: Flag = False,
    verbose: Verbose = False,
    command_line: CommandLine = "",
) -> int:
    """Predict pipelined steps on devices that one does not have: peak per stage, bubble, speed.

    The step is traced at the size of a micro-batch, cut into stages, and its schedule simulated.
    Nothing is run. A strategy plans each stage by itself, swapping included; unless --strategy is
    given, stages stay as they are.

    Parameters
    ----------
    picture
        Also draw when each stage works on what, into a .pdf, .svg or .png file.
    json
        Print the predictions to stdout as JSON, and no table.
    """
    check_form(format, json)
    sized = cut.sized(model)
    batch_size = sized.make_model().batch_size
    names = strategy.names(default=["original"])
    for name in names:
        find_planned(name)
    options = strategy.typed_options(names)
    cases = flags.cases(batch_size=batch_size, cut=cut, strategies=names)
    target = device.target(strategy.order)
    link = cut.link_bytes_per_s(target)
    kind = picture_format(picture)
    graph_at = micro_batch_graphs(sized, timeout_seconds=device.timeout, verbose=verbose)
    predictors: dict[tuple[int, int, int, str], PipelinePredictor] = {}
    predictions: list[tuple[Case, PipelinePrediction]] = []
    for case in cases:
        size, schedule = micro_batch_size(batch_size, case.micro_batches), schedule_of(case)
        key = case.partitions, size, schedule.held, case.strategy
        if key not in predictors:
            planned = (graph_at(size), cut, schedule, target, case.strategy, options[case.strategy])
            predictors[key] = planned_stages(*planned)
        predicted = predictors[key].predict(
            schedule, micro_batch_size=size, link_bytes_per_s=link, hosts=flags.hosts
        )
        predictions.append((case, predicted))
    if picture is not None:
        write_output(picture, render(draw_schedules([_strip(*each) for each in predictions]), kind))
    if json:
        show_json([{"case": c, "predicted": p} for c, p in predictions])
        return 0
    title = (
        f"Predicted, not measured: {sized.make_model().name}, batch {batch_size}, "
        f"{sized.optimizer}; device profile {target.name}, "
        f"{mebibytes(target.limit_bytes)} a stage"
    )
    sheets = [prediction_sheet(title, predictions, command=command_line)]
    if len(predictions) == 1:
        sheets.insert(0, stages_sheet(*predictions[0]))
    show(sheets, format)
    return 0


@pipeline.command
def published(
    name: str,
    /,
    *,
    comparisons: Path = Path("sweeps/published_pipelines.toml"),
    results: Path = Path("results"),
    device: str | None = None,
    timeout: float = 3600.0,
    verbose: Verbose = False,
    command_line: CommandLine = "",
) -> int:
    """Predict published pipelines, and write a page that shows both, misses included.

    Writes NAME.md and NAME.csv into the folder `predicted` of the results.

    Parameters
    ----------
    name
        A comparison of the file, such as gpipe_gpt2, torchgpipe_memory or torchgpipe_speed.
    comparisons
        A TOML file that says which step each published row was; this one comes with memtrade.
    results
        The folder to write below.
    device
        Another device profile than the comparison's.
    timeout
        Seconds that tracing one step may take.
    """
    comparisons = sweep_file(comparisons, table="comparison")
    comparison = load_comparison(comparisons, name)
    beside = comparisons.parent / comparison.device
    target = profile_target(device or (beside if beside.is_file() else comparison.device))
    folder = results / "predicted"
    check_writable(folder)

    def trace(model: str, options: dict[str, Value], optimizer: str) -> StepGraph:
        given = [f"{key}={value}" for key, value in options.items()]
        flags = ModelFlags(model=model, model_option=given, optimizer=optimizer)
        return trace_step(flags, timeout_seconds=timeout, verbose=verbose)

    compared = compare_published(comparison, target, trace)
    page = to_markdown(compared, command=command_line)
    write_output(folder / f"{name}.md", page.encode())
    csv = compared.frame.to_csv(index=False, lineterminator="\n")
    write_output(folder / f"{name}.csv", csv.encode())
    show([errors_sheet(compared)])
    return 0


@pipeline.command
def table(
    folder: Path,
    /,
    *,
    published: str | None = None,
    format: Form = "terminal",
    output: Path | None = None,
    command_line: CommandLine = "",
) -> int:
    """Tables over records of pipelines: schedules side by side, or beside published runs.

    Measured, predicted and published figures stand in columns of their own. Nothing is run.

    Parameters
    ----------
    folder
        With the records of `memtrade pipeline run` or `sweep`, below it too.
    published
        Show them beside this published table: gpipe_gpt2_runs.
    output
        Also write the table into this Markdown file.
    """
    how = "make some: memtrade pipeline run, or memtrade pipeline sweep pipeline_schedules"
    records = read_kind(folder, PipelineRecord.load, "records of pipelines", how)
    if published not in (None, PUBLISHED_RUNS):
        raise UnknownNameError("published table of pipelines", published, [PUBLISHED_RUNS])
    if output is not None:
        check_folder(output)
    if published is None:
        sheet = schedules_sheet(records, command=command_line)
    else:
        lines = load_published(published)
        sheet = published_sheet(records, lines, command=command_line)
    if output is not None:
        write_output(output, sheet.to_markdown().encode())
    show([sheet], format)
    return 0


def _strip(case: Case, predicted: PipelinePrediction) -> ScheduleStrip:
    words = [case.schedule, f"{case.micro_batches} micro-batches", case.checkpoint]
    words += [case.strategy] if case.strategy != "original" else []
    title = f"{', '.join(words)}: bubble {predicted.timing.bubble:.3f}"
    return ScheduleStrip(title, schedule_of(case), predicted.timing)


def _fitting(batch_size: int, partitions: int) -> int:
    """The largest number up to 4 per partition that divides the batch."""
    most = max(1, min(batch_size, _MICRO_BATCHES_PER_PARTITION * partitions))
    return max(count for count in range(1, most + 1) if batch_size % count == 0)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _numbers(text: str, flag: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise MemtradeError(
            f"{flag} takes whole numbers, separated by commas, not {text!r}"
        ) from None
