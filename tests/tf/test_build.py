"""Training steps of small models, and the layers and optimizers they are made of."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf

from memtrade.errors import MemtradeError, UnknownNameError, UnsupportedGraphError
from memtrade.models import OPTIMIZERS, Input, make_model
from memtrade.models.base import DrawnModel, Model
from memtrade.strategies.segments import frontiers
from memtrade.tf.build import make_batch, make_step
from memtrade.tf.extract import trace
from memtrade.tf.layers import Net
from memtrade.tf.optimizers import make_optimizer
from memtrade.tf.variables import Variables

pytestmark = pytest.mark.usefixtures("small_models")

SMALL = {
    "resnet-18": ("resnet", {"layers": 18, "image_size": 32, "num_classes": 10}),
    "resnet-18-v2": (
        "resnet",
        {"layers": 18, "version": 2, "weight_decay": 1e-3, "image_size": 32, "num_classes": 10},
    ),
    "resnet-50": ("resnet", {"layers": 50, "image_size": 32, "num_classes": 10}),
    "inception-v4": ("inception-v4", {"image_size": 75, "num_classes": 10}),
    "gpt2": ("gpt2", {"layers": 2, "width": 32, "heads": 4, "positions": 16, "vocabulary": 50}),
    "gpt2-tied": (
        "gpt2",
        {
            "layers": 1,
            "width": 32,
            "heads": 4,
            "positions": 16,
            "vocabulary": 50,
            "tied": True,
            "dropout": 0.1,
        },
    ),
    # 65 pixels: halving loses one, which the decoder puts back
    "unet": ("unet", {"num_convs": 2, "base_channels": 4, "image_size": 65}),
    # 36 pixels: the factorized reduction meets odd sizes
    "amoebanet-d": ("amoebanet-d", {"layers": 3, "filters": 16, "image_size": 36}),
}


def small_model(key, **given):
    name, options = SMALL[key]
    return make_model(name, {"batch_size": 2, **options, **given})


@pytest.mark.parametrize("key", SMALL)
def test_every_variable_learns(key):
    model = small_model(key)
    step = make_step(model, learning_rate=0.05)
    batch = step.make_batch()
    before = [(each, each.numpy()) for each in step.variables()]
    losses = [float(step.function(*batch)) for _ in range(3)]
    assert np.isfinite(losses).all()
    unchanged = [each.name for each, value in before if np.array_equal(each.numpy(), value)]
    assert not unchanged
    moving = [each.name for each in step.variables() if not each.trainable]
    assert bool(moving) == (model.family in ("resnet", "inception-v4", "amoebanet-d"))


@pytest.mark.parametrize("key", ["resnet-18", "inception-v4", "unet", "amoebanet-d"])
def test_nchw_computes_what_nhwc_does(key):
    """On a CPU, convolutions in NCHW need oneDNN; without it they say that they want NHWC.

    The loss only: batch norm over few values is chaotic, so training drifts apart.
    """
    size = {"inception-v4": {"image_size": 139}, "resnet-18": {"image_size": 64}}.get(
        key, {"image_size": 64}
    )
    given: dict[str, int | float] = {"batch_size": 8, **size}
    if "dropout" in small_model(key).__dataclass_fields__:
        given["dropout"] = 0.0
    model = small_model(key, **given)
    batch = make_batch(model)
    images_moved = [tf.transpose(x, [0, 3, 1, 2]) if x.shape.rank == 4 else x for x in batch]
    try:
        loss = first_loss(small_model(key, data_format="NCHW", **given), images_moved)
    except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError) as error:
        assert "NHWC" in str(error)  # noqa: PT017  # what a CPU without oneDNN says
        return
    assert loss == pytest.approx(first_loss(model, batch), rel=1e-3)


def first_loss(model, batch) -> float:
    variables = Variables(model.seed)

    @tf.function(autograph=False)
    def draw(*inputs):
        named = dict(zip(model.inputs(), inputs, strict=True))
        return model.loss(Net(variables, layout=model.layout), **named)

    return float(draw(*batch))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_step_that_draws_its_batch_is_given_none(layout):
    """What it draws is new in each step, and the same for the same seed."""

    def losses() -> list[float]:
        tf.random.set_seed(3)
        model = small_model(
            "resnet-18-v2", draw_batch=True, data_format=layout, image_size=64, weight_decay=0.0
        )
        step = make_step(model, learning_rate=1e-6)
        assert step.make_batch() == step.specs == ()
        return [float(step.function()) for _ in range(3)]

    try:
        found = losses()
    except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError) as error:
        assert "NHWC" in str(error)  # noqa: PT017  # what a CPU without oneDNN says
        return
    assert len(set(found)) == 3
    assert losses() == pytest.approx(found, rel=1e-5)


def test_a_step_that_draws_its_batch_is_planned_as_others_are():
    """Its random images are what the forward part starts from."""
    with tf.Graph().as_default():
        graph = trace(make_step(small_model("resnet-18-v2", draw_batch=True))).graph
    labels = sorted(graph.label(t) for t in graph.batch)
    assert [label.partition("/")[0] for label in labels] == ["images", "labels"]
    assert graph.ops[graph.turn].type == "SoftmaxCrossEntropyWithLogits"
    assert frontiers(graph)


def test_weight_decay_is_half_the_sum_of_squares():
    plain, decayed = (
        make_step(small_model("resnet-18-v2", weight_decay=decay)) for decay in (0.0, 0.1)
    )
    weights = [each for each in decayed.variables() if each.trainable]
    squares = sum(float(tf.reduce_sum(tf.square(each))) for each in weights)
    batch = plain.make_batch()
    gap = float(decayed.function(*batch)) - float(plain.function(*batch))
    assert gap == pytest.approx(0.1 * squares / 2, rel=1e-4)


def test_lasting_averages_do_not_move_and_train_the_offset_alone():
    model = small_model("inception-v4", batch_norm="inference", dropout=0.0, head="pool")
    step = make_step(model, learning_rate=0.05)
    batch = step.make_batch()
    before = {each.name: each.numpy() for each in step.variables()}
    assert np.isfinite(float(step.function(*batch)))
    moved = {v.name for v in step.variables() if not np.array_equal(v.numpy(), before[v.name])}
    assert moved == {each.name for each in step.variables() if each.trainable}
    kinds = {name.partition(":")[0].rpartition("/")[2] for name in before if "batch_norm" in name}
    assert kinds == {"offset", "moving_mean", "moving_variance"}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_fit_one_batch(optimizer):
    step = make_step(small_model("gpt2", layers=1), optimizer=optimizer)
    batch = step.make_batch()
    losses = [float(step.function(*batch)) for _ in range(10)]
    assert losses[-1] < losses[0] - 1e-3
    slots = {"sgd": 0, "momentum": 1, "rmsprop": 2, "adam": 2}[optimizer]
    trainable = [each for each in step.variables() if each.trainable]
    scalars = 2 if optimizer == "adam" else 0
    assert len(step.variables()) == len(trainable) * (1 + slots) + scalars


def test_optimizer_arithmetic():
    """Two updates of one weight 1.0 with gradients 0.5 and -0.25, rate 0.1, by the formulas."""
    gradients = [np.float32(0.5), np.float32(-0.25)]
    expected = {"sgd": 1 - 0.1 * (0.5 - 0.25), "momentum": 1 - 0.1 * 0.5 - 0.1 * (0.45 - 0.25)}
    w, s = 1.0, 1.0
    for g in gradients:
        s = 0.9 * s + 0.1 * g * g
        w -= 0.1 * g / np.sqrt(s + 1e-10)
    expected["rmsprop"] = w
    w, m, v = 1.0, 0.0, 0.0
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w -= 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    expected["adam"] = w
    for name, value in expected.items():
        weight, optimizer = tf.Variable(tf.constant(1.0), name="w"), make_optimizer(name, 0.1)
        for g in gradients:
            optimizer.apply([(tf.constant(g), weight)])
        assert weight.numpy() == pytest.approx(value, abs=1e-6), name


def test_the_seed_decides_everything():
    def run(seed):
        step = make_step(small_model("gpt2-tied", seed=seed))
        batch = step.make_batch()
        return [float(step.function(*batch)) for _ in range(2)]  # dropout draws anew in each

    first = run(1)
    assert first == run(1)
    assert first != run(2)


def test_initial_weights_depend_on_the_name_and_not_on_the_order():
    def draw(names):
        variables = Variables(seed=3)
        return {
            name: variables.get(name, (4,), stddev=1.0, fill=0.0, trainable=True).numpy().tolist()
            for name in names
        }

    assert draw("abc") == draw("cba")
    assert draw("ab")["a"] != draw("ab")["b"]


def test_the_batch_fits_the_specs_and_its_bounds():
    for key in SMALL:
        model = small_model(key, batch_size=16)
        step = make_step(model)
        for value, spec, wanted in zip(
            make_batch(model), step.specs, model.inputs().values(), strict=True
        ):
            assert spec.is_compatible_with(value)
            assert spec.shape.is_fully_defined()
            if wanted.below is not None:
                assert value.numpy().min() >= 0
                assert value.numpy().max() < wanted.below
                assert len(np.unique(value.numpy())) > 1


def test_a_model_that_draws_nothing_is_refused():
    class Bare(Model):
        family, summary = "bare", "no loss"

        def inputs(self):
            return {}

    with pytest.raises(UnsupportedGraphError, match="extend DrawnModel, not Model"):
        make_step(Bare())


def test_a_step_is_traced_once():
    step = make_step(small_model("gpt2"))
    first = step.function.get_concrete_function()  # pyright: ignore[reportFunctionMemberAccess]
    variables = step.variables()
    step.function(*step.make_batch())
    assert step.function.get_concrete_function() is first  # pyright: ignore[reportFunctionMemberAccess]
    assert [v.ref() for v in step.variables()] == [v.ref() for v in variables]


def test_ops_are_created_in_forward_order():
    """Each op after those it reads, forward before backward before update."""
    graph = make_step(small_model("resnet-18")).function.get_concrete_function().graph  # pyright: ignore[reportFunctionMemberAccess]
    place = {op.name: index for index, op in enumerate(graph.get_operations())}
    for op in graph.get_operations():
        assert all(place[each.op.name] < place[op.name] for each in op.inputs)
    kinds = [op.type for op in graph.get_operations()]
    last_forward = kinds.index("SparseSoftmaxCrossEntropyWithLogits")
    assert "Conv2D" not in kinds[last_forward:]
    assert "Conv2DBackpropFilter" not in kinds[:last_forward]
    first_update = kinds.index("ResourceApplyGradientDescent")
    assert "Conv2DBackpropFilter" not in kinds[first_update:]
    assert "Shape" not in kinds


def test_dropout_is_stateful_and_draws_whole_channels():
    net = Net(Variables(seed=0))
    x = tf.ones([2, 5, 5, 64])
    values, channels = net.dropout(x, 0.5, name="a"), net.dropout(x, 0.5, whole="channels")
    assert set(np.unique(values)) == {0.0, 2.0}
    per_channel = channels.numpy().reshape(2, 25, 64)
    assert (per_channel == per_channel[:, :1]).all()
    assert 20 < (per_channel[0, 0] == 0).sum() < 44
    assert net.dropout(x, 0.0) is x
    graph = make_step(small_model("unet")).function.get_concrete_function().graph  # pyright: ignore[reportFunctionMemberAccess]
    assert "RandomUniform" in {op.type for op in graph.get_operations()}


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_image_layers_against_numpy(layout):
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, size=(2, 5, 4, 3)).astype("float32")

    def there(a):
        return tf.constant(a.transpose(0, 3, 1, 2) if layout == "NCHW" else a)

    def back(t):
        return t.numpy().transpose(0, 2, 3, 1) if layout == "NCHW" else t.numpy()

    net = Net(Variables(seed=0), layout=layout)
    assert net.channels(there(x)) == 3
    normed = (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5)
    np.testing.assert_allclose(back(net.instance_norm(there(x))), normed, atol=1e-5)
    np.testing.assert_array_equal(
        back(net.upsample(there(x))), x.repeat(2, axis=1).repeat(2, axis=2)
    )
    padded = np.pad(x, ((0, 0), (0, 1), (0, 2), (0, 0)))
    np.testing.assert_array_equal(back(net.pad(there(x), ((0, 1), (0, 2)))), padded)
    np.testing.assert_array_equal(back(net.crop(there(x), top=1, left=2)), x[:, 1:, 2:])
    np.testing.assert_allclose(net.global_average_pool(there(x)).numpy(), x.mean((1, 2)), rtol=1e-5)
    both = np.concatenate([x, -x], axis=3)
    np.testing.assert_array_equal(back(net.concat([there(x), there(-x)])), both)


def test_batch_norm_moves_its_averages():
    x = np.random.default_rng(0).normal(3, 2, size=(4, 5, 5, 3)).astype("float32")
    variables = Variables(seed=0)
    y = Net(variables).batch_norm(tf.constant(x), decay=0.9, epsilon=1e-3).numpy()
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(variance + 1e-3), atol=1e-4)
    scale, offset, moving_mean, moving_variance = variables.all()
    assert [each.trainable for each in variables.all()] == [True, True, False, False]
    assert (scale.numpy() == 1).all()
    assert (offset.numpy() == 0).all()
    np.testing.assert_allclose(moving_mean.numpy(), 0.1 * mean, rtol=1e-4)
    unbiased = variance * 100 / 99
    np.testing.assert_allclose(moving_variance.numpy(), 0.9 + 0.1 * unbiased, rtol=1e-4)


def test_row_layers_against_tensorflow():
    net = Net(Variables(seed=0))
    x = tf.random.stateless_normal([6, 8], (0, 1)) * 3 + 1
    np.testing.assert_allclose(net.gelu(x), tf.nn.gelu(x, approximate=True), atol=1e-5)
    centred = x - tf.reduce_mean(x, 1, keepdims=True)
    expected = centred / tf.sqrt(tf.reduce_mean(centred**2, 1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(net.layer_norm(x, name="norm"), expected, atol=1e-5)
    mask = net.causal_mask(3).numpy()
    assert (np.tril(mask) == 0).all()
    assert (mask[np.triu_indices(3, 1)] == -1e9).all()


def test_gpt2_does_not_see_the_future():
    """A token's logits stay the same when a later token changes, and the last loss is left out."""
    model = small_model("gpt2", batch_size=1)
    variables = Variables(model.seed)
    tokens = make_batch(model)[0].numpy()

    def logits(changed_at, value):
        changed = tokens.copy()
        changed[0, changed_at] = value

        @tf.function(autograph=False)
        def draw():
            return model.logits(Net(variables), tf.constant(changed))  # pyright: ignore[reportAttributeAccessIssue]

        return draw().numpy()

    a, b = logits(9, 1), logits(9, 2)
    np.testing.assert_array_equal(a[:9], b[:9])
    assert (a[9:] != b[9:]).any(axis=1).all()


@dataclass(frozen=True, kw_only=True)
class Unused(DrawnModel):
    """A model with a weight that the loss does not depend on."""

    family: ClassVar[str] = "unused"
    summary: ClassVar[str] = "for a test"

    def inputs(self):
        return {"x": Input((self.batch_size,))}

    def loss(self, net, *, x):  # pyright: ignore[reportIncompatibleMethodOverride]
        net.variable("idle", [3])
        return net.mean(x * net.variable("used", [1]))


def test_errors_say_what_to_do():
    with pytest.raises(UnknownNameError, match="unknown optimizer 'adm': did you mean 'adam'"):
        make_step(small_model("gpt2"), optimizer="adm")
    with pytest.raises(MemtradeError, match="learning rate must be a positive number, not -1"):
        make_step(small_model("gpt2"), learning_rate=-1)
    with pytest.raises(UnsupportedGraphError, match="does not depend on variable 'idle:0'"):
        make_step(Unused()).variables()
    net = Net(Variables(seed=0))
    net.variable("w", [1])
    with pytest.raises(MemtradeError, match=r"two layers are named 'w': .* net\.scope"):
        net.variable("w", [1])
