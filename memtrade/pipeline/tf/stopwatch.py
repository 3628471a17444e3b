"""When tasks begin and end: looks at the clock, written into one vector of each stage.

    now ─► times[count], count += 1

Kept one by one until the step has ended, they would cut the arena's free memory into pieces. They
lie in host memory: what a look takes of an arena, it gives back at once. They are counted by a
variable, since a constant for the place of each would stay there, too.
"""

import tensorflow as tf

from memtrade.pipeline.design.schedule import Schedule
from memtrade.pipeline.tf.nodes import NodeWriter
from memtrade.pipeline.tf.state import StageState


class Stopwatch:
    """Writes the looks. Each stage looks twice for each of its tasks, and when it has updated."""

    def __init__(self, writer: NodeWriter, state: StageState, schedule: Schedule):
        self.writer = writer
        self._looks = [2 * len(own) for own in schedule.tasks]
        self._times, self._counts = [], []
        for stage, looks in enumerate(self._looks):
            name = f"stage{stage}/times"
            self._times.append(state.zeros(stage, name, [looks + 1], tf.float64, on_host=True))
            name = f"stage{stage}/count"
            self._counts.append(state.zeros(stage, name, [], tf.int32, on_host=True))

    def look(self, stage: int, name: str) -> str:
        """The time behind the stage's last op. The op that tells it."""
        now = self._chain(stage, name, "Timestamp", [], {})
        count = [self._counts[stage]]
        at = self._chain(stage, f"{name}/at", "ReadVariableOp", count, {"dtype": tf.int32})
        self._write(stage, at, now)
        self._count(stage, f"{name}/count", "AssignAddVariableOp", 1)
        return now

    def restart(self, stage: int) -> str:
        """Behind the last task: the next step writes over this one's. The op that does it."""
        by = self._looks[stage]
        return self._count(stage, f"stage{stage}/restart", "AssignSubVariableOp", by)

    def end(self, stage: int) -> str:
        """The time behind the update, which follows all tasks. The op that writes it."""
        now = self._chain(stage, f"stage{stage}/update/end", "Timestamp", [], {})
        return self._write(stage, self._number(stage, self._looks[stage]), now)

    def times(self, stage: int) -> str:
        """All looks of the step before, in order, in seconds."""
        name, attrs = f"stage{stage}/seconds", {"dtype": tf.float64}
        inputs = [self._times[stage]]
        return self.writer.add(stage, name, "ReadVariableOp", inputs, attrs, on_host=True).name

    def _write(self, stage: int, at: str, now: str) -> str:
        attrs = {"dtype": tf.float64, "Tindices": tf.int32}
        inputs = [self._times[stage], at, now]
        return self._chain(stage, f"{now}/write", "ResourceScatterUpdate", inputs, attrs)

    def _count(self, stage: int, name: str, op: str, by: int) -> str:
        inputs = [self._counts[stage], self._number(stage, by)]
        return self._chain(stage, name, op, inputs, {"dtype": tf.int32})

    def _number(self, stage: int, number: int) -> str:
        name = f"stage{stage}/number{number}"
        return self.writer.number(stage, name, number, tf.int32, on_host=True)

    def _chain(
        self, stage: int, name: str, op: str, inputs: list[str], attrs: dict[str, tf.DType]
    ) -> str:
        return self.writer.chain(stage, name, op, inputs, attrs, on_host=True)
