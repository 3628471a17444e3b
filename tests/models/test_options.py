"""What can be set, and what is said about what cannot. No TensorFlow."""

import doctest
import importlib
import subprocess
import sys

import pytest

from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.models import MODELS, OPTIMIZERS, make_model, options_of
from memtrade.models.resnet import ResNet


def test_listing_models_imports_no_tensorflow():
    code = "import sys, memtrade.models; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_doctests():
    for name in ("memtrade.models", "memtrade.options"):
        results = doctest.testmod(importlib.import_module(name))
        assert results.attempted
        assert not results.failed


# A target is what its function makes: it has neither a default nor inputs of its own.
BUILT_IN = sorted(MODELS.keys() - {"target"})


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_option_is_documented_and_its_default_is_valid(name):
    model = make_model(name)
    assert model.name.startswith(name)
    assert MODELS[name].summary
    for each in options_of(MODELS[name]):
        assert each.doc
        assert each.type in ("int", "float", "bool", "str")
        assert getattr(model, each.name) == each.default


@pytest.mark.parametrize("name", BUILT_IN)
def test_inputs_are_static_and_start_with_the_batch(name):
    inputs = make_model(name, {"batch_size": "3"}).inputs()
    assert inputs
    for each in inputs.values():
        assert each.shape[0] == 3
        assert all(type(size) is int and size > 0 for size in each.shape)
        assert each.dtype == "float32" or each.below is not None


def test_text_is_converted_to_the_type_of_the_option():
    model = make_model(
        "gpt2", {"layers": "3", "tied": "yes", "dropout": "0.5", "batch-size": "7", "heads": 4.0}
    )
    assert model == make_model(
        "gpt2", {"layers": 3, "tied": True, "dropout": 0.5, "batch_size": 7, "heads": 4}
    )


def test_a_model_can_be_named_by_its_file():
    assert make_model("inception_v4") == make_model("inception-v4")


def test_image_axes_follow_the_data_format():
    images = make_model("resnet", {"batch_size": 2, "data_format": "NCHW"}).inputs()["images"]
    assert images.shape == (2, 3, 224, 224)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("resnet", {"layers": 51}, "must be one of 18, 34, 50, 101, 152, 200"),
        ("resnet", {"layers": "many"}, "'layers' must be a whole number, not 'many'"),
        ("resnet", {"batch_size": 0}, "'batch_size' must be at least 1, not 0"),
        ("resnet", {"batch_size": "1.5"}, "'batch_size' must be a whole number, not '1.5'"),
        ("resnet", {"batch_size": 1.5}, "'batch_size' must be a whole number, not 1.5"),
        ("resnet", {"image_size": -1}, "'image_size' must be at least 1, not -1"),
        ("resnet", {"data_format": "nhwc"}, "must be one of NHWC, NCHW"),
        ("resnet", {"seed": 1 << 63}, "'seed' must be at most 9223372036854775807, not 922"),
        ("resnet", {"num_classes": 1}, "'num_classes' must be at least 2, not 1"),
        ("inception-v4", {"image_size": 74}, "'image_size' must be at least 75, not 74"),
        ("inception-v4", {"dropout": 1}, "'dropout' must be below 1, not 1"),
        ("inception-v4", {"dropout": "nan"}, "'dropout' must be a finite number, not nan"),
        ("unet", {"image_size": 63}, "'image_size' must be at least 64, not 63"),
        ("gpt2", {"heads": 5}, "'heads' must divide the width, but 5 does not divide 768"),
        ("gpt2", {"tied": "maybe"}, "'tied' must be true or false, not 'maybe'"),
        ("unet", {"base_channels": 3}, "'base_channels' must be even, not 3"),
        ("amoebanet-d", {"layers": 4}, "'layers' must be a multiple of 3, not 4"),
        ("amoebanet-d", {"filters": 12}, "'filters' must be a multiple of 8, not 12"),
    ],
)
def test_bad_values_are_named_with_the_rule(name, given, message):
    with pytest.raises(MemtradeError, match=message):
        make_model(name, given)


def test_direct_construction_is_checked_too():
    with pytest.raises(MemtradeError, match=r"must be one of .* not 51"):
        ResNet(layers=51)
    with pytest.raises(MemtradeError, match="'layers' must be a whole number, not '50'"):
        ResNet(layers="50")  # pyright: ignore[reportArgumentType]


def test_unknown_names_come_with_the_nearest_one():
    with pytest.raises(UnknownNameError, match="unknown model 'resnt': did you mean 'resnet'"):
        make_model("resnt")
    with pytest.raises(UnknownNameError, match="unknown option of resnet 'layer': did you mean 'l"):
        make_model("resnet", {"layer": 50})


def test_optimizers_are_listed_with_their_learning_rates():
    assert set(OPTIMIZERS) == {"sgd", "momentum", "rmsprop", "adam"}
    assert all(rate > 0 for rate in OPTIMIZERS.values())
