"""memtrade: what each memory-saving strategy costs a TensorFlow training step.

Importing this package imports no TensorFlow: the parent process of a measurement stays free of it.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

__all__ = ["apply", "keras"]


def __getattr__(name: str) -> Any:
    """`memtrade.apply` and `memtrade.keras`, which import TensorFlow when they are first used.

    By importlib: an import statement here would tell import-linter that whatever imports this
    package imports TensorFlow.
    """
    if name == "apply":
        return importlib.import_module("memtrade.api").apply
    if name == "keras":
        return importlib.import_module("memtrade.keras")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
