"""Pictures of what is predicted: memory against time for strategies and budgets, `memtrade pareto`,
and over the step, `memtrade timeline`."""

import dataclasses
from pathlib import Path

import msgspec
import pandas as pd

from memtrade.commands.profiles import Foresight, foresee, simulate_all
from memtrade.commands.progress import reporting
from memtrade.commands.reading import picture_format, write_output
from memtrade.commands.screen import Form, show
from memtrade.errors import InfeasibleBudgetError, MemtradeError, UnsupportedGraphError
from memtrade.measure.flags import CommandLine, StepFlags, Verbose
from memtrade.measure.protocol import TrialSpec
from memtrade.plan import Plan
from memtrade.results import pareto as trades
from memtrade.results import timeline as timelines
from memtrade.results.paper import render
from memtrade.results.pareto import Pareto, Point
from memtrade.results.predictions import bound_notes
from memtrade.results.series import front
from memtrade.results.sheets import Sheet
from memtrade.results.timeline import Bands
from memtrade.results.words import plural, seconds, step_text, strategy_label
from memtrade.simulate.memory import ROOMY_BYTES
from memtrade.simulate.predict import Predicted, Predictor
from memtrade.units import megabytes

DEFAULT = ("original", "checkpoints", "lms", "ome", "optimal")


def pareto(
    *,
    step: StepFlags = StepFlags(),
    budgets: int = 6,
    output: Path | None = None,
    format: Form = "terminal",
    verbose: Verbose = False,
    command_line: CommandLine = "",
) -> int:
    """Predict memory against time for strategies and budgets, as a table and a picture.

    A strategy that plans for a budget is drawn as a line: from its smallest peak to the original's.
    Unless --strategy is given, it is original,checkpoints,lms,ome,optimal.

    Parameters
    ----------
    budgets
        How many budgets, evenly spaced.
    format
        Of the table: csv has all figures, in bytes and seconds.
    output
        The picture: .html, a page that needs no network, or .png, .svg, .pdf.
    """
    if budgets < 2:
        raise MemtradeError(f"--budgets must be at least 2, not {budgets}")
    kind = picture_format(output, "the picture", pages=True)
    foresight = foresee(step, default=DEFAULT, verbose=verbose)
    made = Pareto(
        step=step_text(foresight.specs[0]),
        device=foresight.target.name,
        points=_points(foresight, budgets),
        command=command_line,
    )
    if output is not None:
        html = kind == "html"
        page = trades.to_html(made).encode() if html else render(trades.pareto_plot(made), kind)
        write_output(output, page)
    show([_sheet(made)], format)
    return 0


def timeline(
    *,
    step: StepFlags = StepFlags(),
    by: Bands = "group",
    output: Path = Path("timeline.html"),
    verbose: Verbose = False,
    command_line: CommandLine = "",
) -> int:
    """Draw memory over the step, as simulated: who holds what, and copies beside compute.

    Several strategies share one page and its axes. Nothing is run. Unless --strategy is
    given, it is original,ome.

    Parameters
    ----------
    by
        What the areas stand for: group (weights, activations, gradients, ...), layer, or source,
        the line of the program.
    output
        The file to write: .html, a page that needs no network, or .png, .svg, .pdf.
    """
    kind = picture_format(output, "a timeline", pages=True)
    foresight = foresee(step, default=("original", "ome"), verbose=verbose)
    made = timelines.Timelines(
        step=step_text(foresight.specs[0]),
        device=foresight.target.device,
        limit_bytes=foresight.target.limit_bytes,
        strips=tuple(simulate_all(foresight)),
        by=by,
        command=command_line,
    )
    html = kind == "html"
    page = timelines.to_html(made).encode() if html else render(timelines.timeline_plot(made), kind)
    write_output(output, page, alone=True)
    return 0


def _points(foresight: Foresight, budgets: int) -> tuple[Point, ...]:
    predictor = Predictor(foresight.graph, foresight.target)
    original = predictor.clock.timeline((), limit_bytes=ROOMY_BYTES)
    points: list[Point] = []
    with reporting() as reporter:
        for spec in foresight.in_turn(reporter):
            plans = _plans(foresight, spec, predictor, original.peak_bytes, budgets)
            for budget, predicted in plans:
                assert predicted.step_seconds is not None
                points.append(
                    Point(
                        strategy=strategy_label(spec),
                        budget_bytes=budget,
                        peak_bytes=predicted.peak_bytes,
                        host_bytes=predicted.host_bytes,
                        seconds=predicted.step_seconds,
                        relative_time=predicted.step_seconds / original.step_seconds,
                        bound=predicted.bound,
                    )
                )
            reporter.ended(plural([len(plans)], "plan"))
    chosen = front([(point.peak_bytes, point.seconds) for point in points])
    return tuple(
        dataclasses.replace(point, on_front=on) for point, on in zip(points, chosen, strict=True)
    )


def _plans(
    foresight: Foresight, spec: TrialSpec, predictor: Predictor, most_bytes: int, budgets: int
) -> list[tuple[int | None, Predicted]]:
    """The plan as asked for and, where the strategy takes a budget and none was given, more, up to
    `most_bytes`: each with those known that were made for less memory."""
    known: list[Plan] = []

    def predict(chosen: TrialSpec) -> Predicted | None:
        try:
            known.append(foresight.plan(chosen, known))
        except (InfeasibleBudgetError, UnsupportedGraphError):
            return None
        return predictor.predict(known[-1], limit_bytes=ROOMY_BYTES)

    least = predict(spec)
    if least is None:
        return []
    made: list[tuple[int | None, Predicted]] = [(None, least)]
    if spec.strategy_options.get("budget") == "":
        for i in range(1, budgets):
            budget = least.peak_bytes + i * (most_bytes - least.peak_bytes) // (budgets - 1)
            options = {**spec.strategy_options, "budget": f"{budget}B"}
            predicted = predict(msgspec.structs.replace(spec, strategy_options=options))
            if predicted is not None:
                made.append((budget, predicted))
    return made


def _sheet(made: Pareto) -> Sheet:
    points = [point for points in made.by_strategy().values() for point in points]
    return Sheet.of(
        points,
        [
            ("strategy", lambda point: point.strategy),
            ("front", lambda point: "●" if point.on_front else ""),
            ("budget MB", lambda p: megabytes(p.budget_bytes) if p.budget_bytes else ""),
            ("peak MB", lambda point: megabytes(point.peak_bytes, point.bound)),
            ("host MB", lambda point: megabytes(point.host_bytes)),
            ("s a step", lambda point: seconds(point.seconds)),
            ("× original", lambda point: f"{point.relative_time:.3f}"),
        ],
        title=f"{made.title}. Nothing was run.",
        words=2,
        notes=bound_notes(point.bound for point in points),
        frame=pd.DataFrame(points),
        command=made.command,
    )
