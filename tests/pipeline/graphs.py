"""A hand-made training step with weights, and with skip connections where one asks for them.

x ─► layer1 ─► layer2 ─► ... ─► layern ─► loss         layer_i reads weight_i and, if it has a
                                                       skip, the output of an earlier layer, too
gradients in reverse: weight_grad_i and grad_i read the gradient and what layer_i read
"""

from collections.abc import Mapping

import msgspec

from memtrade.graph import StepGraph
from tests.graphs import Builder

MIB = 1 << 20


def network(
    layers: int,
    *,
    skips: Mapping[int, int] | None = None,
    size: int = MIB,
    sizes: Mapping[int, int] | None = None,
    weight: int = 4096,
    shared: Mapping[int, int] | None = None,
) -> StepGraph:
    """A network of `layers` layers, numbered from 1.

    Args:
        skips: layer -> the earlier layer whose output it reads as well.
        size: bytes of every layer's output. sizes: of some layers, where it is another.
        weight: bytes of every weight.
        shared: layer -> the earlier layer whose weight it reads in place of one of its own.
    """
    skips, sizes, shared = skips or {}, sizes or {}, shared or {}
    b = Builder()
    size_of = {i: sizes.get(i, size) for i in range(1, layers + 1)}
    (x,) = b.op("x", "Placeholder", sizes=[size])
    own = [i for i in range(1, layers + 1) if i not in shared]
    handles = {i: _handle(b, f"weight{i}") for i in own}
    (rate,) = b.op("rate", "Const", sizes=[4])
    outputs, reads = {0: x}, {}
    for i in range(1, layers + 1):
        (reads[i],) = b.op(
            f"layer{i}/read", "ReadVariableOp", [handles[shared.get(i, i)]], sizes=[weight]
        )
        inputs = [outputs[i - 1], reads[i]]
        if i in skips:
            inputs.append(outputs[skips[i]])
        (outputs[i],) = b.op(f"layer{i}", "Sin", inputs, sizes=[size_of[i]])
    (loss,) = b.op("loss", "Sum", [outputs[layers]], sizes=[4])
    (gradient,) = b.op("seed", "Mul", [loss, outputs[layers]], sizes=[size_of[layers]])
    arriving = {layers: [gradient]}
    updates = []
    for i in range(layers, 0, -1):
        gradient = arriving[i][0]
        if len(arriving[i]) > 1:
            (gradient,) = b.op(f"sum{i}", "AddN", arriving[i], sizes=[size_of[i]])
        (of_weight,) = b.op(
            f"weight_grad{i}", "SinGrad", [gradient, outputs[i - 1]], sizes=[weight]
        )
        for source in [i - 1, skips.get(i)]:
            if source:
                (back,) = b.op(
                    f"grad{i}_{source}", "SinGrad", [gradient, reads[i]], sizes=[size_of[source]]
                )
                arriving.setdefault(source, []).append(back)
        b.op(
            f"update{i}",
            "ResourceApplyGradientDescent",
            [handles[shared.get(i, i)], rate, of_weight],
            stateful=True,
        )
        updates.append(len(b.ops) - 1)
    graph = b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=updates)
    captures = tuple(handles.values())
    return StepGraph(
        msgspec.structs.replace(
            graph.data, captures=captures, capture_bytes=(weight,) * len(captures)
        )
    )


def _handle(b: Builder, name: str) -> int:
    (handle,) = b.op(name, "Placeholder", sizes=[0])
    b.tensors[handle] = msgspec.structs.replace(b.tensors[handle], dtype="resource", shape=())
    return handle


def names(graph: StepGraph, ops) -> list[str]:
    return [graph.ops[op_id].name for op_id in ops]
