"""plotly's figures in pages that need no network: plotly.js comes along, packed."""

import base64
import gzip
from functools import cache
from typing import Any

from markupsafe import Markup

from memtrade.results.sheets import templates


@cache
def packed_plotly() -> Markup:
    """What a page says once, before its first drawing: 2 MB, of which plotly.js alone has 4.8."""
    from plotly.offline import get_plotlyjs  # slow to import, and only pages need it

    packed = base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
    return Markup(templates().get_template("plotly.html").render(packed=packed))


def drawn(figure: Any, name: str) -> Markup:
    """The place of a figure in a page, and what draws it there in the page's colours.

    Args:
        figure: of plotly.
        name: of the element; in a page, one for each.
    """
    page = templates().get_template("drawing.html")
    return Markup(page.render(name=name, figure=within_script(figure.to_json())))


def within_script(data: str) -> Markup:
    """JSON for a script element, which a "<" could end, or in which it could open a comment."""
    return Markup(data.replace("<", "\\u003c"))
