"""What a worker does first: tie its life to its parent's, and listen to it.

The tie is best effort and for Linux; elsewhere it does nothing, and the parent's time limit and
kill remain.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

# Says something to the parent: one line of JSON, which has no NaN and no infinity but null.
Say = Callable[[msgspec.Struct], None]

# The variable in which the parent tells its own process id.
PARENT_VARIABLE = "MEMTRADE_PARENT_PID"

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def become_child() -> None:
    """Makes this process die with its parent, and the first that the kernel's OOM killer takes.

    The kernel sends the death signal when the thread that started this process ends.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None and os.getppid() != int(parent):
        os._exit(1)  # it died before the line above


def talk() -> tuple[bytes, Say]:
    """What the parent asks on standard input, and what answers it."""
    # TensorFlow and its libraries may write to standard output: answers get a descriptor of their
    # own, and whatever else is printed goes to the log.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(said: msgspec.Struct) -> None:
        answers.write(msgspec.json.encode(said) + b"\n")

    return sys.stdin.buffer.read(), say
