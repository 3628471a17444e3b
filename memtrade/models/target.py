"""A training step of the user's own, named as "package.module:function".

The function makes the step. What it imports and builds happens in the child process alone, in
`memtrade.tf.target`; here is only its name, so that a process without TensorFlow can check it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memtrade.errors import MemtradeError
from memtrade.models.base import Input, Model
from memtrade.options import Value, option


@dataclass(frozen=True, kw_only=True)
class OwnStep(Model):
    """A step that a function of the user makes, with its own optimizer.

        def make_step(batch_size):
            ...
            return train_step, example_batch

    `train_step` and `example_batch` are what `memtrade.apply` takes.
    """

    family: ClassVar[str] = "target"
    summary: ClassVar[str] = "a step of your own: target/mypackage.train:make_step"
    variant_option: ClassVar[str] = "target"

    target: str = option("", "the function that makes the step, as package.module:function")

    def __post_init__(self) -> None:
        super().__post_init__()
        module, colon, function = self.target.partition(":")
        names = [*module.split("."), *function.split(".")]
        if not colon or not all(name.isidentifier() for name in names):
            given = f"not {self.target!r}" if self.target else "and none is named"
            raise MemtradeError(
                f"a target is a function of a module, {given}: "
                "write it as mypackage.train:make_step, behind --target"
            )

    @classmethod
    def named(cls, variant: str) -> dict[str, Value]:
        return {"target": variant}

    @property
    def name(self) -> str:
        return self.target

    def inputs(self) -> dict[str, Input]:
        """None are known before the function has run: it makes its own batches."""
        return {}
