"""Training steps as people write them, each small enough to run in about a second.

A step is a function that makes it, as `memtrade.apply` and `--target` take them:

    step, batch = CORPUS["adversarial/dcgan"]()
    memtrade run --target tests.corpus.adversarial:dcgan
"""

from __future__ import annotations

from collections.abc import Callable

from tests.corpus import (
    adversarial,
    algorithms,
    control,
    generative,
    graphs,
    inputs,
    optimizers,
    tables,
    text,
    training,
    vision,
)
from tests.corpus.parts import Made

CORPUS: dict[str, Callable[[], Made]] = {
    f"{module.__name__.rpartition('.')[2]}/{make.__name__}": make
    for module in (
        vision, adversarial, generative, text, tables, graphs, training, optimizers, control,
        inputs, algorithms,
    )
    for make in module.STEPS
}  # fmt: skip
