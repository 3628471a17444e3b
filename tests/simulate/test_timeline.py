"""The timeline on hand-made graphs and a device whose every rate is a round number."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from memtrade.costs import OpClass
from memtrade.devices import Device
from memtrade.graph import StepGraph
from memtrade.plan import Action
from memtrade.simulate.bfc import MIB
from memtrade.simulate.memory import MemoryResult
from memtrade.simulate.timeline import Timeline, TimeSimulator
from tests.graphs import Builder, on

# Moves 3 MiB a second, so a MatMul of [1 MiB] and [1 MiB] to 1 MiB takes one second.
SECOND = 3 * MIB


def device(
    *, copy: float = MIB, blocking: bool = False, memory: int = 256 * MIB, overhead: float = 0
) -> Device:
    return Device(
        name="round",
        source="made up",
        flops_per_s=1e30,
        memory_bandwidth_bytes_per_s=SECOND,
        host_to_device_bytes_per_s=copy,
        device_to_host_bytes_per_s=copy,
        launch_overhead_seconds=overhead,
        dispatch_seconds=0,
        memory_bytes=memory,
        blocking_transfers=blocking,
        efficiency={each.value: 1.0 for each in OpClass},
    )


def chain(length: int, *, wide: tuple[int, ...] = ()) -> StepGraph:
    """op1 ... opn of a second each; the last op reads op1 again; the `wide` make 8 MiB."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (w,) = b.op("w", "Placeholder", sizes=[MIB])
    made = [x]
    for i in range(1, length):
        made += b.op(f"op{i}", "MatMul", [made[-1], w], sizes=[MIB * (8 if i in wide else 1)])
    (last,) = b.op("last", "MatMul", [made[-1], made[1]], sizes=[MIB])
    return b.build(inputs=[x, w], outputs=[last], loss=last)


def swapped(graph: StepGraph, *, ahead: int = 0) -> list[Action]:
    """op1 leaves at once and comes back `ahead` ops before the last, which reads it."""
    (op1,) = graph.find(["op1"])
    actions = [Action("run", op.id) for op in graph.ops]
    actions.insert(len(actions) - 1 - ahead, Action("swap_in", op1))
    actions.insert(3, Action("swap_out", op1))
    return actions


def simulate_time(graph: StepGraph, actions: Sequence[Action], device: Device) -> Timeline:
    return TimeSimulator(graph, on(device)).timeline(actions)


def originals(graph: StepGraph) -> list[Action]:
    return [Action("run", op.id) for op in graph.ops]


def test_ops_run_one_after_the_other():
    timeline = simulate_time(chain(4), originals(chain(4)), device())
    assert timeline.step_seconds == pytest.approx(4)
    assert timeline.busy_seconds == pytest.approx({"compute": 4, "copy-out": 0, "copy-in": 0})
    assert timeline.end_seconds[2:] == pytest.approx([1, 2, 3, 4])


def test_an_op_takes_its_overhead_on_top():
    timeline = simulate_time(chain(4), originals(chain(4)), device(overhead=0.5))
    assert timeline.step_seconds == pytest.approx(6)


def test_a_late_copy_stalls_its_reader():
    graph = chain(6)
    timeline = simulate_time(graph, swapped(graph), device(copy=MIB / 2))  # 2 s each way
    assert timeline.stall_seconds == pytest.approx(2)
    assert timeline.step_seconds == pytest.approx(8)
    assert timeline.channels[3] == "copy-out"
    assert (timeline.start_seconds[3], timeline.end_seconds[3]) == pytest.approx((1, 3))


@pytest.mark.parametrize(("ahead", "stall"), [(1, 1), (2, 0), (3, 0)])
def test_a_copy_that_starts_ahead_hides_behind_compute(ahead: int, stall: float):
    graph = chain(7)
    timeline = simulate_time(graph, swapped(graph, ahead=ahead), device(copy=MIB / 2))
    assert timeline.stall_seconds == pytest.approx(stall)
    assert timeline.step_seconds == pytest.approx(7 + stall)


