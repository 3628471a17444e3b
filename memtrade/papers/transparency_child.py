"""One way of training ResNet-101 on scikit-learn's digits, in a process of its own.

What `transparency.py` starts: a way's name on the command line, a JSON document of what was seen on
standard output. All ways begin with the same variables and see the same batches. Accuracies are of
the test images in one batch, normalized by its own averages, as in training.
"""

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from memtrade.errors import MemtradeError
from memtrade.models import make_model
from memtrade.models.base import Classifier
from memtrade.models.resnet import ResNet
from memtrade.papers.transparency import (
    BATCH,
    EPOCHS,
    GPIPE,
    IMAGE_SIZE,
    LAYERS,
    LEARNING_RATE,
    LIMIT_BYTES,
    MICRO_BATCHES,
    OPTIMIZER,
    PARTITIONS,
    TEST_SHARE,
    TrainedRun,
)
from memtrade.pipeline.design.partitioner import Partitioner
from memtrade.pipeline.design.schedule import make_schedule
from memtrade.pipeline.tf import build_pipeline, draw_step, session_config
from memtrade.strategies import find_planned, make_options
from memtrade.target import profile_target
from memtrade.tf.build import make_step
from memtrade.tf.device import Arena
from memtrade.tf.extract import trace
from memtrade.tf.layers import Net
from memtrade.tf.rewrite import apply_plan
from memtrade.tf.variables import Variables

v1 = tf.compat.v1
Images = np.ndarray
Values = dict[str, np.ndarray]
_BATCH_PART = re.compile(r"stage\d+/batch(\d+)/input/(\w+?)(_0)?")


def digits() -> tuple[Images, Images, Images, Images]:
    """Images [N, IMAGE_SIZE, IMAGE_SIZE, 3] in [0, 1] and labels [N], to train and to test with.

    Raises:
        MemtradeError: scikit-learn, which ships them, is missing.
    """
    try:
        from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MemtradeError(
            "the digits come with scikit-learn: pip install scikit-learn"
        ) from error
    found = load_digits()
    times = IMAGE_SIZE // found.images.shape[1]
    images = np.kron(found.images / 16, np.ones((1, times, times)))[..., None].repeat(3, axis=3)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order].astype(np.float32), found.target[order].astype(np.int64)
    tests = int(len(images) * TEST_SHARE)
    return images[tests:], labels[tests:], images[:tests], labels[:tests]


def batches(images: Images, labels: Images, epoch: int) -> Iterator[tuple[Images, Images]]:
    """Whole batches in the epoch's own order."""
    order = np.random.default_rng(1 + epoch).permutation(len(images))
    for first in range(0, len(images) - BATCH + 1, BATCH):
        chosen = order[first : first + BATCH]
        yield images[chosen], labels[chosen]


def model() -> ResNet:
    options = {"layers": LAYERS, "image_size": IMAGE_SIZE, "num_classes": 10, "batch_size": BATCH}
    made = make_model("resnet", options)
    assert isinstance(made, ResNet)
    return made


class Unpipelined:
    """The plain step, or what a strategy made of it."""

    def __init__(self, way: str, arena: Arena):
        made = make_step(model(), optimizer=OPTIMIZER, learning_rate=LEARNING_RATE)
        self.run = made.function
        if way != "plain":
            traced, target = trace(made), profile_target("arena", limit_bytes=LIMIT_BYTES)
            plan = find_planned(way).plan(traced.graph, make_options(way), target)
            self.run = apply_plan(traced, plan, arena.transfer)
        self.variables = made.variables()

    def step(self, images: Images, labels: Images) -> float:
        """Does a step. Returns its loss."""
        return float(self.run(tf.constant(images), tf.constant(labels)))

    def values(self) -> Values:
        """All variables, by their names in the plain step."""
        return {each.name: each.numpy() for each in self.variables}


