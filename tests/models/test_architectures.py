"""The models against what is published about them. Graphs only: nothing is allocated."""

import functools
import math
from unittest import mock

import pytest
import tensorflow as tf

from memtrade.models import make_model
from memtrade.models.amoebanet_d import AmoebaNetD
from memtrade.models.base import DrawnModel
from memtrade.models.resnet import BLOCKS, ResNet
from memtrade.tf import variables
from memtrade.tf.build import make_step
from memtrade.tf.layers import Net
from memtrade.tf.step import CHECKPOINTS
from memtrade.tf.variables import Variables, static_shape
from tests.tf.small_models import shallow

# timm's inception_v4 and Cadene's inceptionv4
INCEPTION_V4 = 42_679_816
PUBLISHED = [
    # torchvision's documentation of each ("num_params"): pytorch.org/vision/stable/models.html
    ("resnet", {"layers": 18}, 11_689_512),
    ("resnet", {"layers": 34}, 21_797_672),
    ("resnet", {"layers": 50}, 25_557_032),
    ("resnet", {"layers": 101}, 44_549_160),
    # timm's resnet200
    ("resnet", {"layers": 200}, 64_673_832),
    # where the stride is changes no parameter
    ("resnet", {"layers": 50, "stride_on": "1x1"}, 25_557_032),
    # seed 000, "# of Model Parameters: 89,762,304"
    ("gpt2", {}, 89_762_304),
    # OpenAI's gpt2 in Hugging Face's transformers: "124M"
    ("gpt2", {"positions": 1024, "vocabulary": 50257, "tied": True}, 124_439_808),
    # torchgpipe's U-Net (B, C) and AmoebaNet-D (L, D): shared/research.md, section 5
    ("unet", {"num_convs": 5, "base_channels": 64}, 232_687_328),
    ("unet", {"num_convs": 6, "base_channels": 72}, 362_157_516),
    ("unet", {"num_convs": 11, "base_channels": 128}, 2_213_834_176),
    ("amoebanet-d", {"layers": 18, "filters": 208}, 81_505_540),
]


@pytest.mark.parametrize(("name", "given", "parameters"), PUBLISHED)
def test_parameter_count_is_the_published_one(name, given, parameters):
    assert forward(name, **given, batch_size=2)[0] == parameters


def without_value(name, initial, shape, *, trainable):
    """To draw how each variable begins takes a third of the time, and nothing here begins."""
    return tf.Variable(
        lambda: tf.compat.v1.placeholder(tf.float32, shape), name=name, trainable=trainable
    )


def drawn(name, weights: Variables | None = None, **given) -> tf.Graph:
    """The model's forward part. Gradients would take twice as long again."""
    model = make_model(name, given)
    assert isinstance(model, DrawnModel)
    valueless = mock.patch.object(variables, "new_variable", without_value)
    with tf.Graph().as_default() as graph, valueless:
        inputs = {
            key: tf.compat.v1.placeholder(tf.as_dtype(each.dtype), each.shape, key)
            for key, each in model.inputs().items()
        }
        model.loss(Net(weights or Variables(model.seed), layout=model.layout), **inputs)
    return graph


@functools.cache
def forward(name, **given):
    """The forward part's number of parameters, and its checkpoints: drawn once for both."""
    weights = Variables(0)
    found = drawn(name, weights, **given).get_collection(CHECKPOINTS)
    return trainable_count(weights), {tensor.name: tuple(tensor.shape) for tensor in found}


def trainable_count(weights):
    return sum(math.prod(static_shape(each)) for each in weights.trainable())


def checkpoint_shapes(name, **given):
    return forward(name, **given)[1]


def test_the_traced_step_has_the_checkpoints_of_its_model():
    with tf.Graph().as_default():
        step = make_step(make_model("resnet", {"layers": 18, "batch_size": 2}))
        graph = step.function.get_concrete_function().graph  # pyright: ignore[reportFunctionMemberAccess]
        found = graph.get_collection(CHECKPOINTS)
        assert all(tensor.graph is graph for tensor in found)
        shapes = {tensor.name: tuple(tensor.shape) for tensor in found}
    assert shapes == checkpoint_shapes("resnet", layers=18, batch_size=2)


