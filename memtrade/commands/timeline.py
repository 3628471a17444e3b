"""`memtrade timeline`: memory over the step, who holds what at the peak, copies beside compute."""

from pathlib import Path

from memtrade.commands.profiles import foresee, simulate_all
from memtrade.commands.reading import picture_format, write_output
from memtrade.measure.flags import CommandLine, StepFlags, Verbose
from memtrade.results.paper import render
from memtrade.results.simulated import Bands
from memtrade.results.timeline import Timelines, timeline_plot, to_html
from memtrade.results.words import step_text


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
    timelines = Timelines(
        step=step_text(foresight.specs[0]),
        device=foresight.target.device,
        limit_bytes=foresight.target.limit_bytes,
        strips=tuple(simulate_all(foresight)),
        by=by,
        command=command_line,
    )
    html = kind == "html"
    page = to_html(timelines).encode() if html else render(timeline_plot(timelines), kind)
    write_output(output, page, alone=True)
    return 0
