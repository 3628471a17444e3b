"""The end of a step: the mean loss, and one update of the variables by the mean gradients."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from memtrade.pipeline.design.batch_norm import MovingAverage
from memtrade.pipeline.tf.nodes import NodeDef, NodeWriter, output
from memtrade.pipeline.tf.state import StageState


@dataclass
class StepEnd:
    """Writes what follows the last task of each stage.

    Args:
        micro_batches: over which means are taken.
        averages: batch norm's moving averages, if they move once per step.
    """

    writer: NodeWriter
    state: StageState
    micro_batches: int
    averages: Sequence[MovingAverage]
    _means: dict[int, str] = field(default_factory=dict)  # of the batch, by a micro-batch's tensor

    def mean_loss(self, stage: int) -> str:
        """The mean of the micro-batches' losses, apart from the stage's order."""
        dtype = self.state.dtype(self.state.graph.loss)
        nodes = self._mean(stage, self.state.loss_sum(stage), f"stage{stage}/loss", dtype)
        return nodes[-1].name

    def update(self, stage: int, gradient_of: Mapping[int, int]) -> None:
        """Runs the step's own updates on the mean gradients, and empties the accumulators.

        Args:
            gradient_of: for each update of a weight, the gradient that it applies.
        """
        scope, state = f"stage{stage}/update", self.state
        for op_id, gradient in gradient_of.items():
            variable = state.trainable_of(stage, op_id)
            accumulator = state.accumulator(stage, variable)
            mean = self._take_mean(stage, accumulator, state.flat(variable), state.dtype(gradient))
            self._copy(stage, op_id, scope, {gradient: mean})
        for average in self.averages:
            if state.partition.stage_of[average.update] == stage:
                self._move(stage, average, scope)
        for op_id in state.bookkeeping(stage):
            self._copy(stage, op_id, scope, {})

    def _take_mean(self, stage: int, accumulator: str, flat: str, dtype: tf.DType) -> str:
        nodes = self._mean(stage, accumulator, f"stage{stage}/update/{flat}", dtype)
        self.writer.chain_group(stage, nodes)
        return nodes[-1].name

    def _mean(self, stage: int, accumulator: str, scope: str, dtype: tf.DType) -> list[NodeDef]:
        """The mean over the micro-batches of what was added up; the sum is 0 again."""
        of = f"stage{stage}/{dtype.name}"
        share = self.writer.number(stage, f"{of}/share", 1 / self.micro_batches, dtype)
        one = self.writer.number(stage, f"{of}/one", 1, dtype)
        total, copy = f"{scope}/total", f"{scope}/copy"
        add, held, typed = self.writer.add, {"dtype": dtype}, {"T": dtype}
        # Subtracted from itself, the sum is 0 in its own buffer. A new one would land in
        # another place of the arena, step by step.
        nodes = [
            add(stage, total, "ReadVariableOp", [accumulator], held),
            add(stage, copy, "Mul", [total, one], typed),
            add(stage, f"{scope}/empty", "AssignSubVariableOp", [accumulator, copy], held),
            add(stage, f"{scope}/mean", "Mul", [copy, share], typed),
        ]
        for before, node in itertools.pairwise(nodes):
            node.input.append("^" + before.name)
        return nodes

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
        source = state.sources[op.name]
        self.writer.pin(stage, self.writer.add(stage, f"{scope}/{op.name}", source, inputs))
