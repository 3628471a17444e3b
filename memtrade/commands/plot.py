"""`memtrade plot`: the records of a folder as a plot for paper. Only reads."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from matplotlib.figure import Figure as Canvas

from memtrade.commands.progress import say
from memtrade.commands.reading import picture_format, read_records, read_searches, write_output
from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.measure.records import Record
from memtrade.papers.thesis import conditions, figures_beside, machines_text, max_batches_beside
from memtrade.results.figures import SOURCES, Source
from memtrade.results.paper import render
from memtrade.results.plots import depth_plot, max_batch_plot, trade_plot
from memtrade.results.series import Quantity, by_depth, depth_panels, trade_panels

plot = App(name="plot", help="Plot records: a file in PDF, SVG or PNG, by the suffix of --output.")

Results = Annotated[Path, Parameter(help="A folder of records.")]
OutputFile = Annotated[Path, Parameter(help="The file to write: .pdf, .svg or .png.")]
BatchSize = Annotated[
    int | None,
    Parameter(
        help="Records of this batch size. Unless given: the one that was measured at most depths."
    ),
]
Sources = Annotated[list[Source] | None, Parameter(negative="", consume_multiple=False)]
DepthSources = Annotated[
    Sources,
    Parameter(
        help="published, measured or predicted; repeatable. Unless given: published and measured."
    ),
]
NoCaption = Annotated[
    bool, Parameter(negative="", help="Leave out the line that says where the figures come from.")
]

_PUBLISHED = "published: the thesis, memtrade/papers/published"


def _by_depth_command(quantity: Quantity, what: str) -> Callable[..., int]:
    """Adds the command that plots a quantity by depth."""

    @plot.command(
        name=quantity, help=f"{what} by depth, a line per strategy: published beside measured."
    )
    def command(
        results: Results = Path("runs"),
        /,
        *,
        output: OutputFile,
        batch_size: BatchSize = None,
        source: DepthSources = None,
        no_caption: NoCaption = False,
    ) -> int:
        kind = picture_format(output)
        sources: list[Source] = source or ["published", "measured"]
        records = read_records(results)
        chosen = by_depth(figures_beside(records), batch_size=batch_size)
        panels = depth_panels(chosen, quantity, sources=sources)
        drawn = {panel.source for panel in panels}
        if source is None and "published" not in drawn:
            say(f"nothing was published of the steps in {str(results)!r}: measured ones are alone")
            sources = ["measured"]
        if missing := [each for each in sources if each not in drawn]:
            if missing[0] == "published":
                raise MemtradeError(
                    f"nothing was published of the steps in {str(results)!r}: --source measured "
                    "plots them alone"
                )
            raise MemtradeError(
                f"there is nothing {missing[0]} to plot by depth in {str(results)!r}: "
                "make it: memtrade run --layers 18; or choose with --source"
            )
        family, size = chosen[0].family, chosen[0].batch_size
        plotted = [each for each in records if each.spec.model == family
                   and each.spec.model_options.get("batch_size") == size]  # fmt: skip
        caption = "" if no_caption else _caption(plotted, sources, batch_size=size)
        return _write(output, depth_plot(panels, quantity, caption=caption), kind)

    return command


peak = _by_depth_command("peak", "Peak memory")
time = _by_depth_command("time", "Step time")


@plot.command
def pareto(
    results: Results = Path("runs"),
    /,
    *,
    output: OutputFile,
    step: str | None = None,
    source: Sources = None,
    no_caption: NoCaption = False,
) -> int:
    """Memory against time, a panel per step and a point per strategy.

    Parameters
    ----------
    step
        Only this model, such as resnet-50.
    source
        published, measured or predicted; repeatable. Unless given: measured.
    """
    kind = picture_format(output)
    sources = source or ["measured"]
    records = read_records(results)
    figures = figures_beside(records)
    if step is not None:
        names = {figure.model for figure in figures if figure.source in sources}
        if step not in names:
            raise UnknownNameError("step", step, names)
        figures = [figure for figure in figures if figure.model == step]
    panels = trade_panels(figures, sources=sources)
    if not panels:
        raise MemtradeError(
            f"no step has been run with two strategies in {str(results)!r}: there is nothing to "
            "weigh up. Run another one: memtrade run --strategy checkpoints"
        )
    caption = "" if no_caption else _caption(records, sources)
    return _write(output, trade_plot(panels, caption=caption), kind)


@plot.command
def max_batch(
    results: Results = Path("runs"), /, *, output: OutputFile, no_caption: NoCaption = False
) -> int:
    """The largest batch under a memory limit, a bar per strategy: published beside measured."""
    kind = picture_format(output)
    records, searches = read_records(results), read_searches(results)
    batches = [b for b in max_batches_beside(searches, records) if b.source != "predicted"]
    if not batches:
        raise MemtradeError(
            f"there is no search for the largest batch in {str(results)!r}: "
            "make one: memtrade max-batch"
        )
    if not searches:
        say(f"no search is in {str(results)!r}, so all bars are published: make one by max-batch")
    measured = [f"measured: {machines_text(searches)}"] if searches else []
    caption = "" if no_caption else _sentences([_PUBLISHED, *measured])
    return _write(output, max_batch_plot(batches, caption=caption), kind)


def _caption(
    records: Sequence[Record], sources: Sequence[Source], *, batch_size: int | None = None
) -> str:
    parts = {
        "published": _PUBLISHED,
        "measured": f"measured: {conditions(records) if records else 'nothing'}",
        "predicted": "predicted: by the simulator, before the step ran" + _afterwards(records),
    }
    texts = [parts[source] for source in SOURCES if source in sources]
    return _sentences([f"batch {batch_size}"] * (batch_size is not None) + texts)


def _afterwards(records: Sequence[Record]) -> str:
    by = sorted({record.predicted_by for record in records if record.predicted_by})
    count = sum(record.predicted_by is not None for record in records)
    return f", but for {count} of {len(records)} afterwards by memtrade {', '.join(by)}" * bool(by)


def _sentences(texts: Sequence[str]) -> str:
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in texts)


def _write(output: Path, canvas: Canvas, kind: str) -> int:
    write_output(output, render(canvas, kind), alone=True)
    return 0