def test_inception_v4_has_the_tensors_of_the_published_log():
    """Seed 001, after "total checkpoints disconnected count : 12", without its name scopes."""
    weights = Variables(0)
    graph = drawn("inception-v4", weights, batch_size=32, image_size=299)
    assert trainable_count(weights) == INCEPTION_V4
    found = graph.get_collection(CHECKPOINTS)
    shapes = {tensor.name: tuple(tensor.shape) for tensor in found}
    log = {
        "Conv2d_2b_3x3/Relu:0": (32, 147, 147, 64),
        "Mixed_3a/concat:0": (32, 73, 73, 160),
        "Mixed_5b/concat:0": (32, 35, 35, 384),
        "Mixed_5d/concat:0": (32, 35, 35, 384),
        "Mixed_6a/concat:0": (32, 17, 17, 1024),
        "Mixed_6c/concat:0": (32, 17, 17, 1024),
        "Mixed_6e/concat:0": (32, 17, 17, 1024),
        "Mixed_6g/concat:0": (32, 17, 17, 1024),
        "Mixed_7a/concat:0": (32, 8, 8, 1536),
        "Mixed_7c/concat:0": (32, 8, 8, 1536),
    }
    assert {name: shapes[name] for name in log} == log
    assert list(shapes.values())[-1] == (32, 1536)  # Logits/PreLogitsFlatten, after dropout
    inner = graph.get_tensor_by_name("Mixed_5a/Branch_0/Conv2d_1a_3x3/Relu:0")
    assert tuple(inner.shape) == (32, 35, 35, 192)  # the log's one checkpoint inside a block


def test_inception_v4_has_tf_slim_s_other_parts_by_option():
    """The auxiliary head of tf-slim's inception_v4.py: 1x1x128 and 5x5x768 convolutions and a
    classifier. Without a trained scale, batch norm has one number a channel less."""

    def parts(**given):
        weights = Variables(0)
        graph = drawn("inception-v4", weights, image_size=75, head="pool", **given)
        scales = [each for each in weights.trainable() if "scale" in each.name]
        return (
            trainable_count(weights),
            sum(math.prod(static_shape(each)) for each in scales),
            graph,
        )

    # At 75 pixels the auxiliary head's pool leaves one value a channel: 1x1x768 in place of 5x5.
    head = 1024 * 128 + 128 * 768 + 768 * 1000 + 1000
    both, scales, graph = parts(auxiliary=True)
    assert both == INCEPTION_V4 + head + 2 * (128 + 768)
    assert "AssignSubVariableOp" in {op.type for op in graph.get_operations()}
    lasting, none, graph = parts(auxiliary=True, batch_norm="inference")
    assert (lasting, none) == (both - scales, 0)
    types = {op.type for op in graph.get_operations()}
    assert not types & {"FusedBatchNormV3", "AssignSubVariableOp"}
    flat = graph.get_tensor_by_name("Logits/PreLogitsFlatten/Reshape:0")
    assert tuple(flat.shape) == (32, 1536)


@pytest.mark.parametrize("layers", [18, 50])
def test_resnet_v2_is_the_one_of_the_benchmark(layers):
    """Weights of He et al. 2016 as TensorFlow's official models had them in 2018: a batch norm in
    front of each convolution but the stem's and projections', and one at the end."""
    widths, blocks = (64, 128, 256, 512), BLOCKS[layers]
    out = 1 if layers < 50 else 4
    count, channels = 7 * 7 * 3 * 64, 64
    for number, width in zip(blocks, widths, strict=True):
        for index in range(number):
            convs = (
                [(3, channels, width), (3, width, width)]
                if layers < 50
                else [(1, channels, width), (3, width, width), (1, width, 4 * width)]
            )
            count += sum(k * k * a * b + 2 * a for k, a, b in convs)
            count += channels * out * width if index == 0 else 0
            channels = out * width
    count += 2 * channels + channels * 1001 + 1001
    assert forward("resnet", layers=layers, version=2, num_classes=1001)[0] == count


