"""Examples in docstrings, as doctest runs them, are shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

# From the first prompt to the blank line behind what it prints.
_EXAMPLE = re.compile(r"^( *)>>> (?:.+\n?)+", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts fences around them, before mkdocstrings reads the docstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    return _EXAMPLE.sub(
        lambda found: f"{found[1]}```pycon\n{found[0].rstrip()}\n{found[1]}```\n", text
    )