def test_a_copy_in_waits_for_the_copy_out():
    graph = chain(3)
    timeline = simulate_time(graph, swapped(graph), device(copy=MIB / 10))  # 10 s each way
    assert timeline.start_seconds[-2] == pytest.approx(timeline.end_seconds[3])
    assert timeline.step_seconds == pytest.approx(1 + 10 + 10 + 1)


def test_where_transfers_block_they_are_in_line():
    graph = chain(6)
    timeline = simulate_time(graph, swapped(graph, ahead=3), device(copy=MIB / 2, blocking=True))
    assert timeline.step_seconds == pytest.approx(6 + 2 + 2)
    assert timeline.stall_seconds == 0


def peak(graph: StepGraph, actions: list[Action], device: Device) -> int:
    memory = simulate_time(graph, actions, device).memory
    assert memory is not None
    assert memory.out_of_memory is None
    return memory.live_peak_bytes


def test_a_swapped_tensor_holds_memory_until_its_copy_has_ended():
    graph = chain(8, wide=(5,))
    kept = peak(graph, originals(graph), device())
    patient = msgspec.structs.replace(device(copy=MIB), dispatch_seconds=2.0)
    assert peak(graph, swapped(graph), patient) == kept - MIB + 24
    # where dispatch takes no time, the host is far ahead of any copy
    assert peak(graph, swapped(graph), device(copy=MIB)) == kept + 24


def test_a_full_memory_waits_for_copies_before_it_gives_up():
    graph = chain(8, wide=(1, 5))
    tight = device(copy=MIB / 2, memory=19 * MIB)  # op5 fits only where op1 was
    result = simulate_time(graph, originals(graph), tight).memory
    assert result is not None
    assert result.out_of_memory is not None
    assert peak(graph, swapped(graph), tight) < 19 * MIB


def test_the_step_takes_longer_where_it_waits_for_memory():
    graph = chain(8, wide=(1, 5))
    slow = device(copy=MIB, memory=19 * MIB)  # op1 leaves in 8 s, and op5 fits only where it was
    roomy = simulate_time(
        graph, swapped(graph), msgspec.structs.replace(slow, memory_bytes=1 << 30)
    )
    tight = simulate_time(graph, swapped(graph), slow)
    assert roomy.full_seconds == 0
    leaving = [a.kind for a in swapped(graph)].index("swap_out")
    op5 = [graph.ops[a.id].name if a.kind == "run" else "" for a in swapped(graph)].index("op5")
    assert roomy.start_seconds[op5] < tight.end_seconds[leaving] <= tight.start_seconds[op5]
    assert tight.full_seconds == pytest.approx(tight.end_seconds[leaving])
    assert tight.step_seconds > roomy.step_seconds
    assert tight.peak_bytes <= 19 * MIB


def test_a_traced_step_takes_time_for_each_op_and_copy_when_it_is_over():
    graph = chain(6)
    plain = simulate_time(graph, swapped(graph), device())
    traced = msgspec.structs.replace(device(), trace_seconds=0.5, step_overhead_seconds=10)
    found = simulate_time(graph, swapped(graph), traced)
    assert found.end_seconds == plain.end_seconds
    assert found.step_seconds == pytest.approx(plain.step_seconds + 10 + 0.5 * (6 + 2))


def test_what_a_program_needs_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one's, and the step's as it is; what may be changed meanwhile is looked at anew."""
    graph = chain(3)
    clock = TimeSimulator(graph, on(device()))
    asked: list[Sequence[Action]] = []
    memory = clock.simulator.memory

    def counted(actions: Sequence[Action], **given: Any) -> MemoryResult:
        asked.append(actions)
        return memory(actions, **given)

    monkeypatch.setattr(clock.simulator, "memory", counted)
    program = tuple(swapped(graph))
    found = [clock.needed(program), clock.needed(()), clock.needed(program), clock.needed(())]
    assert len(asked) == 2
    assert found[0] is found[2]
    assert clock.original_bytes == found[1].peak_bytes
    changing = list(program)
    assert clock.needed(changing) == found[0]
    assert clock.needed(changing) == found[0]
    assert len(asked) == 4