# 152 layers, of which no other test draws the forward part, are between 101 and 200.
@pytest.mark.parametrize("layers", sorted(BLOCKS.keys() - {152}))
def test_resnet_keeps_the_stem_and_every_block(layers):
    shapes = list(checkpoint_shapes("resnet", layers=layers, batch_size=2).values())
    widths = [64, 128, 256, 512] if layers < 50 else [256, 512, 1024, 2048]
    expected = [(2, 56, 56, 64)]
    for blocks, width, size in zip(BLOCKS[layers], widths, (56, 28, 14, 7), strict=True):
        expected += [(2, size, size, width)] * blocks
    assert shapes == expected


@pytest.mark.parametrize(("stride_on", "inner"), [("3x3", 56), ("1x1", 28)])
def test_resnet_strides_the_3x3_convolution_unless_told(stride_on, inner):
    assert ResNet().stride_on == "3x3"
    with shallow():
        graph = drawn("resnet", batch_size=2, stride_on=stride_on)
    first = graph.get_tensor_by_name("stage2_block1/conv1/conv/Conv2D:0")
    assert tuple(first.shape) == (2, inner, inner, 128)


def test_unet_checkpoints_every_level():
    shapes = list(checkpoint_shapes("unet", num_convs=5, base_channels=64, batch_size=2).values())
    down = [(2, 192 >> level, 192 >> level, 64 << level) for level in range(5)]
    up = [(2, 192 >> level, 192 >> level, (64 << level) // 2) for level in reversed(range(5))]
    assert shapes == [*down, (2, 6, 6, 1024), *up]


def test_unet_hands_every_level_across():
    graph = drawn("unet", batch_size=2, num_convs=1)
    for tensor in graph.get_collection(CHECKPOINTS)[:5]:
        assert {op.type for op in tensor.consumers()} == {"MaxPool", "ConcatV2"}


def test_amoebanet_has_as_many_cells_as_torchgpipe_has_children():
    assert (AmoebaNetD().layers, AmoebaNetD().filters) == (18, 256)
    given = {"layers": 18, "filters": 208}  # whose parameters are counted above
    shapes = list(checkpoint_shapes("amoebanet-d", **given, batch_size=2).values())
    assert len(shapes) == 18 + 6 - 1  # without the classifier
    assert shapes[0] == (2, 112, 112, 52)
    assert shapes[-1] == (2, 7, 7, 16 * 208)


def test_gpt2_checkpoints_the_embedding_and_every_block():
    shapes = list(checkpoint_shapes("gpt2", batch_size=2).values())
    assert shapes == [(2 * 128, 768)] * 13


def test_the_data_format_moves_the_channels_only():
    """What the others compute is held by tests/tf/test_build.py."""
    nhwc = checkpoint_shapes("resnet", layers=50, batch_size=2)
    nchw = checkpoint_shapes("resnet", layers=50, batch_size=2, data_format="NCHW")
    moved = [(n, c, h, w) for n, h, w, c in nhwc.values()]
    assert list(nchw.values()) == moved


def test_a_huge_step_is_traced_without_allocating():
    """18.5 billion weights, as many gradients, twice as many slots: 296 GB if they existed."""
    given = {"num_convs": 2, "base_channels": 1024}
    model = make_model("unet", given)
    assert forward("unet", **given)[0] == 18_508_705_280
    with tf.Graph().as_default():
        step = make_step(model, optimizer="adam")
        graph = step.function.get_concrete_function().graph  # pyright: ignore[reportFunctionMemberAccess]
        assert all(tensor.shape.is_fully_defined() for tensor in graph.inputs)
        assert sum(op.type == "ResourceApplyAdam" for op in graph.get_operations()) == 2 * 11 + 1
