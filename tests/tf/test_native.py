"""TensorFlow's own ways on small models: what they change, and whether it is still the same step.

None of them needs to be equal. The tests hold what each one is, so that the tables and
`memtrade verify` tell the truth about it.
"""

import collections
import functools

import msgspec
import pytest
import tensorflow as tf

from memtrade.comparison import Comparison
from memtrade.errors import UnsupportedGraphError
from memtrade.models import make_model
from memtrade.strategies import make_options
from memtrade.tf.build import make_step
from memtrade.tf.construction import AS_USUAL, Construction
from memtrade.tf.extract import trace
from memtrade.tf.native import grappler_config, make_native_step
from memtrade.tf.verify import compare_steps
from tests.tf.small_models import SMALL

pytestmark = pytest.mark.usefixtures("small_models")

GPT2 = {"layers": 1, "width": 32, "heads": 2, "positions": 16, "vocabulary": 50, "batch_size": 4}
DROPOUT = GPT2 | {"dropout": 0.1}
KERAS = {"image_size": 32, "num_classes": 10, "batch_size": 4}


def builder(model: str, options: dict):
    def build(construction: Construction = AS_USUAL):
        return make_step(
            make_model(model, options), optimizer="momentum", construction=construction
        )

    return build


def native(strategy: str, build, **options):
    return make_native_step(make_options(strategy, options), build)


@functools.cache
def original_of(model: str, options: bytes):
    """Traced once: a comparison leaves its variables as they were."""
    return builder(model, msgspec.json.decode(options))()


def compare(strategy: str, model: str, given: dict, steps: int = 2, **options) -> Comparison:
    original = original_of(model, msgspec.json.encode(given))
    step = native(strategy, builder(model, given), **options)
    return compare_steps(
        original.function,
        step.function,
        original.variables(),
        original.make_batch(),
        steps=steps,
        own_variables=step.variables(),
    )


def beyond(strategy: str, model: str, given: dict, **options) -> set[str]:
    """What differs by more than the strategy's own tolerance."""
    return too_far(strategy, compare(strategy, model, given, **options), **options)


def too_far(strategy: str, comparison: Comparison, **options) -> set[str]:
    tolerance = make_options(strategy, options).tolerance
    return {name for name, _ in comparison.beyond(tolerance)}


# --- recompute_grad ---------------------------------------------------------------------------


def test_recompute_grad_is_the_same_step_without_batch_norm_and_dropout():
    """But for rounding: a sum of gradients may be added up in another order."""
    assert not compare("recompute_grad", "gpt2", GPT2).beyond(1e-4)


TINY_CELLS = SMALL["amoebanet-d"][1] | {"filters": 16, "image_size": 32}


@pytest.mark.parametrize(("model", "options"), [SMALL["resnet-18"], ("amoebanet-d", TINY_CELLS)])
def test_recompute_grad_moves_batch_norms_averages_twice(model, options):
    """And changes nothing else, but for rounding, where nothing is random.

    After one step: what is rounded otherwise in its update flips masks in the next.
    """
    found = compare("recompute_grad", model, options, steps=1).beyond(1e-3)
    assert found
    kinds = {variable.rpartition("/")[2] for variable, _ in found}
    assert kinds == {"moving_mean", "moving_variance"}


def test_recompute_grad_draws_other_dropout_masks():
    assert beyond("recompute_grad", "gpt2", DROPOUT)


def test_recompute_grad_runs_each_convolution_again():
    options = {"layers": 18, "image_size": 64, "num_classes": 10, "batch_size": 8}
    build = builder("resnet", options)
    original, step = build(), native("recompute_grad", build)
    types = [collections.Counter(op.type for op in trace(s).graph.ops) for s in (original, step)]
    assert types[1]["Conv2D"] == 2 * types[0]["Conv2D"]


# --- accumulate -------------------------------------------------------------------------------


