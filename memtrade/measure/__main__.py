"""The child process of a trial: `python -m memtrade.measure`."""

import sys

from memtrade.measure.child import become_child


def main() -> int:
    # Before the seconds that TensorFlow's import takes, so that no parent is outlived.
    become_child()
    from memtrade.measure import worker

    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
