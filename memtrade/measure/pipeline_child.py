"""A process of a pipelined trial: `python -m memtrade.measure.pipeline_child stage|drive`."""

import sys

from memtrade.measure.child import become_child


def main() -> int:
    # Before the seconds that TensorFlow's import takes, so that no parent is outlived.
    become_child()
    from memtrade.measure import pipeline_worker

    return pipeline_worker.main(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
