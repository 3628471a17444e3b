"""A net as PyTorch runs it: which memory each op asks for, and what it keeps for its gradient.

Models draw themselves with a toolkit that is handed in; this one writes down what PyTorch 1.3 would
do on a GPU, op by op, and computes nothing. What an op keeps is autograd's: convolutions, norms,
pools and leaky ReLUs their input, max pools their indices, too (8 bytes each), ReLUs their output,
dropout of whole channels next to nothing, sums and concatenations nothing. A tensor dies when the
model's own code lets go of it, as it would in Python. cuDNN's workspaces are not known, and left
out.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from memtrade.models.base import DataFormat, Model

FLOAT = 4
# How the gradient of the output becomes that of the inputs: new memory; itself; slices of it.
Back = Literal["new", "same", "slices"]


class TapeOp(NamedTuple):
    """One op. Tensors are numbers.

    Attributes:
        shares: the output lies in its input.
        keeps: tensors that the gradient reads.
        aside_bytes: kept beside them.
        weights: bytes of each parameter that it trains.
        sizes: bytes of the inputs.
    """

    makes: int
    size_bytes: int
    inputs: tuple[int, ...]
    sizes: tuple[int, ...]
    keeps: tuple[int, ...] = ()
    aside_bytes: int = 0
    weights: tuple[int, ...] = ()
    back: Back = "new"
    shares: bool = False


class Gone(NamedTuple):
    """Nothing refers to the tensor any more, but what keeps it for a gradient."""

    tensor: int


@dataclass
class Tape:
    """What happens in order. `ends`: for each module of the net, how many events come before its
    end; `images` is the tensor that is given, `logits` the last."""

    events: list[TapeOp | Gone] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    image_bytes: int = 0
    images: int = 0
    logits: int = 0


class TapeTensor:
    """[N, C, H, W] or [N, C]; the end of its life is written down."""

    def __init__(self, net: TapeNet, shape: Sequence[int]):
        self.net, self.shape = net, tuple(shape)
        self.number = next(net.numbers)
        weakref.finalize(self, net.tape.events.append, Gone(self.number))

    @property
    def size_bytes(self) -> int:
        return FLOAT * math.prod(self.shape)

    def __add__(self, other: TapeTensor) -> TapeTensor:
        return self.net.op(self.shape, self, other, back="same")


class TapeNet:
    """The toolkit; `modules` says what counts as one of the net's: blocks or layers."""

    layout: DataFormat = "NCHW"

    def __init__(self, modules: Literal["blocks", "layers"]):
        self.modules, self.tape, self.numbers = modules, Tape(), itertools.count()

    def op(
        self,
        shape: Sequence[int],
        *inputs: TapeTensor,
        keeps: Literal["", "inputs", "output"] = "",
        modules: int = 1,
        **said: Any,
    ) -> TapeTensor:
        made = TapeTensor(self, shape)
        numbers = tuple(each.number for each in inputs)
        kept = {"": (), "inputs": numbers, "output": (made.number,)}[keeps]
        sizes = tuple(each.size_bytes for each in inputs)
        self.tape.events.append(
            TapeOp(made.number, made.size_bytes, numbers, sizes, keeps=kept, **said)
        )
        if self.modules == "layers":
            self._module_ends(modules)
        return made

    def _module_ends(self, count: int = 1) -> None:
        self.tape.ends += [len(self.tape.events)] * count

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        yield

    def block(
        self, draw: Callable[..., TapeTensor], *tensors: TapeTensor, **settings: Any
    ) -> TapeTensor:
        made = draw(self, *tensors, **settings)
        if self.modules == "blocks":
            self._module_ends()
        return made

    def channels(self, x: TapeTensor) -> int:
        return x.shape[1]

    def image_axes(self) -> tuple[int, int]:
        return (2, 3)

    def _strided(self, x: TapeTensor, channels: int, stride: int | tuple[int, int]) -> list[int]:
        down, right = stride if isinstance(stride, tuple) else (stride, stride)
        return [x.shape[0], channels, -(-x.shape[2] // down), -(-x.shape[3] // right)]

    def conv(
        self,
        x: TapeTensor,
        filters: int,
        kernel: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        name: str = "",
    ) -> TapeTensor:
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        weight = FLOAT * height * width * x.shape[1] * filters
        shape = self._strided(x, filters, stride)
        return self.op(shape, x, keeps="inputs", weights=(weight,))

    def batch_norm(self, x: TapeTensor, **_: Any) -> TapeTensor:
        each = FLOAT * x.shape[1]
        return self.op(x.shape, x, keeps="inputs", aside_bytes=2 * each, weights=(each, each))

    def instance_norm(self, x: TapeTensor) -> TapeTensor:
        return self.op(x.shape, x, keeps="inputs", aside_bytes=2 * FLOAT * x.shape[0] * x.shape[1])

    def relu(self, x: TapeTensor) -> TapeTensor:
        return self.op(x.shape, x, keeps="output")

    def leaky_relu(self, x: TapeTensor, slope: float) -> TapeTensor:
        return self.op(x.shape, x, keeps="inputs")

    def dropout(self, x: TapeTensor, rate: float, *, whole: str) -> TapeTensor:
        return self.op(x.shape, x, aside_bytes=FLOAT * x.shape[0] * x.shape[1])

    def avg_pool(self, x: TapeTensor, size: int, *, stride: int = 1) -> TapeTensor:
        return self.op(self._strided(x, x.shape[1], stride), x, keeps="inputs")

    def max_pool(
        self, x: TapeTensor, size: int, *, stride: int = 1, padding: str = "SAME"
    ) -> TapeTensor:
        shape = self._strided(x, x.shape[1], stride)
        # Behind each level of a net in layers is a module that puts its output by.
        return self.op(shape, x, keeps="inputs", aside_bytes=8 * math.prod(shape), modules=2)

    def global_average_pool(self, x: TapeTensor) -> TapeTensor:
        return self.op(x.shape[:2], x, keeps="inputs")

    def upsample(self, x: TapeTensor) -> TapeTensor:
        n, c, h, w = x.shape
        return self.op((n, c, 2 * h, 2 * w), x)

    def pad(self, x: TapeTensor, image: tuple[tuple[int, int], tuple[int, int]]) -> TapeTensor:
        n, c, *size = x.shape
        grown = [each + sum(more) for each, more in zip(size, image, strict=True)]
        return self.op((n, c, *grown), x, modules=0)

    def crop(self, x: TapeTensor, *, top: int, left: int) -> TapeTensor:
        n, c, h, w = x.shape
        return self.op((n, c, h - top, w - left), x, shares=True)

    def concat(self, tensors: Sequence[TapeTensor]) -> TapeTensor:
        n, _, *size = tensors[0].shape
        channels = sum(each.shape[1] for each in tensors)
        return self.op((n, channels, *size), *tensors, back="slices")

    def dense(self, x: TapeTensor, units: int, *, name: str) -> TapeTensor:
        weights = (FLOAT * x.shape[1] * units, FLOAT * units)
        return self.op((x.shape[0], units), x, keeps="inputs", weights=weights)


def draw(model: Model, modules: Literal["blocks", "layers"]) -> Tape:
    """The tape of an image model whose images are NCHW."""
    net = TapeNet(modules)
    images = TapeTensor(net, model.image(3))  # pyright: ignore[reportAttributeAccessIssue]  # of ImageModel
    net.tape.images, net.tape.image_bytes = images.number, images.size_bytes
    logits = model.logits(net, images)  # pyright: ignore[reportAttributeAccessIssue]  # of both
    net.tape.logits = logits.number
    tape = replace(net.tape, events=list(net.tape.events))  # without the ends that follow
    if modules == "blocks":  # the classifier behind the last block
        tape.ends.append(len(tape.events))
    return tape
