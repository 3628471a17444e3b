"""The layers that the built-in models are drawn with: tf-slim's spirit, on tf.nn and tf.Variable.

`Net` draws one forward pass with a model's `Variables`. A second trace makes a second `Net` over
the same `Variables`, and so finds the variables of the first.

Ops are created in forward order, one layer after the other, on which the rest of memtrade relies:
the graph's creation order is the execution order that strategies start from. Shapes are static, so
there are no shape ops, and constants are shared within a graph.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import tensorflow as tf

from memtrade.errors import MemtradeError
from memtrade.models.base import DataFormat
from memtrade.tf.step import CHECKPOINTS
from memtrade.tf.variables import Variables, seed_pair, static_shape

Padding = Literal["SAME", "VALID"]


class Net:
    """Draws one forward pass: a method a layer, on tensors with static shapes.

    Images are [N, H, W, C] or [N, C, H, W] as `layout` says; the docstrings write [N, H, W, C].

    Args:
        variables: where the weights are kept. They are created when first asked for.
        layout: the order of the axes of images.

    Attributes:
        training: whether batch norm goes by the batch's averages, or else by lasting ones. A model
            says so before it draws.
    """

    def __init__(self, variables: Variables, *, layout: DataFormat = "NHWC"):
        self.layout: DataFormat = layout
        self.training = True
        self._variables = variables
        self._scopes: list[str] = []
        self._asked: set[str] = set()
        self._constants: dict[float | None, tf.Tensor] = {}

    # Names, variables, constants

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefixes the names of the variables and ops within."""
        self._scopes.append(name)
        try:
            with tf.name_scope(name):
                yield
        finally:
            self._scopes.pop()

    def variable(
        self,
        name: str,
        shape: Sequence[int],
        *,
        stddev: float = 0.0,
        fill: float = 0.0,
        trainable: bool = True,
    ) -> tf.Variable:
        """A float32 variable of the current scope.

        Raises:
            MemtradeError: the same name twice in one forward pass. To share weights, pass the
                variable on.
        """
        name = self._path(name)
        if name in self._asked:
            raise MemtradeError(f"two layers are named {name!r}: put one of them in a net.scope")
        self._asked.add(name)
        return self._variables.get(name, shape, stddev=stddev, fill=fill, trainable=trainable)

    def _path(self, name: str) -> str:
        return "/".join([*self._scopes, name])

    def _constant(self, value: float | None) -> tf.Tensor:
        """One constant op per graph for a scalar, or (None) for an empty vector."""
        if value not in self._constants:
            with tf.name_scope(""):
                self._constants[value] = tf.constant([] if value is None else value, tf.float32)
        return self._constants[value]

    def checkpoint(self, x: tf.Tensor) -> tf.Tensor:
        """Marks a block's output as a natural place to recompute from. Returns it unchanged."""
        tf.compat.v1.add_to_collection(CHECKPOINTS, x)
        return x

    def block(
        self, draw: Callable[..., tf.Tensor], *tensors: tf.Tensor, **settings: Any
    ) -> tf.Tensor:
        """`draw(net, *tensors, **settings)`: a part of the model that ends in a checkpoint."""
        return self.checkpoint(draw(self, *tensors, **settings))

    # Images

    def channels(self, x: tf.Tensor) -> int:
        return static_shape(x)[1 if self.layout == "NCHW" else 3]

    def image_axes(self) -> tuple[int, int]:
        """The axes of height and width."""
        return (2, 3) if self.layout == "NCHW" else (1, 2)

    def conv(
        self,
        x: tf.Tensor,
        filters: int,
        kernel: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        padding: Padding = "SAME",
        name: str = "conv",
    ) -> tf.Tensor:
        """Convolution without bias: [N, H, W, C] -> [N, H', W', filters].

        Initial values as He et al. 2015 (arXiv 1502.01852): normal, variance 2 / fan-in.
        """
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        shape = (height, width, self.channels(x), filters)
        with self.scope(name):
            weights = self.variable("kernel", shape, stddev=math.sqrt(2 / math.prod(shape[:3])))
            return tf.nn.conv2d(
                x,
                weights,
                strides=stride,
                padding=padding,
                data_format=self.layout,
            )

    def batch_norm(self, x: tf.Tensor, *, decay: float, epsilon: float) -> tf.Tensor:
        """Batch normalization, fused, with trainable scale and offset.

        Each step moves the averages: `moving -= (moving - batch) * (1 - decay)`. The update is an
        assignment: whoever runs this layer a second time must not run that again.

        Not in `training`, lasting averages make it a product and a sum, neither of whose gradients
        reads x; only the offset is trained, as in tf-slim.
        """
        if not self.training:
            return self._shifted(x, epsilon)
        size = [self.channels(x)]
        with self.scope("batch_norm"):
            scale = self.variable("scale", size, fill=1.0)
            offset = self.variable("offset", size)
            moving_mean = self.variable("moving_mean", size, trainable=False)
            moving_variance = self.variable("moving_variance", size, fill=1.0, trainable=False)
            empty = self._constant(None)  # what the op wants for moving averages in training
            y, mean, variance = tf.compat.v1.nn.fused_batch_norm(
                x,
                scale,
                offset,
                mean=empty,
                variance=empty,
                epsilon=epsilon,
                data_format=self.layout,
                is_training=True,
            )
            rate = self._constant(1 - decay)
            for moving, batch in ((moving_mean, mean), (moving_variance, variance)):
                moving.assign_sub((moving - batch) * rate, read_value=False)
            return y

    def _shifted(self, x: tf.Tensor, epsilon: float) -> tf.Tensor:
        size = [self.channels(x)]
        with self.scope("batch_norm"):
            offset = self.variable("offset", size)
            mean = self.variable("moving_mean", size, trainable=False)
            variance = self.variable("moving_variance", size, fill=1.0, trainable=False)
            scale = tf.math.rsqrt(variance + epsilon)
            return self._times(x, self._along(scale)) + self._along(offset - mean * scale)

    def _times(self, x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        """x * factor without a gradient for `factor`, which would read x."""

        @tf.custom_gradient
        def scaled(x: tf.Tensor):
            return x * factor, lambda upstream: upstream * factor

        return scaled(x)  # pyright: ignore[reportReturnType]  # the decorator takes the gradient off

    def _along(self, channels: tf.Tensor) -> tf.Tensor:
        """[C] as it is added to images."""
        return tf.reshape(channels, [-1, 1, 1]) if self.layout == "NCHW" else channels

    def instance_norm(self, x: tf.Tensor) -> tf.Tensor:
        """Each channel of each image to mean 0 and variance 1; nothing to train."""
        mean, variance = tf.nn.moments(x, self.image_axes(), keepdims=True)  # [N, 1, 1, C]
        return _standardized(x, mean, variance)

    def max_pool(
        self, x: tf.Tensor, size: int, *, stride: int = 1, padding: Padding = "SAME"
    ) -> tf.Tensor:
        return tf.nn.max_pool2d(x, size, stride, padding, data_format=self.layout)

    def avg_pool(
        self, x: tf.Tensor, size: int, *, stride: int = 1, padding: Padding = "SAME"
    ) -> tf.Tensor:
        """Padding does not count in the mean."""
        return tf.nn.avg_pool2d(x, size, stride, padding, data_format=self.layout)

    def global_average_pool(self, x: tf.Tensor) -> tf.Tensor:
        """[N, H, W, C] -> [N, C]."""
        return tf.reduce_mean(x, self.image_axes())

    def upsample(self, x: tf.Tensor) -> tf.Tensor:
        """Repeats each pixel: [N, H, W, C] -> [N, 2H, 2W, C]."""
        n, a, b, c = static_shape(x)
        if self.layout == "NHWC":
            return tf.raw_ops.ResizeNearestNeighbor(images=x, size=[2 * a, 2 * b])
        # The resize op knows [N, H, W, C] only.
        x = tf.tile(tf.reshape(x, [n, a, b, 1, c, 1]), [1, 1, 1, 2, 1, 2])
        return tf.reshape(x, [n, a, 2 * b, 2 * c])

    def pad(self, x: tf.Tensor, image: tuple[tuple[int, int], tuple[int, int]]) -> tf.Tensor:
        """Adds zeros: ((top, bottom), (left, right))."""
        none = (0, 0)
        axes = [none, none, *image] if self.layout == "NCHW" else [none, *image, none]
        return tf.pad(x, axes)

    def crop(self, x: tf.Tensor, *, top: int, left: int) -> tf.Tensor:
        """Drops the first rows and columns: [N, H, W, C] -> [N, H - top, W - left, C]."""
        if self.layout == "NCHW":
            return x[:, :, top:, left:]
        return x[:, top:, left:, :]

    def concat(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Puts the channels of images side by side."""
        return tf.concat(tensors, 1 if self.layout == "NCHW" else 3)

    # Anything; these as TensorFlow has them

    relu, leaky_relu = staticmethod(tf.nn.relu), staticmethod(tf.nn.leaky_relu)
    softmax, matmul = staticmethod(tf.nn.softmax), staticmethod(tf.matmul)
    reshape, transpose = staticmethod(tf.reshape), staticmethod(tf.transpose)
    identity, mean = staticmethod(tf.identity), staticmethod(tf.reduce_mean)

    def gelu(self, x: tf.Tensor) -> tf.Tensor:
        """GPT-2's approximation, 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

        Factored, because the gradient of tf.pow in tf.nn.gelu computes logarithms.
        """
        scale = math.sqrt(2 / math.pi)
        inner = x * (self._constant(scale) + self._constant(0.044715 * scale) * tf.square(x))
        return (self._constant(0.5) * x) * (self._constant(1.0) + tf.tanh(inner))

    def dropout(
        self,
        x: tf.Tensor,
        rate: float,
        *,
        whole: Literal["values", "channels"] = "values",
        name: str = "dropout",
    ) -> tf.Tensor:
        """Zeroes values, or whole channels of an image, at a rate; nothing at rate 0.

        The random op is stateful, as in most models that users bring: it draws a new mask whenever
        it runs, so it must not run twice in a step. Its seed is the model's, with the scope's name.
        """
        if rate == 0:
            return x
        noise = list(static_shape(x))
        if whole == "channels":
            noise = [1 if axis in self.image_axes() else size for axis, size in enumerate(noise)]
        with self.scope(name):
            _, op_seed = seed_pair(0, f"{self._variables.seed}/{self._path('mask')}")
            return tf.nn.dropout(x, rate, noise_shape=noise, seed=op_seed)

    def dense(
        self,
        x: tf.Tensor,
        units: int,
        *,
        bias: bool = True,
        stddev: float | None = None,
        name: str,
    ) -> tf.Tensor:
        """[N, C] -> [N, units]. `stddev` of the initial weights: 1 / sqrt(C) unless given."""
        size = static_shape(x)[-1]
        with self.scope(name):
            weights = self.variable("kernel", [size, units], stddev=stddev or size**-0.5)
            y = tf.matmul(x, weights)
            return tf.nn.bias_add(y, self.variable("bias", [units])) if bias else y

    def layer_norm(self, x: tf.Tensor, *, name: str) -> tf.Tensor:
        """Each row of [N, C] to mean 0 and variance 1, then a trainable scale and offset.

        Not tf.nn.batch_normalization with a scale: that makes three more tensors of x's size.
        """
        size = [static_shape(x)[-1]]
        with self.scope(name):
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)  # [N, 1]
            x = _standardized(x, mean, variance)
            x = x * self.variable("scale", size, fill=1.0)
            return tf.nn.bias_add(x, self.variable("offset", size))

    def embedding(self, ids: tf.Tensor, table: tf.Variable) -> tf.Tensor:
        """[...] of whole numbers, [V, C] -> [..., C]."""
        return tf.gather(tf.convert_to_tensor(table), ids)

    def scaled(self, x: tf.Tensor, factor: float) -> tf.Tensor:
        return x * self._constant(factor)

    def uniform(self, shape: Sequence[int], *, name: str) -> tf.Tensor:
        """New values from [0, 1) in each step, from the model's seed and `name`."""
        _, op_seed = seed_pair(0, f"{self._variables.seed}/{self._path(name)}")
        return tf.random.uniform(list(shape), seed=op_seed, name=name)

    def split(self, x: tf.Tensor, parts: int) -> list[tf.Tensor]:
        """Equal parts of the last axis."""
        return tf.split(x, parts, axis=-1)

    def shift_left(self, x: tf.Tensor) -> tf.Tensor:
        """[N, T] -> [N, T]: each row moved by one, its first value at the end."""
        return tf.roll(x, -1, axis=1)

    def causal_mask(self, positions: int) -> tf.Tensor:
        """[T, T] to add to attention scores: 0 up to the diagonal, -1e9 after it."""
        ones = tf.fill([positions, positions], self._constant(1.0))
        return (tf.linalg.band_part(ones, -1, 0) - self._constant(1.0)) * self._constant(1e9)

    # Losses

    def cross_entropy(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Softmax cross-entropy: [N, classes], [N] of whole numbers or [N, classes] -> [N]."""
        if labels.shape.rank == 2:
            return tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    def weight_penalty(self, decay: float) -> tf.Tensor:
        """`decay` of half the sum of squares of all that has been asked for and is trained."""
        trained = self._variables.trainable()
        return self._constant(decay) * tf.add_n([tf.nn.l2_loss(weight) for weight in trained])

    def binary_cross_entropy(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Of a sigmoid: two tensors of one shape, targets in [0, 1] -> the same shape."""
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)


class RecomputingNet(Net):
    """Puts `tf.recompute_grad` around each block, as one does by hand.

    TensorFlow calls the block's function a second time while it makes the gradients, somewhere
    else in the program: that drawing must find the scopes and the names of the first one.
    """

    def block(
        self, draw: Callable[..., tf.Tensor], *tensors: tf.Tensor, **settings: Any
    ) -> tf.Tensor:
        scopes, asked = list(self._scopes), set(self._asked)

        def again(*inputs: tf.Tensor) -> tf.Tensor:
            before = self._scopes, self._asked
            self._scopes, self._asked = list(scopes), set(asked)
            try:
                return draw(self, *inputs, **settings)
            finally:
                self._scopes, self._asked = before[0], before[1] | self._asked

        return self.checkpoint(tf.recompute_grad(again)(*tensors))


def _standardized(x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    """(x - mean) / sqrt(variance + 1e-5) as x * r - mean * r: of x's size, only x is kept."""
    r = tf.math.rsqrt(variance + 1e-5)
    return x * r - mean * r
