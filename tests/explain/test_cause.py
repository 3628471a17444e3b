"""Planted out-of-memory cases: the cause is named right in each, and the plan that is offered fits.

Each is a step and a limit under which the simulated allocator refuses a request for one reason.
"""

from __future__ import annotations

import msgspec
import pytest
from rich.console import Console

from memtrade.explain.cause import Explanation, of_error, of_step
from memtrade.explain.error import Dump, Failure
from memtrade.explain.refusal import Beside, Counted
from memtrade.explain.remedy import NoRemedy, Remedy, nearest_plan, remedy_for
from memtrade.facts import CPU, Fact, Request
from memtrade.graph import Op, StepGraph
from memtrade.results.explanation import Page
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies import find_planned, make_options
from memtrade.target import Target
from tests.graphs import ARENA, Builder, HandMade, chain

MIB = 1 << 20


def on(limit_bytes: int, facts: HandMade = ARENA.facts) -> Target:  # pyright: ignore[reportArgumentType]
    return ARENA.replace(limit_bytes=limit_bytes, facts=facts)


def peak_of(graph: StepGraph, target: Target = ARENA) -> int:
    found = TimeSimulator(graph, target).timeline(()).memory
    assert found is not None
    return found.peak_bytes


def weighted(graph: StepGraph, weight_bytes: int) -> StepGraph:
    """With a variable beside its own."""
    handle = msgspec.structs.replace(
        graph.tensors[0], id=len(graph.tensors), op=len(graph.ops), dtype="resource", size_bytes=0
    )
    holder = Op(len(graph.ops), "weight", "Placeholder", (), (), (handle.id,), False, {})
    return StepGraph(
        msgspec.structs.replace(
            graph.data,
            ops=(*graph.ops, holder),
            tensors=(*graph.tensors, handle),
            captures=(handle.id,),
            capture_bytes=(weight_bytes,),
        )
    )


class Scratchy(HandMade):
    """One kernel asks for scratch."""

    def __init__(self, op: str, size_bytes: int):
        super().__init__(CPU)
        self.op, self.size_bytes = op, size_bytes

    def of(self, op: Op, graph: StepGraph) -> Fact:
        fact = super().of(op, graph)
        if op.name != self.op:
            return fact
        return fact._replace(requests=(*fact.requests, Request(self.size_bytes)))


def holey() -> StepGraph:
    """d asks for 96 MiB where 64 and 72 are free, with b between them.

    a 64 | b 16 | c 72 | e 16      a and c have been read, b and e not
    """
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[256])
    (first,) = b.op("a", "Cumsum", [x], sizes=[64 * MIB])
    (wall,) = b.op("b", "Cumsum", [first], sizes=[16 * MIB])
    (second,) = b.op("c", "Cumsum", [wall], sizes=[72 * MIB])
    (end,) = b.op("e", "Cumsum", [second], sizes=[16 * MIB])
    (large,) = b.op("d", "Cumsum", [wall, end], sizes=[96 * MIB])
    (loss,) = b.op("loss", "Sum", [large], sizes=[4])
    (grad,) = b.op("grad", "Cumsum", [loss], sizes=[4])
    b.op("update", "AssignAddVariableOp", [grad], stateful=True)
    return b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=[len(b.ops) - 1])


@pytest.mark.parametrize("layers", [4, 8, 12])
@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_batch_that_is_too_large(layers: int, share: float) -> None:
    graph = chain(layers, size=4 * MIB)
    limit = int(share * peak_of(graph))
    found = of_step("chain", graph, on(limit))
    assert found.kind == "batch"
    assert 0 < found.fitting_batch <= found.batch_size * share
    assert found.requested_bytes > found.free_bytes
    assert found.op
    assert sum(row.peak_bytes for row in found.rows) == found.held_bytes


@pytest.mark.parametrize("weight", [40 * MIB, 100 * MIB])
def test_need_whatever_the_batch(weight: int) -> None:
    found = of_step("chain", weighted(chain(4, size=MIB), weight), on(weight - MIB))
    assert (found.kind, found.fitting_batch) == ("need", 0)
    assert found.fixed_bytes == weight


def test_fragmentation() -> None:
    graph = holey()
    found = of_step("holes", graph, on(172 * MIB))
    assert found.kind == "fragmentation"
    assert (found.op, found.requested_bytes) == ("d", 96 * MIB)
    assert found.largest_free_bytes is not None
    assert found.largest_free_bytes < 96 * MIB <= found.free_bytes
    # With 40 MiB more there is a piece for it.
    assert of_step("holes", graph, on(212 * MIB)).kind == "unknown"


def test_fragmentation_by_the_allocators_own_account() -> None:
    graph = chain(4, size=4 * MIB)
    limit = 2 * peak_of(graph)
    dump = Dump(limit_bytes=limit, in_use_bytes=limit - 6 * MIB, largest_free_bytes=3 * MIB)
    failure = Failure(op="layer3", requested_bytes=4 * MIB, dump=dump)
    found = of_step("chain", graph, on(limit), failure=failure)
    assert (found.kind, found.op, found.counted_by) == ("fragmentation", "layer3", "the allocator")


@pytest.mark.parametrize("op", ["layer2", "layer5", "grad3"])
def test_scratch(op: str) -> None:
    graph, facts = chain(6, size=4 * MIB), Scratchy(op, 48 * MIB)
    limit = peak_of(graph) + 16 * MIB
    assert of_step("chain", graph, on(limit)).kind == "unknown"
    found = of_step("chain", graph, on(limit, facts))
    assert (found.kind, found.op, found.is_scratch) == ("scratch", op, True)
    assert found.requested_bytes == 48 * MIB


