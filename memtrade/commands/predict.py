"""What a step will take on a device, without running anything: `memtrade predict`, and by layer
`memtrade summary`."""

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator
from functools import partial

import msgspec

from memtrade.commands.profiles import Foresight, foresee
from memtrade.commands.progress import reporting
from memtrade.commands.screen import Form, check_form, show, show_json, stdout
from memtrade.errors import InfeasibleBudgetError, MemtradeError, UnsupportedGraphError
from memtrade.facts.surroundings import usable_cores
from memtrade.measure.flags import DEFAULT_STRATEGIES, CommandLine, Flag, StepFlags, Verbose
from memtrade.measure.protocol import PlanSummary, TrialSpec
from memtrade.results.layers import summarize
from memtrade.results.predictions import Prediction, to_sheet
from memtrade.results.words import seconds, step_text, strategy_label
from memtrade.simulate.by_layer import By
from memtrade.simulate.memory import Simulator
from memtrade.simulate.predict import Predictor
from memtrade.simulate.timeline import TimeSimulator


def predict(
    *,
    step: StepFlags = StepFlags(),
    format: Form = "terminal",
    json: Flag = False,
    verbose: Verbose = False,
    command_line: CommandLine = "",
) -> int:
    """Predict strategies on a device: peak memory, host memory, step time. Nothing is run.

    The step is traced and each plan is simulated, for this machine's arena or for a device that
    one does not have. The exit status is 3 where no plan of a strategy reaches its budget. Unless
    --strategy is given, it is original,checkpoints,lms,ome.

    Parameters
    ----------
    format
        csv has all figures, in bytes and seconds.
    json
        Print the predictions to stdout as JSON, and no table.
    """
    check_form(format, json)
    foresight = foresee(step, default=DEFAULT_STRATEGIES, verbose=verbose)
    predictions = _predict_all(foresight, apart=not verbose)
    if json:
        show_json(predictions)
    else:
        simulator = Simulator(foresight.graph, foresight.target)
        told = foresight.target, simulator.assumed, simulator.unasked
        show([to_sheet(predictions, *told, command=command_line)], format)
    return 3 if any(each.status == "infeasible" for each in predictions) else 0


def summary(
    *,
    step: StepFlags = StepFlags(),
    by: By = "layer",
    top: int | None = None,
    format: Form = "terminal",
    verbose: Verbose = False,
    command_line: CommandLine = "",
) -> int:
    """Show a step's memory by layer, and who stands at the peak.

    Weights, optimizer slots, activations, scratch, predicted; nothing is run. Unless --strategy
    is given, the step is as it came.

    Parameters
    ----------
    by
        layer, or source: the line of the program that made it.
    top
        Only so many rows, those that hold most at the peak.
    format
        csv has all rows, in bytes.
    """
    if top is not None and top < 1:
        raise MemtradeError(f"--top must be at least 1, not {top}")
    foresight = foresee(step, default=("original",), verbose=verbose)
    sheets = []
    for spec in foresight.specs:
        plan = foresight.plan(spec)
        name = f"{step_text(spec)}, {strategy_label(spec)}"
        found = summarize(name, foresight.graph, foresight.target, plan, by)
        width = stdout().width if format == "terminal" else None
        sheets.append(found.sheet(top, width=width, command=command_line))
    show(sheets, format)
    return 0


def _predict_all(foresight: Foresight, *, apart: bool) -> tuple[Prediction, ...]:
    """`apart`: in processes, as many as there are cores; their logs are not seen."""
    original = TimeSimulator(foresight.graph, foresight.target).timeline(()).step_seconds
    predictions = []
    with reporting() as reporter, _made(foresight, apart=apart) as made:
        for _ in foresight.in_turn(reporter):
            prediction = next(made)
            if prediction.predicted is not None and original:
                relative = (prediction.predicted.step_seconds or 0.0) / original
                prediction = msgspec.structs.replace(prediction, relative_time=relative)
            predictions.append(prediction)
            reporter.ended(_in_short(prediction))
    return tuple(predictions)


@contextlib.contextmanager
def _made(foresight: Foresight, *, apart: bool) -> Iterator[Iterator[Prediction]]:
    """The predictions, in the order of the strategies."""
    predict, specs = partial(_predict, foresight), foresight.specs
    if not apart or len(specs) == 1:
        yield map(predict, specs)
        return
    children = min(len(specs), usable_cores())
    alone = signal.SIGINT, signal.SIG_IGN  # Ctrl-C is the parent's: it ends its children
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once, for all of them
    with context.Pool(children, signal.signal, alone) as pool:
        # Exact programmes, which take longest, stand last among the strategies.
        made = [pool.apply_async(predict, (spec,)) for spec in reversed(specs)]
        yield (each.get() for each in reversed(made))


def _predict(foresight: Foresight, spec: TrialSpec) -> Prediction:
    made = partial(Prediction, label=strategy_label(spec), spec=spec)
    try:
        plan = foresight.plan(spec)
    except InfeasibleBudgetError as error:
        return made(status="infeasible", reason=str(error), floor_bytes=error.needed_bytes)
    except UnsupportedGraphError as error:
        return made(status="unsupported", reason=str(error))
    predicted = Predictor(foresight.graph, foresight.target).predict(plan)
    return made(status="ok", predicted=predicted, plan=PlanSummary.of(plan, foresight.graph))


def _in_short(prediction: Prediction) -> str:
    if prediction.predicted is None:
        return f"{prediction.status}: {prediction.reason}"
    peak, took = prediction.predicted.peak_text, prediction.predicted.step_seconds
    step = "" if took is None else f", {seconds(took)} s a step"
    return f"predicted peak {peak} MB{step}"
