"""TensorFlow's own ways to save memory, as strategies beside ours.

They have no plan: they change how a step is built or run, where a planned strategy changes its
graph. memtrade.tf.native carries them out.

    recompute_grad  tf.recompute_grad around each block of the model
    keras_remat     keras.RematScope around the making of a Keras model
    grappler        the memory optimizer of TensorFlow's graph optimizer
    xla             tf.function(jit_compile=True)
    accumulate      micro-batches, whose gradients are summed before one update

Not all of them compute what the original does: `memtrade verify` shows which. Those that only add
in another order are allowed a tolerance, which is an option.
"""

from __future__ import annotations

from dataclasses import dataclass

from memtrade.errors import MemtradeError
from memtrade.options import Checked, option


@dataclass(frozen=True)
class NativeStrategy:
    """An entry of the registry that has no plan.

    Attributes:
        options: a subclass of `NativeOptions`, made by `memtrade.options.option`.
    """

    name: str
    summary: str
    options: type[NativeOptions]


_TOLERANCE = "the share of an update by which verify lets a variable differ from the original's"


@dataclass(frozen=True, kw_only=True)
class NativeOptions(Checked):
    """What all of them have."""

    tolerance: float = option(0.0, _TOLERANCE, at_least=0)


@dataclass(frozen=True, kw_only=True)
class RecomputeGrad(NativeOptions):
    """A block is what the model calls so; Keras models are cut where a single tensor goes on.

    Batch norm's moving averages are updated by both runs of a block, and stateful random ops
    draw another mask in the second one.
    """


@dataclass(frozen=True, kw_only=True)
class KerasRemat(NativeOptions):
    """The arguments of `keras.RematScope`. Each layer is wrapped alone."""

    mode: str = option(
        "full",
        "what is recomputed",
        choices=("full", "activations", "larger_than", "list_of_layers"),
    )
    output_size_threshold: int = option(1024, "for mode larger_than: elements of a layer's output")
    layer_names: str = option("", "for mode list_of_layers: names, separated by commas")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.mode == "list_of_layers") != bool(self.layer_names):
            raise MemtradeError(
                "mode 'list_of_layers' and the option 'layer_names' go together: "
                "give mode=list_of_layers layer_names=name,name,..."
            )


# Grappler's modes by their number in RewriterConfig.MemOptType.
GRAPPLER_MODES = {
    "manual": 2,
    "heuristics": 3,
    "swapping_heuristics": 4,
    "recomputation_heuristics": 5,
    "scheduling_heuristics": 6,
}
HINTS = ("none", "cheap")


@dataclass(frozen=True, kw_only=True)
class Grappler(NativeOptions):
    """RewriterConfig.memory_optimization. Grappler's other optimizers stay off, as for all steps.

    Its list of ops that are cheap to run again has not kept up: it lacks AddV2 and
    FusedBatchNormV3, which TensorFlow 2 models are made of. `hints` marks what is missing by the
    attribute `_recompute_hint`; the mode manual looks at nothing else.
    """

    mode: str = option(
        "recomputation_heuristics", "memory_optimization", choices=tuple(GRAPPLER_MODES)
    )
    hints: str = option(
        "none", "mark forward ops: cheap, all but convolutions and products", choices=HINTS
    )
    scope: str = option(
        "auto",
        "memory_optimizer_target_node_name_scope; auto: gradients/ or gradient_tape/, "
        "whichever the step has",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "manual" and self.hints == "none":
            raise MemtradeError("mode 'manual' looks at hints only: give hints=cheap")


@dataclass(frozen=True, kw_only=True)
class Xla(NativeOptions):
    """XLA fuses, and so adds in another order."""

    tolerance: float = option(1e-3, _TOLERANCE, at_least=0)


@dataclass(frozen=True, kw_only=True)
class Accumulate(NativeOptions):
    """Batch norm sees one micro-batch at a time: with it the gradient is another one."""

    micro_batches: int = option(4, "parts of a batch")
    tolerance: float = option(1e-4, _TOLERANCE, at_least=0)


NATIVE_STRATEGIES = (
    NativeStrategy("recompute_grad", "tf.recompute_grad around each block", RecomputeGrad),
    NativeStrategy("keras_remat", "keras.RematScope, for Keras models", KerasRemat),
    NativeStrategy("grappler", "TensorFlow's graph optimizer, its memory modes", Grappler),
    NativeStrategy("xla", "tf.function(jit_compile=True)", Xla),
    NativeStrategy("accumulate", "micro-batches, whose gradients are summed", Accumulate),
)
