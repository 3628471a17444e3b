"""The memory simulation on hand-made graphs whose peaks can be counted on one's fingers."""

from typing import Any

import msgspec
import pytest

from memtrade.graph import BOUND, StepGraph
from memtrade.plan import Action
from memtrade.simulate.bfc import MIB
from memtrade.simulate.memory import MemoryResult, Simulator
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import Held, use_of_memory
from memtrade.simulate.walk import Walk
from memtrade.target import Places, profile_target
from tests.graphs import ARENA, Builder, chain, target

LIMIT = 64 * MIB
BIG = 8 * MIB  # too large for the first region of 2 MiB, so never padded here


def run(*op_ids: int) -> list[Action]:
    return [Action("run", op_id) for op_id in op_ids]


def everything(graph: StepGraph) -> list[Action]:
    return run(*range(len(graph.ops)))


def live_peak(graph: StepGraph, actions: list[Action] | None = None) -> int:
    return Simulator(graph, ARENA).peak_live_bytes(actions or everything(graph))


def simulate(graph: StepGraph, actions: list[Action], **options: Any) -> MemoryResult:
    limit_bytes = options.pop("limit", LIMIT)
    return Simulator(graph, ARENA).memory(actions, limit_bytes=limit_bytes, **options)


def holders(graph: StepGraph) -> list[Held]:
    """Who holds memory at the peak of a step."""
    clock = TimeSimulator(graph, ARENA)
    return use_of_memory(clock, everything(graph), limit_bytes=LIMIT).holders


@pytest.mark.parametrize(("name", "beside_bytes"), [("arena", 3 * BIG), ("gtx-1070", 0)])
def test_a_data_set_has_batches_ready_on_the_host(name: str, beside_bytes: int):
    b = Builder()
    (handle,) = b.op("iterator", "Placeholder", sizes=[0])
    (x,) = b.op("x", "IteratorGetNext", [handle], sizes=[BIG])
    graph = b.build(inputs=[], outputs=[x], loss=x)
    found = Simulator(graph, target(name)).memory(everything(graph))
    assert found.persistent_bytes == beside_bytes
    assert found.peak_bytes == beside_bytes + BIG


def test_an_input_is_freed_once_its_last_reader_has_run():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (a,) = b.op("a", "MatMul", [x], sizes=[4 * MIB])
    (c,) = b.op("c", "MatMul", [a], sizes=[2 * MIB])
    (d,) = b.op("d", "MatMul", [c], sizes=[3 * MIB])
    graph = b.build(inputs=[x], outputs=[d], loss=d)
    assert live_peak(graph) == (1 + 4 + 2) * MIB


@pytest.mark.parametrize(("read_again", "peak"), [(False, 2), (True, 3)])
def test_a_kernel_writes_into_an_input_that_nobody_else_will_read(read_again: bool, peak: int):
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (a,) = b.op("a", "MatMul", [x], sizes=[MIB])
    (r,) = b.op("r", "Relu", [a], sizes=[MIB])
    (loss,) = b.op("loss", "Dot", [r, a] if read_again else [r], sizes=[4])
    graph = b.build(inputs=[x], outputs=[loss], loss=loss)
    assert live_peak(graph) == peak * MIB + 4


def test_gradients_of_a_filter_and_its_bias_are_one_kernel_of_onednn_if_side_by_side():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (a,) = b.op("a", "MatMul", [x], sizes=[3 * MIB])
    (g,) = b.op("g", "MatMul", [a], sizes=[4 * MIB])
    (w,) = b.op("w", "Conv2DBackpropFilter", [a, x, g], sizes=[2 * MIB])
    (bias,) = b.op("bias", "BiasAddGrad", [g], sizes=[MIB])
    (more,) = b.op("more", "MatMul", [x], sizes=[8])
    graph = b.build(inputs=[x], outputs=[w, bias, more], loss=more)
    apart = (1 + 3 + 4 + 2) * MIB  # a is gone before there is a gradient of the bias
    on_gpu = Simulator(graph, target("gtx-1070"))
    assert on_gpu.peak_live_bytes(everything(graph)) == apart
    assert live_peak(graph, run(0, 1, 2, 3, 5, 4)) == apart
    assert live_peak(graph) == apart + MIB


