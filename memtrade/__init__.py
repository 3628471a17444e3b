"""memtrade: what each memory-saving strategy costs a TensorFlow training step.

Importing this package imports no TensorFlow: the parent process of a measurement stays free of it.
"""

import importlib
from typing import Any

__all__ = ["__version__", "apply", "explain_oom", "inspect", "keras", "largest_batch", "summary"]

# Where the library's functions are.
_ROOMS = {
    "apply": "memtrade.api",
    "explain_oom": "memtrade.answers",
    "inspect": "memtrade.answers",
    "largest_batch": "memtrade.batch",
    "summary": "memtrade.answers",
}

__version__: str  # asked of git in a checkout, so only when somebody wants to know


def __getattr__(name: str) -> Any:
    """`__version__`, and the library's functions and `memtrade.keras`, which import TensorFlow when
    they are first used.

    By importlib: an import statement here would tell import-linter that whatever imports this
    package imports TensorFlow.
    """
    if name == "__version__":
        return importlib.import_module("memtrade.version").version()
    if name in _ROOMS:
        return getattr(importlib.import_module(_ROOMS[name]), name)
    if name == "keras":
        return importlib.import_module("memtrade.keras")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
