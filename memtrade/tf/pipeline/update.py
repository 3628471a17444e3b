"""The end of a step: the mean loss, and one update of the variables by the mean gradients."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from memtrade.pipeline.batch_norm import MovingAverage
from memtrade.tf.pipeline.nodes import NodeWriter, output
from memtrade.tf.pipeline.program import Program
from memtrade.tf.pipeline.state import StageState


class StepEnd:
    """Writes what follows the last task of each stage.

    Args:
        micro_batches: over which means are taken.
        averages: batch norm's moving averages, if they move once per step.
    """

    def __init__(
        self,
        writer: NodeWriter,
        state: StageState,
        micro_batches: int,
        averages: Sequence[MovingAverage],
    ):
        self.writer, self.state = writer, state
        self.micro_batches, self.averages = micro_batches, averages
        self._means: dict[int, str] = {}  # of the whole batch, by the tensor of a micro-batch's

    def mean_loss(self, stage: int, losses: Sequence[str]) -> str:
        """The mean of the micro-batches' losses."""
        dtype = self.state.dtype(self.state.graph.loss)
        chain, count = self.writer.chain, len(losses)
        chain(stage, "loss/sum", "AddN", losses, {"T": dtype, "N": count})
        share = self.writer.number(stage, "loss/share", 1 / count, dtype)
        return chain(stage, "loss/mean", "Mul", ["loss/sum", share], {"T": dtype})

    def update(self, stage: int, program: Program) -> str:
        """Runs the step's own updates on the mean gradients, and empties the accumulators. When
        that ended."""
        scope, state = f"stage{stage}/update", self.state
        for op_id, gradient in program.gradient_of.items():
            variable = state.trainable_of(stage, op_id)
            accumulator = state.accumulator(stage, variable)
            mean = self._take_mean(stage, accumulator, state.flat(variable), state.dtype(gradient))
            self._copy(stage, op_id, scope, {gradient: mean})
        for average in self.averages:
            if state.partition.stage_of[average.update] == stage:
                self._move(stage, average, scope)
        for op_id in state.bookkeeping(stage):
            self._copy(stage, op_id, scope, {})
        return self.writer.timestamp(stage, f"{scope}/end")

    def _take_mean(self, stage: int, accumulator: str, flat: str, dtype: tf.DType) -> str:
        """The mean over the micro-batches of what was added up; the sum is 0 again."""
        scope, chain, number = f"stage{stage}/update", self.writer.chain, self.writer.number
        share = number(stage, f"{scope}/share/{dtype.name}", 1 / self.micro_batches, dtype)
        one = number(stage, f"{scope}/one/{dtype.name}", 1, dtype)
        total, copy = f"{scope}/total/{flat}", f"{scope}/copy/{flat}"
        empty, mean = f"{scope}/empty/{flat}", f"{scope}/mean/{flat}"
        # Subtracted from itself, the sum is 0 in its own buffer. A new one would land in
        # another place of the arena, step by step.
        chain(stage, total, "ReadVariableOp", [accumulator], {"dtype": dtype})
        chain(stage, copy, "Mul", [total, one], {"T": dtype})
        chain(stage, empty, "AssignSubVariableOp", [accumulator, copy], {"dtype": dtype})
        return chain(stage, mean, "Mul", [copy, share], {"T": dtype})

    def _move(self, stage: int, average: MovingAverage, scope: str) -> None:
        """Moves an average by the whole batch's mean or variance, over N - 1 as the op's."""
        key, dtype = str(average.update), self.state.dtype(average.mean)
        accumulator = self.state.sum_of(stage, average)
        mean = self._take_mean(stage, accumulator, f"average/{key}", dtype)
        if average.variance is None:
            self._means[average.mean] = mean
            self._copy(stage, average.update, scope, {average.mean: mean})
            return
        chain, attrs = self.writer.chain, {"T": dtype}
        count = average.elements * self.micro_batches
        bessel = count / max(count - 1, 1)
        within = self.writer.number(stage, f"{scope}/bessel/{key}", bessel, dtype)
        middle = self._means[average.mean]
        square = chain(stage, f"{scope}/square/{key}", "Mul", [middle, middle], attrs)
        biased = chain(stage, f"{scope}/biased/{key}", "Sub", [mean, square], attrs)
        variance = chain(stage, f"{scope}/variance/{key}", "Mul", [biased, within], attrs)
        self._copy(stage, average.update, scope, {average.variance: variance})

    def _copy(self, stage: int, op_id: int, scope: str, given: dict[int, str]) -> None:
        """An update, with what it reads that is neither given nor made by the stage's tasks."""
        graph, state = self.state.graph, self.state
        op = graph.ops[op_id]
        if f"{scope}/{op.name}" in self.writer.nodes:
            return
        inputs = []
        for t in op.inputs:
            reference = given.get(t) or state.standing(stage, t)
            if reference is None:
                producer = graph.ops[graph.tensors[t].op]
                self._copy(stage, producer.id, scope, given)
                reference = output(f"{scope}/{producer.name}", graph.tensors[t].index)
            inputs.append(reference)
        like = state.sources[op.name]
        self.writer.pin(stage, self.writer.add(stage, f"{scope}/{op.name}", "", inputs, like=like))