def test_a_kernel_does_not_write_into_the_batch_or_into_an_input_read_twice():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (r,) = b.op("r", "Relu", [x], sizes=[MIB])  # x is the batch
    (s,) = b.op("s", "Mul", [r, r], sizes=[MIB])  # two readers, both this op
    graph = b.build(inputs=[x], outputs=[s], loss=s)
    assert live_peak(graph) == 3 * MIB


def test_an_alias_shares_its_buffer_and_keeps_it_alive():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (a,) = b.op("a", "MatMul", [x], sizes=[MIB])
    (view,) = b.op("view", "Reshape", [a], sizes=[MIB])
    (c,) = b.op("c", "MatMul", [x], sizes=[MIB])
    (d,) = b.op("d", "Dot", [view, c], sizes=[4])
    graph = b.build(inputs=[x], outputs=[d], loss=d)
    assert live_peak(graph) == 3 * MIB + 4  # x, a, c and d: the view costs nothing


def test_scratch_counts_while_its_op_runs():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (w,) = b.op("w", "Placeholder", sizes=[4096])
    (y,) = b.op("y", "Conv2D", [x, w], sizes=[MIB])
    graph = b.build(inputs=[x, w], outputs=[y], loss=y)
    result = simulate(graph, everything(graph))
    assert result.live_peak_bytes == 2 * MIB + 4096 + 12_336
    assert ("scratch of y", 12_336) in [(h.label, h.size_bytes) for h in holders(graph)]
    assert Simulator(graph, target("gtx-1070")).peak_live_bytes(everything(graph)) == 2 * MIB + 4096


def test_a_swapped_tensor_is_on_the_host_between_the_swaps():
    graph = chain(2)
    layer1 = graph.find(["layer1"])[0]
    kept = live_peak(graph)
    actions = everything(graph)
    actions.insert(2, Action("swap_out", layer1))
    grad2 = next(i for i, a in enumerate(actions) if graph.ops[a.id].name == "grad2")
    actions.insert(grad2, Action("swap_in", layer1))
    result = simulate(graph, actions)
    assert result.host_peak_bytes == MIB
    assert result.out_of_memory is None
    assert simulate(graph, everything(graph)).host_peak_bytes == 0
    assert result.live_peak_bytes <= kept + 24


def test_a_clone_is_a_version_of_its_own():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (a,) = b.op("a", "MatMul", [x], sizes=[8 * MIB])
    (c,) = b.op("c", "Dot", [a], sizes=[4 * MIB])
    (d,) = b.op("d", "MatMul", [c], sizes=[MIB])
    (e,) = b.op("e", "Dot", [d, a], sizes=[4])
    graph = b.build(inputs=[x], outputs=[e], loss=e)
    again = [*run(0, 1, 2, 3), Action("recompute", 1), *run(4)]
    assert live_peak(graph) == (1 + 8 + 4 + 1) * MIB
    assert live_peak(graph, again) == (1 + 8 + 4) * MIB  # a is gone while d is made


def test_max_pool_keeps_a_workspace_that_spares_its_gradient_the_scratch():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[4 * MIB])
    (y,) = b.op("y", "MaxPool", [x], sizes=[MIB])
    (dy,) = b.op("dy", "MatMul", [x], sizes=[MIB])
    (dx,) = b.op("dx", "MaxPoolGrad", [x, y, dy], sizes=[4 * MIB])
    graph = b.build(inputs=[x], outputs=[dx], loss=dx)
    assert live_peak(graph) == (4 + 1 + 1 + 4) * MIB + MIB // 4
    swapped = [*run(0, 1), Action("swap_out", y), *run(2), Action("swap_in", y), *run(3)]
    assert live_peak(graph, swapped) == (4 + 1 + 1 + 4 + 2) * MIB  # not connected any more


