"""One step of the corpus in a child of its own: what it takes as it is, and rewritten.

In an arena, as `memtrade run` has it, so that TensorFlow's allocator says the peaks. The original
and the rewritten steps run one after the other, each several times. Importing this starts nothing
of TensorFlow's, so that the process may be forked.
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
from tests.corpus import CORPUS
from tests.corpus.running import differing, flat

LIMIT_BYTES = 3 << 30
SHARE = 0.6  # the budget of `optimal`, of the original's peak
WARMUP, COUNTED = 1, 3

Row = dict[str, Any]


def run(name: str, to: Any) -> None:
    """Sends a row for each strategy `to` a connection."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    arena = Arena(LIMIT_BYTES)
    arena.start()
    log = logging.getLogger("memtrade")
    log.setLevel(logging.INFO)
    foreseen = _Foreseen()
    log.addHandler(foreseen)
    with laid_down():
        step, batch = CORPUS[name]()
        begun = time.perf_counter()
        step.get_concrete_function(*batch)
    traced = time.perf_counter() - begun
    original_bytes, original_seconds = _measured(arena, step, batch)
    settings: dict[str, dict[str, Any]] = {
        "ome": {},
        "optimal": {"budget": int(SHARE * original_bytes)},
    }
    for strategy, given in settings.items():
        row: Row = {
            "step": name,
            "strategy": strategy,
            "trace_seconds": traced,
            "original_bytes": original_bytes,
            "original_seconds": original_seconds,
        }
        foreseen.peak_bytes = None
        begun = time.perf_counter()
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                lean = memtrade.apply(step, batch, strategy, **given)
        except MemtradeError as error:
            row |= {"outcome": type(error).__name__, "said": str(error)}
        except Exception as error:
            row |= {"outcome": "raw exception", "said": repr(error)[:300]}
        else:
            row["apply_seconds"] = time.perf_counter() - begun
            ours = [str(each.message) for each in said if each.category is UserWarning]
            left = any("runs as it is" in text for text in ours)
            row |= {"outcome": "as it is" if left else "rewritten", "said": "; ".join(ours)}
            peak_bytes, seconds = _measured(arena, lean, batch)
            row |= {
                "equal": not differing(step, lean, batch),
                "peak_bytes": peak_bytes,
                "seconds": seconds,
                "predicted_bytes": foreseen.peak_bytes,
                "predicted_original_bytes": foreseen.original_bytes,
            }
        to.send(row)


class _Foreseen(logging.Handler):
    """What `memtrade.apply` predicted last."""

    peak_bytes: int | None = None
    original_bytes: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.peak_bytes = getattr(record, "peak_bytes", None)
        self.original_bytes = getattr(record, "original_bytes", None)


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
    return max(peaks), statistics.median(times[WARMUP:])
