"""What is said of a child that ended without its last word."""

from __future__ import annotations

import math
import os
import signal
from types import SimpleNamespace
from typing import Any, cast

from memtrade.measure.children import Child, supervise


def ended(code: int, *log: str) -> tuple[str, str]:
    process: Any = SimpleNamespace(returncode=code)
    child = Child(process)
    child.log.extend(log)
    return child.how_it_ended(" in step 1", oom_killed=False)


def test_a_kernel_that_trips_over_memory_it_did_not_get_is_out_of_memory():
    refused = "ran out of memory trying to allocate 9.00MiB (rounded to 9437184)requested by op "
    line = f"2026-01-02 W bfc_allocator.cc:501] Allocator (cpu) {refused}"
    assert ended(-signal.SIGSEGV, line) == ("out_of_memory", refused)
    assert ended(-signal.SIGSEGV, "else")[0] == "crashed"


def test_a_step_that_fails_says_its_own_words():
    status, reason = ended(
        1,
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:",
        "assertion failed: [the loss is not finite]",
        "\t [[{{node assert_less/Assert/AssertGuard/Assert}}]] [Op:__inference_step_13]",
    )
    assert status == "crashed"
    assert reason == "exit code 1 in step 1: assertion failed: [the loss is not finite]"


def test_what_a_child_says_just_before_its_end_is_heard():
    """Between the look at its pipes, which are empty, and the one at the process."""
    reading, writing = os.pipe()
    heard: list[bytes] = []

    def poll() -> int:
        os.write(writing, b"the last word\n")
        return 0

    with os.fdopen(reading, "rb", 0) as stdout, os.fdopen(writing, "wb", 0):
        child = Child(cast("Any", SimpleNamespace(stdout=stdout, stderr=None, poll=poll)))
        listener = SimpleNamespace(
            take_event=lambda child, line: heard.append(line),
            has_enough=lambda *, quiet: quiet and child.has_ended,
        )
        assert supervise([child], cast("Any", listener), deadline=math.inf)
    assert heard == [b"the last word"]
