"""Runs each kernel of `reuse.toml` with all inputs held but one, for its log: see test_reuse.py.

    python -m tests.tf.drive_reuse

Named by type and position: `Mul/1/in0` and `Mul/1/in1` are its inputs, of which only the second may
be taken, and `Mul/1/run` is the kernel.
"""

from __future__ import annotations

import inspect

import tensorflow as tf

from memtrade.facts import reuse
from memtrade.tf.device import make_device

LIMIT_BYTES = 512 << 20
SIDE = 64  # of a square matrix of float32

# What kernels read besides tensors like their output: argument -> values.
OTHERS = {
    "BiasAdd": {"bias": [0.5] * SIDE},
    "MatrixBandPart": {"num_lower": 1, "num_upper": 1},
    "ScatterNdNonAliasingAdd": {"indices": [[0]], "updates": [[0.5] * SIDE]},
    "Select": {"condition": [True] * SIDE},
    "SelectV2": {"condition": [[True]]},
}


def arguments_of(op_type: str) -> list[str]:
    """The inputs, in order: attributes have defaults."""
    parameters = inspect.signature(getattr(tf.raw_ops, op_type)).parameters.values()
    return [each.name for each in parameters if each.default is each.empty]


def positions_of(op_type: str) -> list[int]:
    """Those of its inputs that are like its output."""
    if reuse().tried[op_type] is None:
        return [0, 1, 2]
    others = OTHERS.get(op_type, {})
    return [i for i, each in enumerate(arguments_of(op_type)) if each not in others]


def run_kernel(op_type: str, free: int) -> None:
    @tf.function(autograph=False)
    def held(*values: tf.Tensor) -> list[tf.Tensor]:
        name = f"{op_type}/{free}"
        inputs = {
            i: tf.raw_ops.Fill(dims=[SIDE, SIDE], value=values[i], name=f"{name}/in{i}")
            for i in positions_of(op_type)
        }
        kernel, arguments = getattr(tf.raw_ops, op_type), arguments_of(op_type)
        if reuse().tried[op_type] is None:
            given = {"inputs": list(inputs.values())}
        else:
            given = OTHERS.get(op_type, {}) | {arguments[i]: t for i, t in inputs.items()}
        made = kernel(**given, name=f"{name}/run")
        with tf.control_dependencies([made]):
            return [tf.raw_ops.Size(input=t) for i, t in (*inputs.items(), (-1, made)) if i != free]

    held(*map(tf.constant, (0.5, 0.25, 0.125)))


def main() -> None:
    device = make_device("arena", LIMIT_BYTES)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    device.start()
    for op_type in reuse().tried:
        for position in positions_of(op_type):
            run_kernel(op_type, position)


if __name__ == "__main__":
    main()
