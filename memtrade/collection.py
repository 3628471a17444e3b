"""Python's garbage collector, out of the way of what makes many objects that stay."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """To look for cycles among a graph's ops, or a plan's rows, while they are being made takes up
    to a third of the time, and finds none. Works as a decorator, too."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on and gc.get_freeze_count() == 0:
            # All that was made counts as old, or the next collection would look through it at once.
            gc.freeze()
            gc.unfreeze()
        if was_on:
            gc.enable()


@contextlib.contextmanager
def old_set_aside() -> Iterator[None]:
    """Whoever collects meanwhile looks through what was made meanwhile: all else takes a quarter of
    a second each time where TensorFlow is loaded. What nobody holds by now goes first. Works as a
    decorator, too."""
    ours = gc.get_freeze_count() == 0
    if ours:
        gc.collect()
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()