def test_accumulate_is_the_same_gradient_where_examples_are_independent():
    comparison = compare("accumulate", "gpt2", GPT2)
    assert too_far("accumulate", comparison) == set()
    assert comparison.beyond(0.0)  # it adds in another order


def test_accumulate_is_another_gradient_with_batch_norm():
    found = beyond("accumulate", *SMALL["resnet-18"], micro_batches=2)
    assert "stem/conv1/conv/kernel" in found


def test_accumulate_takes_one_part_after_the_other():
    options = {"layers": 18, "image_size": 64, "num_classes": 10, "batch_size": 16}
    build = builder("resnet", options)
    step = native("accumulate", build, micro_batches=4)
    graph = trace(step).graph
    sizes = {graph.tensors[op.inputs[0]].shape[0] for op in graph.ops if op.type == "Conv2D"}  # pyright: ignore[reportOptionalSubscript]
    assert sizes == {4}
    updates = sum(op.type == "ResourceApplyMomentum" for op in graph.ops)
    assert updates == sum(variable.trainable for variable in step.variables())
    # Each part waits for the one before it, or they would all hold their activations at once.
    barriers = [op.id for op in graph.ops if op.type == "NoOp" and op.controls]
    assert len(barriers) >= 3


def test_a_batch_that_cannot_be_split_says_so():
    with pytest.raises(UnsupportedGraphError, match="a batch of 4 cannot be split into 3"):
        native("accumulate", builder("gpt2", GPT2), micro_batches=3)
    with pytest.raises(UnsupportedGraphError, match="a batch of 4 cannot be split into 8"):
        native("accumulate", builder("keras/MobileNet", KERAS), micro_batches=8)


# --- xla --------------------------------------------------------------------------------------


def test_xla_is_the_same_step_within_its_tolerance():
    comparison = compare("xla", "gpt2", GPT2)
    assert too_far("xla", comparison) == set()
    assert comparison.beyond(0.0)  # it fuses, and so rounds elsewhere


# --- grappler ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"mode": "manual", "hints": "cheap"}])
def test_grappler_computes_the_same(options):
    assert beyond("grappler", *SMALL["resnet-18"], **options) == set()


def test_grappler_needs_a_scope_to_look_in():
    step = builder("gpt2", GPT2)()

    @tf.function(autograph=False, input_signature=step.specs)
    def no_gradients(tokens):
        return tf.reduce_mean(tf.cast(tokens, tf.float32))

    def build(_):
        return type(step)("plain", no_gradients, step.specs, step.make_batch, tuple)

    with pytest.raises(UnsupportedGraphError, match="name it by the option scope"):
        native("grappler", build)


def test_grappler_does_nothing_else():
    rewrite = grappler_config("manual", "gradients/").graph_options.rewrite_options
    toggles = [f for f in rewrite.DESCRIPTOR.fields if f.enum_type and f.enum_type.name == "Toggle"]
    assert len(toggles) > 10
    assert all(getattr(rewrite, field.name) == rewrite.OFF for field in toggles)


# --- keras_remat ------------------------------------------------------------------------------


def test_keras_remat_is_for_keras_models():
    with pytest.raises(UnsupportedGraphError, match=r"gpt2.* is none: try --model keras/"):
        native("keras_remat", builder("gpt2", GPT2))


@pytest.mark.parametrize("mode", ["full", "larger_than"])
def test_keras_remat_fails_on_layers_that_know_training(mode):
    """Batch norm and dropout: tf.recompute_grad takes no keyword arguments in a graph."""
    step = native("keras_remat", builder("keras/MobileNet", KERAS), mode=mode)
    with pytest.raises(UnsupportedGraphError, match="keywords arguments only when eager"):
        step.function(*step.make_batch())


def test_keras_remat_by_layers():
    model, names = "keras/MobileNet", "conv1,conv_pw_1"
    assert beyond("keras_remat", model, KERAS, mode="list_of_layers", layer_names=names) == set()
