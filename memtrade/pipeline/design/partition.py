"""Partition: which ops of a training step stand on which stage of a pipeline.

    line        op ─ op ─ op ─ op │ op ─ op ─ op │ op ─ op ─ loss    (the forward ops, see anchors)
                └──── stage 0 ──┘   └ stage 1 ─┘   └─ stage 2 ──┘
    weights     with their first reader on the line
    crossings         x ───────────► x             straight from the stage that makes a tensor to
                      y ──────────────────────────► y    each one that reads it, past those between

`partitioner.py` makes them.
"""

from typing import Literal

import msgspec

Balance = Literal["time", "memory", "explicit"]


class Crossing(msgspec.Struct, frozen=True):
    """A tensor that one stage makes and others read. It is sent to each of them directly.

    Attributes:
        tensor: its id. source: the stage that makes it.
        targets: the stages that read it, ascending, all behind `source`.
        size_bytes: for one micro-batch, if the graph was traced for one.
        has_gradient: in the backward part each target sends a gradient of the same shape back, and
            the source adds them up. False for whole numbers, masks and what no weight leads to.
    """

    tensor: int
    source: int
    targets: tuple[int, ...]
    size_bytes: int
    has_gradient: bool


class Stage(msgspec.Struct, frozen=True):
    """What stands on one stage. All ids are of the graph that the partition was made for.

    Attributes:
        ops: the forward ops to build here, in topological order: those of the line, the reads of
            this stage's variables, what is computed from them, and the stage's own copies of the
            constants that it reads. Placeholders of the batch and of variables are not among them.
        side_ops: ops beside the forward part that run with it, such as updates of moving averages,
            and what they need, in topological order.
        inputs: tensors of the batch that `ops` read: the stage gets them from the driver.
        captures: captured constants that `ops` read.
        received: tensors from earlier stages that `ops` (or `side_ops`) read.
        sent: tensors of this stage that later stages read.
        variables: handles of the variables that live here, by the tensor ids of their captures:
            weights, moving averages, and the optimizer's slots.
        trainable: those of `variables` that get a gradient.
        cost: of this stage, in picoseconds (forward and backward) or, of memory, bytes.
    """

    ops: tuple[int, ...]
    side_ops: tuple[int, ...]
    inputs: tuple[int, ...]
    captures: tuple[int, ...]
    received: tuple[int, ...]
    sent: tuple[int, ...]
    variables: tuple[int, ...]
    trainable: tuple[int, ...]
    cost: int


class Partition(msgspec.Struct, frozen=True):
    """A step cut into stages. Plain data: `msgspec.json` carries it between processes.

    Attributes:
        fingerprint: of the graph that it was made for.
        balance: what was balanced; "explicit" for given boundaries.
        slack: how much heavier than the optimum the heaviest stage was allowed to be.
        optimum: the smallest possible cost of the heaviest stage, with cuts at narrow places.
        boundaries: for each stage but the last, the name of the op of the line that ends it. Given
            to `cut_at`, they make the same partition of the same model at another batch size.
        stage_of: for each op of the graph, its stage; None for the batch and the constants (each
            stage has copies), and for what serves all updates. Backward ops and updates have one.
        stages: what stands on each.
        crossings: in the order of their tensors' ids.
    """

    fingerprint: str
    balance: Balance
    slack: float
    optimum: int
    boundaries: tuple[str, ...]
    stage_of: tuple[int | None, ...]
    stages: tuple[Stage, ...]
    crossings: tuple[Crossing, ...]

    def receives(self, stage: int) -> list[Crossing]:
        """The crossings that end at `stage`: activations come in here, gradients leave."""
        return [crossing for crossing in self.crossings if stage in crossing.targets]

    def sends(self, stage: int) -> list[Crossing]:
        """The crossings that start at `stage`: activations leave here, gradients come in."""
        return [crossing for crossing in self.crossings if crossing.source == stage]
