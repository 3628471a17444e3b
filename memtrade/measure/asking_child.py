"""The child process that asks kernels: `python -m memtrade.measure.asking_child`."""

import sys

from memtrade.measure.child import become_child


def main() -> int:
    # Before the seconds that TensorFlow's import takes, so that no parent is outlived.
    become_child()
    from memtrade.tf import ask

    return ask.main()


if __name__ == "__main__":
    sys.exit(main())
