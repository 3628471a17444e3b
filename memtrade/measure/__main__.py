"""The child processes: `python -m memtrade.measure`, which runs a trial, and with a word more

ask             asks kernels
stage, drive    a stage of a pipelined trial, and who drives them
"""

import sys

from memtrade.measure.child import become_child, talk


def main(role: str = "trial") -> int:
    # Before the seconds that TensorFlow's import takes, so that no parent is outlived.
    become_child()
    request, say = talk()
    if role == "trial":
        from memtrade.measure import worker

        return worker.main(request, say)
    if role == "ask":
        from memtrade.tf import ask

        return ask.main(request, say)
    from memtrade.pipeline.measure import worker as pipeline_worker

    return pipeline_worker.main(role, request, say)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
