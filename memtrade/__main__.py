"""`memtrade`, and `python -m memtrade` for where its script is not on the path."""

import os
import signal
import sys
from collections.abc import Sequence


def main(tokens: Sequence[str] | None = None, *, typed: Sequence[str] = ()) -> int:
    """`memtrade.cli.main`, and Ctrl-C ends the process at once while modules are imported: nothing
    has begun by then, and an exception may come out of an import as another, or not at all."""
    before = signal.getsignal(signal.SIGINT)

    def restore() -> None:
        signal.signal(signal.SIGINT, before)

    if before is signal.default_int_handler:  # else it is ignored, as by nohup
        signal.signal(signal.SIGINT, _stop)
    from memtrade import cli

    return cli.main(tokens, typed=typed, on_begin=restore)


def _stop(number: int, frame: object) -> None:
    try:
        os.write(2, b"memtrade: stopped\n")
    finally:
        os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
