"""One step of the corpus in a child of its own: what it takes as it is, or rewritten.

In an arena, as `memtrade run` has it, so that TensorFlow's allocator says the peaks. Nothing else
runs there before it has been measured. Importing this starts nothing of TensorFlow's, so that the
process may be forked.
"""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import memtrade
from memtrade.errors import MemtradeError
from memtrade.tf.device import Arena
from memtrade.tf.laying import laid_down
from memtrade.tf.structure import packed, specs_of, tensors_of
from tests.corpus import CORPUS
from tests.corpus.running import ITSELF, differing, differs_itself, flat

LIMIT_BYTES = 3 << 30
ORIGINAL = "original"
WARMUP, COUNTED = 1, 3

Row = dict[str, Any]


def run(name: str, strategy: str, given: dict[str, Any], to: Any) -> None:
    """Sends a row `to` a connection: of the step as it is (ORIGINAL), or as a strategy makes it,
    whose options are `given`."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    arena = Arena(LIMIT_BYTES)
    arena.start()
    log = logging.getLogger("memtrade")
    log.setLevel(logging.INFO)
    foreseen = _Foreseen()
    log.addHandler(foreseen)
    with laid_down():
        step, batch = made(name)
        begun = time.perf_counter()
        step.get_concrete_function(*batch)
    row: Row = {"trace_seconds": time.perf_counter() - begun}
    if strategy == ORIGINAL:
        row["peak_bytes"], row["seconds"] = _measured(arena, step, batch)
        row["rest_bytes"] = arena.in_use_bytes()
        to.send(row)
        return
    begun = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            lean = memtrade.apply(step, batch, strategy, **given)
    except MemtradeError as error:
        row |= {"outcome": type(error).__name__, "said": str(error)}
        row["needed_bytes"] = getattr(error, "needed_bytes", "")
    except Exception as error:
        row |= {"outcome": "raw exception", "said": repr(error)[:300]}
    else:
        row["apply_seconds"] = time.perf_counter() - begun
        ours = [str(each.message) for each in said if each.category is UserWarning]
        left = any("runs as it is" in text for text in ours)
        row |= {"outcome": "as it is" if left else "rewritten", "said": "; ".join(ours)}
        row["peak_bytes"], row["seconds"] = _measured(arena, lean, batch)
        row |= {
            "equal": _is_equal(step, lean, batch),
            "predicted_bytes": foreseen.peak_bytes,
            "told_bytes": foreseen.told_peak_bytes,
            "predicted_original_bytes": foreseen.original_bytes,
            "bound": foreseen.bound,
        }
    to.send(row)


def made(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A step and its batch, which goes through host memory as first values of variables do: what
    computing it took leaves holes into which later tensors go, padded."""
    step, batch = CORPUS[name]()
    specs, parts = specs_of(batch), tensors_of(batch)
    places = [next(i for i, each in enumerate(parts) if each is part) for part in parts]
    kept = [(tf.io.serialize_tensor(part), part.dtype) for part in parts]
    del batch, parts
    laid = {i: tf.io.parse_tensor(*kept[i]) for i in dict.fromkeys(places)}
    return step, packed(specs, [laid[i] for i in places])


def _is_equal(step: Any, lean: Any, batch: tuple[Any, ...]) -> bool | str:
    if not differing(step, lean, batch):
        return True
    return ITSELF if differs_itself(step, batch) else False


class _Foreseen(logging.Handler):
    """What `memtrade.apply` predicted last: between `told_peak_bytes` and `peak_bytes`."""

    peak_bytes: int | None = None
    told_peak_bytes: int | None = None
    original_bytes: int | None = None
    bound = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.peak_bytes = getattr(record, "peak_bytes", None)
        self.told_peak_bytes = getattr(record, "told_peak_bytes", None)
        self.original_bytes = getattr(record, "original_bytes", None)
        self.bound = getattr(record, "bound", "")


def _measured(arena: Arena, step: Callable[..., Any], batch: tuple[Any, ...]) -> tuple[int, float]:
    """The highest peak of several steps, and the median time of all but the first."""
    peaks, times = [], []
    for _ in range(WARMUP + COUNTED):
        arena.reset_peak()
        begun = time.perf_counter()
        returned = step(*batch)
        peaks.append(arena.peak_bytes())
        flat(returned).numpy()
        times.append(time.perf_counter() - begun)
        del returned  # what a caller keeps is not the step's
    return max(peaks), statistics.median(times[WARMUP:])
