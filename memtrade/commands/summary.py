"""`memtrade summary`: which layer holds how much."""

from memtrade.commands.profiles import foresee
from memtrade.commands.screen import Form, show
from memtrade.errors import MemtradeError
from memtrade.measure.flags import CommandLine, StepFlags, Verbose
from memtrade.results.layers import summarize
from memtrade.results.words import step_text, strategy_label
from memtrade.simulate.by_layer import By


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
        sheets.append(found.sheet(top, command=command_line))
    show(sheets, format)
    return 0