class Pipelined:
    """The same by GPipe, each stage on a logical device of this process."""

    def __init__(self) -> None:
        whole = model()
        part = dataclasses.replace(whole, batch_size=BATCH // MICRO_BATCHES)
        drawn = draw_step(part, whole, optimizer=OPTIMIZER, learning_rate=LEARNING_RATE)
        graph = drawn.trace.graph
        partition = Partitioner(graph).by_time(PARTITIONS, profile_target("arena"), slack=0.1)
        schedule = make_schedule(
            "gpipe", stages=PARTITIONS, micro_batches=MICRO_BATCHES, checkpoint="always"
        )
        devices = [f"/device:CPU:{i}" for i in range(PARTITIONS)]
        self.pipeline = build_pipeline(drawn, partition, schedule, devices)
        self.feeds = self._feeds()
        config = session_config()
        config.device_count["CPU"] = PARTITIONS
        self.session = v1.Session(graph=self.pipeline.graph, config=config)
        self.session.run(self.pipeline.initialize)

    def _feeds(self) -> list[tuple[tf.Operation, tf.Tensor, str, int]]:
        """What sets a part of the batch where it lies: the op, what is fed, input, micro-batch."""
        found = []
        graph = self.pipeline.graph
        with graph.as_default():
            for handle in graph.get_operations():
                named = _BATCH_PART.fullmatch(handle.name)
                if handle.type == "VarHandleOp" and named:
                    with tf.device(handle.device):
                        value = v1.placeholder(handle.get_attr("dtype"), handle.get_attr("shape"))
                        setting = tf.raw_ops.AssignVariableOp(
                            resource=handle.outputs[0], value=value
                        )
                    found.append((setting, value, named[2], int(named[1])))
        return found

    def step(self, images: Images, labels: Images) -> float:
        given = {"images": images, "labels": labels}
        parts = {name: np.split(value, MICRO_BATCHES) for name, value in given.items()}
        fed = {value: parts[name][i] for _, value, name, i in self.feeds}
        self.session.run([setting for setting, *_ in self.feeds], fed)
        self.session.run(self.pipeline.step)
        return float(self.session.run(self.pipeline.loss))

    def values(self) -> Values:
        return self.session.run(self.pipeline.values)


class Examiner:
    """How many of the test images a net with the given weights gets right."""

    def __init__(self, net: Classifier, images: Images, labels: Images):
        self.weights = Variables(net.seed)
        self.images, self.labels = tf.constant(images), labels
        self.logits = tf.function(
            lambda given: net.logits(Net(self.weights), given), autograph=False
        )

    def accuracy(self, values: Values) -> float:
        self.logits.get_concrete_function(self.images)  # makes the variables
        for weight in self.weights.trainable():
            weight.assign(values[weight.name])
        guessed = np.argmax(self.logits(self.images).numpy(), axis=1)
        return float(np.mean(guessed == self.labels))


def train(way: str) -> TrainedRun:
    images, labels, test_images, test_labels = digits()
    arena = Arena(LIMIT_BYTES)
    # Without it the plain step would be fused, and differ from the rewritten in the last bit.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    arena.start()
    trained = Pipelined() if way == GPIPE else Unpipelined(way, arena)
    examiner = Examiner(model(), test_images, test_labels)
    losses, accuracies, peaks = [], [], []
    for epoch in range(EPOCHS):
        for pair in batches(images, labels, epoch):
            arena.reset_peak()
            losses.append(trained.step(*pair))
            peaks.append(arena.peak_bytes())
        accuracies.append(examiner.accuracy(trained.values()))
        print(f"{way}, epoch {epoch + 1}: {losses[-1]:.4f} {accuracies[-1]:.4f}", file=sys.stderr)
    digest = hashlib.sha256()
    for name, value in sorted(trained.values().items()):
        digest.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return TrainedRun(way, losses, accuracies, digest.hexdigest(), max(peaks), len(images))


if __name__ == "__main__":
    try:
        print(json.dumps(dataclasses.asdict(train(sys.argv[1]))))
    except MemtradeError as error:
        sys.exit(f"memtrade: {error}")
