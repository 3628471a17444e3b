"""A sweep in a process of its own, with the fake worker on a machine with room for 8 trials.

python -m tests.sweep.drive SCRIPT TOKENS...
"""

import signal
import sys
from pathlib import Path

from cyclopts import App

from memtrade.commands.sweep import sweep
from tests.sweep.conftest import make_room
from tests.sweep.workers import use_worker, use_worker_on_nodes

if __name__ == "__main__":
    # What a shell starts in the background ignores Ctrl-C, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    use_worker(Path(sys.argv[1]), setattr)
    use_worker_on_nodes(Path(sys.argv[1]), setattr)
    make_room(setattr)
    sys.exit(App(default_command=sweep)(sys.argv[2:], result_action="return_value"))
