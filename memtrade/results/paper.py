"""The one way to draw for paper: matplotlib's style, sizes and looks, and files that do not change.

The same drawing gives the same file, byte for byte. Strategies differ in colour (Okabe and Ito's),
marker and line, so that a plot printed in grey can still be read.
"""

import io
import re
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from memtrade.results.series import INK, style_of

PAGE_INK = "#1A1A1A"
WIDTH = 7.2  # inches: the text of an A4 page or two columns of a paper are about this wide
PANELS_ABREAST = 4

_MARKERS = "os^DvPX*<>hp"
_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
_CAPTION_CHARACTERS = 132
_LEGEND_ABREAST = 6
_INKED = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color")
_STYLE: Any = {
    **mpl.rc_params_from_file(
        Path(__file__).with_name("templates") / "paper.mplstyle", use_default_template=False
    ),
    **dict.fromkeys(_INKED, PAGE_INK),
}
# What a file would say of the time and the program that wrote it.
_METADATA = {
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


def in_style(*, grid: bool = True) -> AbstractContextManager[None]:
    """Within it, what is drawn looks as all plots do."""
    return mpl.rc_context(_STYLE | {"axes.grid": grid})


def strips_of(heights: Sequence[float], *, height: float) -> tuple[Canvas, list[Axes]]:
    """A canvas of `height` inches, and a strip for each of `heights`, which share it, one below the
    other, with one axis of time."""
    canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
    ratios = {"height_ratios": list(heights)}
    strips = canvas.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw=ratios)
    return canvas, list(strips[:, 0])


def render(canvas: Canvas, kind: str, *, dots_per_inch: int = 300) -> bytes:
    """The plot as a file of one of `FORMATS`."""
    stream = io.BytesIO()
    with in_style():
        canvas.savefig(stream, format=kind, dpi=dots_per_inch, metadata=_METADATA[kind])
    return stream.getvalue()


def canvas_of(panels: int, *, height: float, share_y: bool = False) -> tuple[Canvas, list[Axes]]:
    """A drawing of so many panels, up to four abreast. `height` is in inches."""
    abreast = min(panels, PANELS_ABREAST)
    canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
    grid = canvas.subplots(-(-panels // abreast), abreast, sharey=share_y, squeeze=False)
    axes = list(grid.flat)
    for axis in axes[panels:]:
        axis.remove()
    return canvas, axes[:panels]


def finish(canvas: Canvas, handles: Sequence[Any], caption: str = "") -> None:
    """Adds legend and caption, and fixes the layout."""
    _add_legend(canvas, handles)
    if caption:
        wrapped = textwrap.fill(caption, _CAPTION_CHARACTERS)
        canvas.supxlabel(wrapped, x=0.005, ha="left", fontsize=6.5, color="#555555")
    canvas.draw_without_rendering()
    canvas.set_layout_engine("none")  # each further pass would shift it by a hair


def _add_legend(canvas: Canvas, handles: Sequence[Any]) -> None:
    """At the top, with as many entries abreast as fit."""
    for columns in range(min(len(handles), _LEGEND_ABREAST), 0, -1):
        legend = canvas.legend(
            handles=handles, loc="outside upper left", ncols=columns, columnspacing=1.4
        )
        if columns == 1 or legend.get_window_extent().width <= canvas.bbox.width:
            return
        legend.remove()


def broken(text: str, width: int) -> str:
    """`text` on lines of `width` characters, broken at spaces; longer words behind "_", "=" or ":".

    >>> broken("optimal\\n(host_memory_limit=11GB time_limit=60.0)", 16).splitlines()
    ['optimal', '(host_memory_', 'limit=11GB', 'time_limit=60.0)']
    """
    lines: list[str] = []
    for line in text.split("\n"):
        lines.append("")
        for word in line.split():
            pieces = [word] if len(word) <= width else re.findall(r"[^_=:]+[_=:]*", word)
            for i, piece in enumerate(pieces):
                joined = f"{lines[-1]} {piece}" if lines[-1] and i == 0 else lines[-1] + piece
                if lines[-1] and len(joined) > width:
                    lines.append(piece)
                else:
                    lines[-1] = joined
    return "\n".join(lines)


def line_look(strategy: str, seen: dict[str, int]) -> dict[str, Any]:
    """The look of the next line of a strategy; `seen` counts those drawn before it.

    Every other one has hollow marks.
    """
    style = style_of(strategy)
    count = seen.setdefault(strategy, 0)
    seen[strategy] += 1
    colour = colour_of(style.colour)
    hollow = count % 2 == 1
    return {
        "color": colour,
        "marker": _MARKERS[style.position % len(_MARKERS)],
        # What is drawn later is dashed and smaller, so that what lies below shows through.
        "markersize": max(6.5 - 0.7 * style.position, 3.8),
        "linestyle": _DASHES[(style.position + count) % len(_DASHES)],
        "markerfacecolor": "white" if hollow else colour,
        "markeredgecolor": colour if hollow else "white",
        "markeredgewidth": 1.0 if hollow else 0.6,
    }


def colour_of(colour: str) -> str:
    return PAGE_INK if colour == INK else colour
