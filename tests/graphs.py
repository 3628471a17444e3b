"""Hand-made step graphs for tests that need no TensorFlow.

`chain(n)` is a training step of n layers, as TensorFlow would trace it:

    x ─► layer1 ─► ... ─► layern ─► loss
           │                 │       │
    grad1 ◄── ... ◄──── gradn ◄──────┘      grad_i reads grad_{i+1} and the output of layer i-1
      │                   │
    update1 ...         updaten
"""

from memtrade.devices import Device, load_device
from memtrade.facts import CPU, OUTPUTS, Fact, Request, ShippedFacts
from memtrade.graph import GraphData, Op, StepGraph, Tensor
from memtrade.plan import Action, Order, Plan
from memtrade.target import Target, profile_target


class HandMade(ShippedFacts):
    """Facts of graphs made by hand, whose ops are of types that nobody has looked at: taken for
    known, so without a margin."""

    def is_known(self, op_type: str) -> bool:
        return True


class GivingBack(HandMade):
    """Kernels that give scratch back before they ask for their last output, and some after."""

    def of(self, op: Op, graph: StepGraph) -> Fact:
        fact = super().of(op, graph)
        most = max((each.size_bytes for each in fact.requests), default=0)
        large, small = most * (1 + op.id % 3) + 256, most + 1
        scratch = [Request(size) for size in (large, small, -large)]
        return fact._replace(requests=(*fact.requests[:-1], *scratch, *fact.requests[-1:]))


ARENA = profile_target("arena").replace(facts=HandMade(CPU))
PINNED = Plan("original", {}, "", "pinned", (), (Action("run", 0),))  # all in one order


def target(name: str, order: Order = "pinned") -> Target:
    """A shipped profile."""
    return on(load_device(name), order)


def on(device: Device, order: Order = "pinned") -> Target:
    """A device of a test's own."""
    facts = HandMade(CPU if device.blocking_transfers else OUTPUTS)
    return Target(device=device, facts=facts, order=order, limit_bytes=device.memory_bytes)


class Builder:
    def __init__(self):
        self.ops: list[Op] = []
        self.tensors: list[Tensor] = []

    def op(self, name, type_, inputs=(), *, sizes=(), controls=(), stateful=False) -> list[int]:
        op_id = len(self.ops)
        outputs = []
        for index, size in enumerate(sizes):
            tensor = Tensor(len(self.tensors), op_id, index, "float32", (size // 4,), size)
            self.tensors.append(tensor)
            outputs.append(tensor.id)
        self.ops.append(
            Op(op_id, name, type_, tuple(inputs), tuple(controls), tuple(outputs), stateful, {})
        )
        return outputs

    def build(self, *, inputs, outputs, loss, control_outputs=(), collection=()) -> StepGraph:
        return StepGraph(
            GraphData(
                name="hand-made",
                ops=tuple(self.ops),
                tensors=tuple(self.tensors),
                inputs=tuple(inputs),
                captures=(),
                capture_bytes=(),
                outputs=tuple(outputs),
                control_outputs=tuple(control_outputs),
                loss=loss,
                collection=tuple(collection),
            )
        )


def chain(layers: int, size: int = 1 << 20, *, stateful: int | None = None) -> StepGraph:
    """A chain of `layers` layers with outputs of `size` bytes; layer `stateful` is random."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[size])
    activations = [x]
    for i in range(1, layers + 1):
        inputs = [activations[-1]]
        (y,) = b.op(f"layer{i}", "Sin", inputs, sizes=[size], stateful=i == stateful)
        activations.append(y)
    (loss,) = b.op("loss", "Sum", [activations[-1]], sizes=[4])
    (seed,) = b.op("seed", "Mul", [loss, activations[-1]], sizes=[size])
    gradient, updates = seed, []
    for i in range(layers, 0, -1):
        (gradient,) = b.op(f"grad{i}", "SinGrad", [gradient, activations[i - 1]], sizes=[size])
        b.op(f"update{i}", "AssignAddVariableOp", [gradient], stateful=True)
        updates.append(len(b.ops) - 1)
    return b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=updates)