def test_holes_may_be_narrower_than_told():
    tail = (2 * MIB, 62 * MIB)
    places = Places(free=((256, 4096), (8192, 8192), tail), captures=(), inputs=(0,))
    assert places.narrowed().free == ((12288, 4096), tail)
    graph = chain(1)
    assert Simulator(graph, ARENA.replace(places=places)).layouts == (places, places.narrowed())
    alone = places._replace(free=(tail,))
    assert Simulator(graph, ARENA.replace(places=alone)).layouts == (alone,)


def test_a_plan_does_not_count_on_a_hole_that_fits_to_the_byte():
    graph = chain(1)

    def fits(hole_bytes):
        tail = (63 * MIB, MIB)  # of two tensors one has to go into the hole
        places = Places(free=((256, hole_bytes), tail), captures=(), inputs=(32 * MIB,))
        simulator = Simulator(graph, ARENA.replace(places=places))
        return simulator.memory(everything(graph), limit_bytes=64 * MIB).out_of_memory is None

    assert fits(MIB + 8192)
    assert not fits(MIB + 256)


def test_a_peak_is_told_with_holes_as_they_are_told_and_held_to_the_worse():
    graph = chain(1)
    tail = (4 * MIB, 60 * MIB)
    places = Places(free=((256, 2 * MIB), tail), captures=(), inputs=(3 * MIB,))
    found = Simulator(graph, ARENA.replace(places=places)).memory(everything(graph))
    # Two tensors divide the hole; where it is narrower, the first one takes all of it.
    assert found.peak_bytes - found.told_peak_bytes == MIB - 4096


