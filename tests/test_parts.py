"""A step on two devices in parts: what they hand to each other, and where they meet."""

import msgspec
import pytest

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import GraphData, StepGraph
from memtrade.op_types import RECEIVE, SEND
from memtrade.order import base_order
from memtrade.parts import groups_of, losses, ranks, split
from tests.graphs import Builder

SIZE = 1 << 20


class Replicated:
    """Two replicas, traced one after the other as TensorFlow does it:

    x ─ layer ─ loss ─ grad ─ reduce1 ─ reduce2 ─ update        on each
    mean                                                        of both losses, on the first
    """

    def __init__(self):
        self.b, self.devices = Builder(), []
        self.losses, self.x, self.updates = [], [], []
        gradients = []
        for device in ("CPU:0", "CPU:1"):
            (x,) = self.add(device, "x", "Placeholder", sizes=[SIZE])
            (layer,) = self.add(device, "layer", "Tanh", [x], sizes=[SIZE])
            (loss,) = self.add(device, "loss", "Mean", [layer], sizes=[4])
            gradients.append(self.add(device, "grad", "TanhGrad", [layer, loss], sizes=[SIZE]))
            self.losses.append(loss)
            self.x.append(x)
        reduced = []
        for device, (gradient,) in zip(("CPU:0", "CPU:1"), gradients, strict=True):
            last, made = (), []
            for name in ("reduce1", "reduce2"):
                made += self.add(
                    device, name, "CollectiveReduceV2", [gradient], sizes=[SIZE], controls=last,
                    stateful=True,
                )  # fmt: skip
                last = (len(self.b.ops) - 1,)
            reduced.append(made)
        for device, made in zip(("CPU:0", "CPU:1"), reduced, strict=True):
            self.add(device, "update", "AssignSubVariableOp", made, stateful=True)
            self.updates.append(len(self.b.ops) - 1)
        (self.mean,) = self.add("CPU:0", "mean", "AddN", self.losses, sizes=[4])

    def add(self, device, name, kind, inputs=(), **told):
        self.devices.append(device)
        return self.b.op(f"{device}/{name}", kind, inputs, **told)

    @property
    def data(self) -> GraphData:
        return self.b.build(
            inputs=self.x, outputs=[self.mean], loss=self.mean, control_outputs=self.updates
        ).data


def test_each_part_has_what_its_device_does_and_hands_on():
    step = Replicated()
    first, second = split(step.data, step.devices)
    assert (first.device, second.device) == ("CPU:0", "CPU:1")
    kinds = [[op.type for op in part.data.ops] for part in (first, second)]
    both = ["Placeholder", "Tanh", "Mean", "TanhGrad"]
    meet = ["CollectiveReduceV2", "CollectiveReduceV2", "AssignSubVariableOp"]
    assert kinds[0] == [*both, *meet, RECEIVE, "AddN"]
    assert kinds[1] == [*both[:3], SEND, both[3], *meet]
    assert [op.name for op in first.data.ops if op.type == RECEIVE] == ["CPU:1/loss"]


def test_each_replica_has_a_loss_that_waits_for_nobody():
    step = Replicated()
    assert losses(step.data, step.devices) == dict(
        zip(("CPU:0", "CPU:1"), step.losses, strict=True)
    )


def test_a_loss_that_one_replica_returns_has_its_twin_on_the_other():
    step = Replicated()
    data = msgspec.structs.replace(step.data, loss=step.losses[0])
    assert losses(data, step.devices)["CPU:1"] == step.losses[1]


def test_what_devices_wait_for_has_one_order_on_all():
    step = Replicated()
    rank = ranks(step.data, groups_of(step.data, step.devices))
    own = losses(step.data, step.devices)
    for part in split(step.data, step.devices):
        graph = StepGraph(msgspec.structs.replace(part.data, loss=part.tensor_of[own[part.device]]))
        by_name = {op.name: op.id for op in step.data.ops}
        meeting = [
            rank[by_name[graph.ops[op_id].name]]
            for op_id in base_order(graph)
            if graph.ops[op_id].type in (SEND, RECEIVE, "CollectiveReduceV2")
        ]
        assert len(meeting) == 3
        if part.device == "CPU:1":
            assert meeting == sorted(meeting)


def test_collectives_of_a_group_are_the_nth_of_each_device():
    step = Replicated()
    names = [op.name for op in step.data.ops]
    groups = [[names[op_id] for op_id in group] for group in groups_of(step.data, step.devices)]
    assert groups == [[f"CPU:{i}/reduce{n}" for i in range(2)] for n in (1, 2)]


def test_a_replica_with_fewer_collectives_is_refused():
    step = Replicated()
    step.add("CPU:1", "more", "CollectiveReduceV2", [step.losses[1]], sizes=[4], stateful=True)
    with pytest.raises(UnsupportedGraphError, match="each replica must run the same ones"):
        split(step.data, step.devices)


def test_collectives_that_wait_for_each_other_are_refused():
    step = Replicated()
    ops = list(step.data.ops)
    first, second = (next(op.id for op in ops if op.name == f"CPU:1/reduce{n}") for n in (1, 2))
    ops[second] = msgspec.structs.replace(ops[second], controls=())
    ops[first] = msgspec.structs.replace(ops[first], controls=(second,))
    with pytest.raises(UnsupportedGraphError, match="waits for itself"):
        split(msgspec.structs.replace(step.data, ops=tuple(ops)), step.devices)
