"""A model's forward pass as TensorFlow 1.15 can read it: what `originals.py` hands its child.

    python -m memtrade.papers.originals_graph PATH   < a trial's spec, as JSON

The same model draws it, so the net is the same op for op. Written as TensorFlow 1 wrote it where
the tools look: variables are references with one `read` each, sums are `Add`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import tensorflow as tf

from memtrade.measure.protocol import TrialSpec
from memtrade.models import DrawnModel, make_model
from memtrade.models.base import Input
from memtrade.tf.layers import Net
from memtrade.tf.variables import Variables, seed_pair

v1 = tf.compat.v1
LOSS = "loss"


def normal(shape: Sequence[int], *, stddev: float, seed: int) -> tf.Tensor:
    """`memtrade.tf.variables.normal` by an op that TensorFlow 1 has: one allocation, no holes."""
    return tf.raw_ops.ParameterizedTruncatedNormal(
        shape=list(shape),
        means=0.0,
        stdevs=stddev,
        minvals=-4 * stddev,
        maxvals=4 * stddev,
        seed=seed,
        seed2=seed,
    )


class References(Variables):
    """A model's variables in the graph itself, as TensorFlow 1 made them."""

    def get(
        self, name: str, shape: Sequence[int], *, stddev: float, fill: float, trainable: bool
    ) -> tf.Variable:
        _, seed = seed_pair(self.seed, name)
        drawn = normal(shape, stddev=stddev, seed=seed) if stddev else None
        initial = tf.fill(list(shape), fill) if drawn is None else drawn
        with tf.name_scope(""):
            made = v1.Variable(initial, trainable=trainable, name=name, use_resource=False)
        self._by_name[name] = made
        return made


class PlainNet(Net):
    """Without gradients of memtrade's own, which only the process that defines them knows."""

    def _times(self, x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        return x * factor


def _given(name: str, wanted: Input) -> tf.Tensor:
    """A tensor of the batch, which lies in the arena like the weights."""
    if wanted.below is None:
        initial = normal(wanted.shape, stddev=1.0, seed=1)
    else:
        dtype = tf.as_dtype(wanted.dtype)
        initial = v1.random_uniform(list(wanted.shape), maxval=wanted.below, dtype=dtype, seed=1)
    return v1.Variable(initial, trainable=False, name=name, use_resource=False).value()


def export(model: DrawnModel, path: Path) -> None:
    """Writes the model's forward pass, its variables and what updates them, as a meta graph."""
    with tf.Graph().as_default() as graph:
        batch = {name: _given(name, each) for name, each in model.inputs().items()}
        net = PlainNet(References(model.seed), layout=model.layout)
        tf.identity(model.loss(net, **batch), name=LOSS)
        for op in graph.get_operations():
            if op.type == "AssignSub":
                v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, op)
        drawn = v1.train.export_meta_graph(strip_default_attrs=True, clear_devices=True)
    for node in drawn.graph_def.node:
        node.op = "Add" if node.op == "AddV2" else node.op
    path.write_bytes(drawn.SerializeToString())


def main(path: Path) -> int:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=TrialSpec)
    model = make_model(spec.model, spec.model_options)
    assert isinstance(model, DrawnModel)
    export(model, path)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
