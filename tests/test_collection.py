"""Python's garbage collector stays out of the way, and is as it was afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from memtrade.collection import without_collection


@without_collection()
def fail() -> None:
    raise ValueError(f"off meanwhile: {not gc.isenabled()}")


@pytest.mark.parametrize("was_on", [True, False])
def test_it_is_as_it_was_whatever_ends_it(was_on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(ValueError, match="off meanwhile: True"):
            fail()
        assert gc.isenabled() == was_on
    finally:
        (gc.enable if before else gc.disable)()


def test_what_is_old_is_set_aside_while_what_is_new_is_collected() -> None:
    """In a process of its own: this one may have frozen objects, which stay frozen."""
    script = """
import gc, weakref
from memtrade.collection import old_set_aside
class Node: pass
def circle():
    one = Node(); one.itself = one
    return weakref.ref(one)
gc.disable()
before = circle()
with old_set_aside():
    assert before() is None and gc.get_freeze_count() > 1000
    with old_set_aside():
        made = circle()
        gc.collect()
        assert made() is None
    assert gc.get_freeze_count() > 1000
assert gc.get_freeze_count() == 0
gc.freeze()
with old_set_aside():
    pass
assert gc.get_freeze_count() > 1000
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_is_looked_through_at_the_end_and_cycles_are_found_later() -> None:
    """In a process of its own: this one may have frozen objects, which stay frozen."""
    script = """
import gc, weakref
from memtrade.collection import without_collection
class Node: pass
generations = []
gc.callbacks.append(lambda phase, info: phase == "start" and generations.append(info["generation"]))
with without_collection():
    kept = [[i] for i in range(100_000)]
    one = Node(); one.itself = one; seen = weakref.ref(one); del one
[[i] for i in range(50)]
assert generations == [], generations
gc.collect()
assert seen() is None
assert gc.get_freeze_count() == 0
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
