"""The thesis' networks and rules, as options of memtrade's own models and strategies.

ResNet: v2 as OpenAI's gradient-checkpointing benchmarks it (test/deep_imagenet_benchmark.py and
test/resnet_model.py in cybertronai/gradient-checkpointing): channels first, 1,001 classes, images
and labels drawn in the step itself, a penalty on all weights, every step traced. That the thesis
ran this one is seen from its prompt (`gradient-checkpointing/test# python benchmark.py`), its batch
of 32, its sizes, and the memory cost of `original`: 2,692, 4,120 and 5,834 MB for 50, 101 and 152
layers, where the comments of that benchmark say 2,694, 4,112 and 5,826.

InceptionV4: tf-slim's, whose checkpoints' names and shapes the log prints. Which variant is worked
out from the log: `thesis_variants.py`.

Adam, because the memory between steps is three times the weights: two slots each.
"""

from memtrade.models import Model, make_model
from memtrade.options import Value

OPTIMIZER = "adam"
RESNET: dict[str, Value] = {
    "version": 2, "num_classes": 1001, "weight_decay": 2e-4, "data_format": "NCHW",
    "draw_batch": True,
}  # fmt: skip
INCEPTION: dict[str, Value] = {
    "num_classes": 1001, "batch_norm": "inference", "dropout": 0.0, "head": "pool",
}  # fmt: skip

# What each of the thesis' tools does, as options of the strategy of that name.
RULES: dict[str, dict[str, Value]] = {
    "original": {},
    "checkpoints": {"rule": "openai"},
    "lms": {"rule": "tflms"},
    "ome": {"rule": "openai", "select": "read_once"},
}
ORDER = "dataflow"

# The tools themselves, by the strategy that a record of them names (`originals.py`): whose rules
# they are above.
TOOLS = {
    "tf1-original": "original",
    "tf1-openai": "checkpoints",
    "tf1-tflms": "lms",
    "tf1-ome": "ome",
}


def rules_of(layers: int | None) -> dict[str, dict[str, Value]]:
    """`RULES` for one network. What OME swaps is printed for InceptionV4 alone: what one forward op
    reads. Of the ResNets those are taken whose copies both ways fit between their uses."""
    if layers is None:
        return RULES
    return {**RULES, "ome": {"rule": "openai", "select": "hidable"}}


def net_name(layers: int | None) -> str:
    """As the thesis names the ResNet of so many layers, or (None) InceptionV4."""
    return "InceptionV4" if layers is None else f"ResNet-{layers}"


def make_net(layers: int | None, batch_size: int, **given: Value) -> Model:
    """The ResNet of so many layers, or (None) InceptionV4; `given` options go first."""
    if layers is None:
        return make_model("inception-v4", {**INCEPTION, "batch_size": batch_size, **given})
    return make_model("resnet", {**RESNET, "layers": layers, "batch_size": batch_size, **given})
