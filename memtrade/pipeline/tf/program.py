"""A stage's program as its tasks run it."""

from collections.abc import Iterator, Sequence

from memtrade.graph import StepGraph
from memtrade.pipeline.design.schedule import TaskKind
from memtrade.pipeline.design.stages import StageGraph
from memtrade.pipeline.design.work import stage_tasks
from memtrade.plan import Action


class StageProgram:
    """In ids of the whole graph.

    Attributes:
        gradient_of: for each update of a weight, the gradient that it applies, in their order.
    """

    def __init__(self, whole: StepGraph, stage: StageGraph, plan: Sequence[Action]):
        self.whole, self.own = whole, stage.graph
        self.ids = {op.name: op.id for op in whole.ops}
        self.tasks = stage_tasks(stage.graph, plan)
        late = [self._in_whole(action).id for action in self.tasks.backward if action.kind == "run"]
        self.gradient_of = {op: stage.gradient_of[op] for op in late if op in stage.gradient_of}

    def of(self, kind: TaskKind, *, recomputed: bool) -> Iterator[Action]:
        """What a task runs; updates stand for the addition to the accumulator."""
        return map(self._in_whole, self.tasks.of(kind, recomputed=recomputed))

    def _in_whole(self, action: Action) -> Action:
        if action.kind in ("run", "recompute"):
            return Action(action.kind, self.ids[self.own.ops[action.id].name])
        t = self.own.tensors[action.id]
        op = self.whole.ops[self.ids[self.own.ops[t.op].name]]
        return Action(action.kind, op.outputs[t.index])