@pytest.mark.parametrize(
    ("hole_bytes", "padding_bytes"),
    [
        (2 * MIB - 4096, MIB - 4096),  # less than twice a tensor: whoever lies there takes all
        (2 * MIB + 1024, MIB - MIB // 16),  # two find room, or one that leaves some to few rows
    ],
)
def test_what_is_only_bounded_may_leave_a_hole_to_who_takes_more_of_it(
    hole_bytes: int, padding_bytes: int
):
    """A boolean mask keeps few rows, and then another tensor comes to lie where room was kept."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[4096])
    (kept,) = b.op("kept", "GatherV2", [x], sizes=[MIB])
    (wide,) = b.op("wide", "Tile", [x], sizes=[MIB])
    (total,) = b.op("total", "Sum", [kept], sizes=[4])
    (wider,) = b.op("wider", "Tile", [wide], sizes=[4 * MIB], controls=[3])
    (y,) = b.op("y", "Sum", [wider], sizes=[4])
    made = b.build(inputs=[x], outputs=[total, y], loss=y)
    graph = StepGraph(msgspec.structs.replace(made.data, sized={kept: BOUND}))
    places = Places(free=((MIB, hole_bytes), (4 * MIB, 60 * MIB)), captures=(), inputs=(0,))

    def peaks(graph: StepGraph) -> tuple[int, int]:
        simulator = Simulator(graph, ARENA.replace(places=places))
        found = simulator.memory(everything(graph), limit_bytes=64 * MIB)
        return found.told_peak_bytes, found.peak_bytes

    known, _ = peaks(made)
    told, most = peaks(graph)
    assert (told, most) == (known, known + padding_bytes)


def test_out_of_memory_is_a_result_that_names_the_op():
    graph = chain(4)
    result = simulate(graph, everything(graph), limit=6 * MIB)
    assert result.out_of_memory is not None
    assert result.out_of_memory.op == "grad4"
    assert result.out_of_memory.requested_bytes == MIB
    assert result.peak_bytes <= 6 * MIB


def test_out_of_memory_before_the_step():
    assert simulate(chain(1), [], limit=MIB).out_of_memory is not None


def test_holders_account_for_the_peak():
    graph = chain(3)
    result = simulate(graph, everything(graph), series=True)
    asked = [holder.size_bytes for holder in holders(graph) if holder.group != "padding"]
    assert sum(asked) == result.live_peak_bytes
    assert result.in_use_bytes is not None
    assert len(result.in_use_bytes) == len(graph.ops)
    assert max(result.in_use_bytes) == result.peak_bytes
    assert result.in_use_bytes[result.peak_action] == result.peak_bytes


def test_padding_is_part_of_the_peak():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[256])
    (hole,) = b.op("hole", "MatMul", [x], sizes=[3 * MIB])
    (wall,) = b.op("wall", "MatMul", [hole], sizes=[16 * MIB])  # fences the hole in
    (padded,) = b.op("padded", "MatMul", [x], sizes=[5 * MIB // 2])
    (end,) = b.op("end", "Dot", [wall, padded], sizes=[4])
    graph = b.build(inputs=[x], outputs=[end], loss=end)
    result = simulate(graph, everything(graph), series=True)
    assert result.in_use_bytes is not None
    after = result.in_use_bytes[3] - result.persistent_bytes
    assert after == 16 * MIB + 3 * MIB  # 2.5 MiB in a hole of 3: not split


def test_op_types_that_were_never_traced_are_listed():
    found = Simulator(chain(2), profile_target("arena")).memory([])
    assert found.assumed == ("SinGrad",)


def test_a_kernel_that_nobody_has_looked_at_has_a_margin():
    """As much as the largest tensor that it touches, while it runs."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[4 * MIB])
    (made,) = b.op("made", "Dot", [x], sizes=[MIB])
    graph = b.build(inputs=[x], outputs=[made], loss=made)
    known, unknown = Simulator(graph, ARENA), Simulator(graph, profile_target("arena"))
    assert unknown.peak_live_bytes(()) == known.peak_live_bytes(()) + 4 * MIB


def test_an_empty_plan_is_the_original_program():
    graph = chain(3)
    simulator = Simulator(graph, ARENA)
    assert simulator.memory((), limit_bytes=LIMIT) == simulator.memory(
        simulator.actions(()), limit_bytes=LIMIT
    )


def test_a_batch_that_was_made_first_lies_where_the_variables_else_would():
    """The first region has 2 MiB: whichever comes first has a place in it."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[3 * MIB // 2])
    (handle,) = b.op("v", "Placeholder", sizes=[0])
    (y,) = b.op("y", "Relu", [x], sizes=[MIB // 4])
    graph = b.build(inputs=[x], outputs=[y], loss=y)
    variable = msgspec.structs.replace(graph.tensors[handle], dtype="resource")
    tensors = tuple(variable if t.id == handle else t for t in graph.tensors)
    data = msgspec.structs.replace(
        graph.data, tensors=tensors, captures=(handle,), capture_bytes=(MIB,)
    )
    places = []
    for behind in ((), (0,)):
        made = StepGraph(msgspec.structs.replace(data, behind=behind))
        simulator = Simulator(made, ARENA)
        walk = Walk(simulator.linker, simulator.link([]), simulator.allocator(), None)
        walk.persist()
        region, size_bytes = walk.allocator.regions[0]
        buffers = walk.sources[x], walk.variables[handle]
        places.append([region <= walk.handles[b] < region + size_bytes for b in buffers])
    assert places == [[False, True], [True, False]]


def test_a_branch_that_updates_variables_takes_what_its_body_takes():
    """Keras's optimizers that accumulate gradients or scale losses update within one."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (handle,) = b.op("v", "Placeholder", sizes=[0])
    b.op("cond", "If", [handle, x], sizes=[BIG])
    b.tensors[handle] = msgspec.structs.replace(b.tensors[handle], dtype="resource")
    b.ops[2] = msgspec.structs.replace(b.ops[2], attrs={"scratch_bytes": 3 * BIG})
    data = b.build(inputs=[x], outputs=[b.ops[2].outputs[0]], loss=x).data
    graph = StepGraph(msgspec.structs.replace(data, captures=(handle,), capture_bytes=(BIG,)))
    result = simulate(graph, everything(graph))
    assert result.live_peak_bytes - result.persistent_bytes == pytest.approx(4 * BIG, abs=2048)
    simulator = Simulator(graph, ARENA)
    assert simulator.peak_live_bytes(everything(graph)) == result.live_peak_bytes


def test_what_a_loop_hands_on_as_it_came_is_there_once():
    """Though someone else reads it, too: a while_loop passes its constants through."""

    def peak(*handed: int) -> int:
        b = Builder()
        (x,) = b.op("x", "Placeholder", sizes=[256])
        (y,) = b.op("y", "MatMul", [x, x], sizes=[BIG])
        kept, carried = b.op("loop", "While", [y, x], sizes=[BIG, 256])
        (z,) = b.op("z", "MatMul", [kept, y], sizes=[256])
        b.ops[2] = msgspec.structs.replace(b.ops[2], attrs={"scratch_bytes": 0, "handed": handed})
        graph = b.build(inputs=[x], outputs=[z, carried], loss=z)
        result = simulate(graph, everything(graph))
        assert Simulator(graph, ARENA).peak_live_bytes(everything(graph)) == result.live_peak_bytes
        return result.live_peak_bytes // BIG

    assert peak() == 2
    assert peak(0) == 1


@pytest.mark.parametrize(("read_later", "beside"), [(False, 1), (True, 2)])
def test_what_a_branch_reads_last_goes_while_it_runs(read_later: bool, beside: int) -> None:
    """Of two tensors' bytes that its body takes, one comes after the argument's last reader. What
    others read stays; a handle in between makes no difference."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[256])
    (handle,) = b.op("v", "Placeholder", sizes=[0])
    (y,) = b.op("y", "MatMul", [x, x], sizes=[BIG])
    (made,) = b.op("cond", "If", [x, handle, y], sizes=[256])
    (z,) = b.op("z", "MatMul", [made, y if read_later else x], sizes=[256])
    b.tensors[handle] = msgspec.structs.replace(b.tensors[handle], dtype="resource")
    taken = {"scratch_bytes": 2 * BIG, "relief": ((0, 1), (BIG, 2), (2 * BIG, -1))}
    b.ops[3] = msgspec.structs.replace(b.ops[3], attrs=taken)
    data = b.build(inputs=[x], outputs=[z], loss=z).data
    graph = StepGraph(msgspec.structs.replace(data, captures=(handle,), capture_bytes=(BIG,)))
    result = simulate(graph, everything(graph))
    peak_bytes = result.live_peak_bytes - result.persistent_bytes
    assert peak_bytes == pytest.approx((1 + beside) * BIG, abs=2048)
    assert Simulator(graph, ARENA).peak_live_bytes(everything(graph)) == result.live_peak_bytes


def test_where_a_view_begins_is_held_until_the_view_is_made():
    """A slice of all rows copies nothing, and reads its bounds all the same: freed at once, a few
    bytes would leave the end of a hole to a large tensor."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (bounds,) = b.op("bounds", "MatMul", [x], sizes=[BIG])
    (y,) = b.op("y", "MatMul", [x], sizes=[BIG])
    (rows,) = b.op("rows", "Slice", [y, bounds, bounds], sizes=[BIG])
    (end,) = b.op("end", "MatMul", [rows], sizes=[BIG])
    graph = b.build(inputs=[x], outputs=[end], loss=end)
    in_use = simulate(graph, everything(graph), series=True).in_use_bytes
    assert in_use == (BIG, 2 * BIG, 3 * BIG, 3 * BIG, 3 * BIG)
