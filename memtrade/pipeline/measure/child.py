"""A process of a pipelined trial: `python -m memtrade.pipeline.measure.child stage|drive`."""

import sys

from memtrade.measure.child import become_child


def main() -> int:
    # Before the seconds that TensorFlow's import takes, so that no parent is outlived.
    become_child()
    from memtrade.pipeline.measure import worker

    return worker.main(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
