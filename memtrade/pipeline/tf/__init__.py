"""A pipelined training step as one TensorFlow graph, its stages on devices of their own.

    stage 0   batch ─ F0 ─ F1 ─ ─ ─ ─ ─ ─ R1 B1 ─ R0 B0 ─ update
                       │send  │send         ▲      ▲                 F forward, R recompute,
    stage 1            └► F0  └► F1 ─ R1 B1 ┘ R0 B0┘ ─ update        B backward, of micro-batch i

The loop over micro-batches is unrolled: each task of the schedule is a copy of the stage's ops, and
a session runs the graph once per step. TensorFlow cuts it by device and moves what crosses through
its own rendezvous, between devices of one process or between `tf.distribute.Server`s over gRPC.

Why one graph and not functions placed on remote devices. A function holds its arguments until it
returns, so a backward function would hold all residuals of its micro-batch to its end; and eager
remote tensors live as long as Python's references to them. In a graph a tensor is free after its
last reader, wherever that is. On each stage control edges put all ops in one total order, the
simulator's base order of the stage (`pipeline.design.stages`), so the peak of a stage is the same
in every step, and what the simulator walked is what runs.

Recomputation. The forward task of a recomputed micro-batch keeps nothing but what it received.
The stateful ops (moving averages, random numbers) run in it alone: a recomputation reads again what
they made.

Swapping, and recomputation within a stage: a plan of the stage's graph, by any strategy, stands in
place of the order. Its forward part runs as the forward task, its backward part as the backward
task, for each micro-batch; of a micro-batch that the schedule recomputes, the forward task keeps
nothing, and the plan's whole program runs later.

Batch norm normalizes by micro-batch, and moves its averages for each of them. Deferred, it moves
them once per step, by the whole batch's mean and variance (`pipeline.design.batch_norm`).

One update per step: gradients are added up in variables, and the step's own update ops run on
their mean behind the stage's last task. For a loss that is the mean over independent examples that
is the unpipelined step's update, but for the order of additions.

    builder.py   the tasks: copies of a stage's ops, in its order or its plan's, from what they read
    handover.py  when a task begins and ends, and how tensors go from one stage to another
    state.py     a step, traced and not allocated, and what lies there from step to step
    update.py    the end of a step
    nodes.py     the writer of nodes
"""

from memtrade.pipeline.tf.builder import PipelineGraph, build_pipeline, session_config
from memtrade.pipeline.tf.state import DrawnStep, draw_step

__all__ = ["DrawnStep", "PipelineGraph", "build_pipeline", "draw_step", "session_config"]