@pytest.mark.parametrize(
    ("beside", "kind"),
    [
        (Beside(variable_bytes=30 * MIB, where="model 'old': 31.5 MB"), "another model"),
        (Beside(variable_bytes=20 * MIB, tensor_bytes=12 * MIB, tensors=2), "another model"),
        (Beside(tensor_bytes=30 * MIB, tensors=900), "leak"),
        (Beside(variable_bytes=2 * MIB, tensor_bytes=25 * MIB, tensors=40), "leak"),
        (Beside(variable_bytes=MIB), "unknown"),
    ],
)
def test_what_is_beside_a_step_that_fits_alone(beside: Beside, kind: str) -> None:
    graph = chain(6, size=4 * MIB)
    found = of_step("chain", graph, on(peak_of(graph) + 20 * MIB), beside=beside)
    assert found.kind == kind


def test_what_the_process_allocator_counted_tells_holes_from_need() -> None:
    graph = chain(6, size=4 * MIB)
    limit = 2 * peak_of(graph)
    failure = Failure(op="layer3", requested_bytes=4 * MIB)

    def found(most_bytes: int) -> Explanation:
        counted = Counted(in_use_bytes=3 * MIB, most_bytes=most_bytes)
        return of_step("chain", graph, on(limit), failure=failure, counted=counted)

    holes = found(limit - 4 * MIB)
    assert (holes.kind, holes.largest_free_bytes) == ("fragmentation", None)
    assert holes.fits_alone
    assert holes.counted_by == "the allocator"
    assert found(limit - 3 * MIB).kind == "unknown"


def test_a_step_that_hardly_fits_takes_more_in_tensorflows_own_order() -> None:
    graph = chain(6, size=4 * MIB)
    limit = int(1.1 * peak_of(graph))
    found = of_step("chain", graph, on(limit), counted=Counted(MIB, limit))
    assert (found.kind, found.fits_alone) == ("batch", False)
    assert 0 < found.fitting_batch < found.batch_size
    assert "up to a fifth more, the device has" in words(found)


def test_data_beside_the_step_are_the_batchs_own() -> None:
    graph = chain(6, size=4 * MIB)
    limit = peak_of(graph) + 2 * MIB
    found = of_step("chain", graph, on(limit), beside=Beside(data_bytes=6 * MIB))
    assert (found.kind, found.room_bytes) == ("batch", limit - 6 * MIB)
    assert nearest_peak(found, graph, limit) <= found.room_bytes
    assert "6.3 MB are data beside it" in words(found)


def nearest_peak(found: Explanation, graph: StepGraph, limit_bytes: int) -> int:
    remedy = remedy_for(found, graph, on(limit_bytes))
    assert isinstance(remedy, Remedy)
    return remedy.peak_bytes


def test_a_step_that_does_not_fit_alone_is_to_blame_itself() -> None:
    graph = chain(8, size=4 * MIB)
    beside = Beside(variable_bytes=30 * MIB)
    assert of_step("chain", graph, on(24 * MIB), beside=beside).kind == "batch"


def test_the_plan_that_is_offered_fits() -> None:
    graph = chain(16, size=4 * MIB)
    limit = int(0.7 * peak_of(graph))
    remedy = nearest_plan(graph, on(limit), limit)
    assert isinstance(remedy, Remedy)
    assert remedy.peak_bytes <= limit
    given = {"budget": f"{remedy.budget_bytes}B"} if remedy.budget_bytes else {}
    plan = find_planned(remedy.strategy).plan(
        graph, make_options(remedy.strategy, given), on(limit)
    )
    memory = TimeSimulator(graph, on(limit)).timeline(plan).memory
    assert memory is not None
    assert memory.out_of_memory is None
    assert memory.peak_bytes == remedy.peak_bytes


def test_no_plan_fits() -> None:
    graph = chain(8, size=4 * MIB)
    remedy = nearest_plan(graph, on(10 * MIB), 10 * MIB)
    assert isinstance(remedy, NoRemedy)
    assert remedy.floor_bytes > 10 * MIB
    assert remedy.op


def words(found: Explanation, remedy: Remedy | NoRemedy | None = None, **ways: str) -> str:
    console = Console(width=100, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(Page(found, remedy, **ways).to_rich())
    return " ".join(captured.get().split())


def test_the_page_says_why_who_and_what_fits() -> None:
    graph = chain(8, size=4 * MIB)
    limit = int(0.7 * peak_of(graph))
    found = of_step("chain", graph, on(limit))
    remedy = nearest_plan(graph, on(limit), limit)
    page = words(found, remedy, command="memtrade run --strategy x", python="apply(step)")
    for part in ("Out of memory: chain", "the batch is too large", f"{found.op} asked for",
                 "What held memory then", "by the simulator", "times the step's time; predicted",
                 "memtrade run --strategy x", "apply(step)", "a batch of about"):  # fmt: skip
        assert part in page


def test_a_tensor_that_the_step_does_not_have_is_not_the_request() -> None:
    graph = chain(8, size=4 * MIB)
    failure = Failure(shape=(256, 64, 112, 112), requested_bytes=822_083_584)
    found = of_step("chain", graph, on(int(0.7 * peak_of(graph))), failure=failure)
    assert (found.shape, found.requested_bytes) == (None, 4 * MIB)
    assert "names a tensor of 256×64×112×112, which this step does not have" in words(found)


def test_the_page_of_a_text_alone_says_what_is_missing() -> None:
    page = words(of_error(Failure(op="a/b", requested_bytes=MIB)))
    assert "it has no dump of the allocator" in page
    assert "a/b asked for 1.0 MB" in page
