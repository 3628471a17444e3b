"""Learning, with children that answer, crash and hang as they are told."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from memtrade.facts.kernel import SCRATCH
from memtrade.facts.learned import Learned, LearnedFacts
from memtrade.facts.signature import Operand, make_signature, signature_of
from memtrade.facts.surroundings import Surroundings
from memtrade.graph import BOUND, WATCHED, GraphData, Op, StepGraph, Tensor
from memtrade.measure import here, learning
from memtrade.measure.learning import Asker, learn
from memtrade.rebatch import Rebatcher
from tests.graphs import ARENA

HERE = Surroundings(
    device="cpu", tensorflow="2.21.0", cpu="a", onednn="1", instructions="", threads=2
)

# Scratch is 1,000 bytes an example, and a second an example; op types say what else happens.
CHILD = """
import json, os, sys, time
question = json.loads(sys.stdin.read())
open(os.environ["CHILDREN"], "a").write("x")
def say(type, **fields):
    print(json.dumps({"type": type, **fields}), flush=True)
if question["rates"]:
    say("rates", overhead_seconds=1e-5, device_to_host_bytes_per_s=1e9,
        host_to_device_bytes_per_s=1e9, onednn=True)
for group in question["groups"]:
    say("asking", keys=[each["key"] for each in group])
    for each in group:
        if each["op_type"] == "Crash": os.abort()
        if each["op_type"] == "Killed": os.kill(os.getpid(), 9)
        if each["op_type"] == "Hang": time.sleep(60)
    for each in group:
        examples = each["inputs"][0][1][0]
        if each["op_type"] == "Refuse":
            say("refused", key=each["key"], reason="no such kernel")
            continue
        if each["op_type"] == "Large" and question["limit_bytes"] < 1 << 30:
            say("refused", key=each["key"], reason="no room", room=True)
            continue
        scratch = 1000 * examples ** (2 if each["op_type"] == "Square" else 1)
        say("answer", key=each["key"], requests=[[40000 * examples, 0], [scratch, -1]],
            seconds=float(examples))
"""


def chain(*types: str, batch: int = 4) -> StepGraph:
    """One op after the other on [batch, 10000] floats."""
    shape = (batch, 10_000)
    ops = [Op(0, "x", "Placeholder", (), (), (0,), False, {})]
    tensors = [Tensor(0, 0, 0, "float32", shape, 40_000 * batch)]
    for i, each in enumerate(types, start=1):
        ops.append(Op(i, f"{each}{i}", each, (i - 1,), (), (i,), False, {}, i - 1))
        tensors.append(Tensor(i, i, 0, "float32", shape, 40_000 * batch))
    last = len(types)
    nodes = tuple(each.encode() for each in types)
    data = GraphData(
        "chain", tuple(ops), tuple(tensors), (0,), (), (), (last,), (), last, (), nodes
    )
    return StepGraph(data)


@pytest.fixture
def asker(tmp_path, monkeypatch) -> Asker:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    monkeypatch.setattr(learning, "_is_quiet", lambda: True)
    return Asker(
        "arena",
        {"CHILDREN": str(tmp_path / "children")},
        1 << 30,
        (sys.executable, str(script)),
        silence_seconds=2.0,
    )


def children(asker: Asker) -> int:
    path = Path(asker.environment["CHILDREN"])
    return len(path.read_text()) if path.exists() else 0


def busily(asker: Asker) -> Callable[[], None]:
    """From now on the children say that others were busy, until what is returned is called."""
    script = Path(asker.command[1])
    at_rest = script.read_text()
    busy = at_rest.replace("seconds=float(examples)", "seconds=9.0, disturbed=True")
    script.write_text(busy.replace("onednn=True", "onednn=True, disturbed=True"))

    def rest() -> None:
        script.write_text(at_rest)

    return rest


def sources(graph: StepGraph, asker: Asker, folder: Path) -> list[str]:
    table, _ = learn([graph], HERE, asker, folder=folder)
    found = {each.kernel.split()[0]: each.source for each in table.values()}
    return [found[op.type].split(":")[0] for op in graph.ops[1:]]


def test_kernels_are_asked_once_for_all_processes(tmp_path, asker):
    graph = chain("Relu", "Tanh", "Relu")
    seen = []
    table, rates = learn(
        [graph], HERE, asker, folder=tmp_path, on_progress=lambda *each: seen.append(each)
    )
    assert {each.requests for each in table.values()} == {((160_000, 0), (4000, -1))}
    assert len(table) == 2
    assert rates is not None
    assert rates.onednn
    assert seen == [(1, 2), (2, 2)]
    assert learn([graph], HERE, asker, folder=tmp_path) == (table, rates)
    assert children(asker) == 1


def test_only_what_is_new_is_asked(tmp_path, asker):
    learn([chain("Relu")], HERE, asker, folder=tmp_path)
    table, _ = learn([chain("Relu", "Refuse")], HERE, asker, folder=tmp_path)
    assert sorted(each.source for each in table.values()) == ["asked", "refused: no such kernel"]


@pytest.mark.parametrize("fault", ["Crash", "Hang"])
def test_a_kernel_that_ends_its_child_gets_a_margin_and_the_others_their_facts(
    tmp_path, asker, fault
):
    graph = chain("Relu", fault, "Tanh")
    assert sources(graph, asker, tmp_path) == ["asked", "refused", "asked"]
    table, _ = learn([graph], HERE, asker, folder=tmp_path)
    margin = next(each for each in table.values() if each.kernel.startswith(fault))
    assert margin.margin_bytes == 160_000
    assert not margin.requests


@pytest.mark.parametrize("fault", ["Refuse", "Crash", "Killed", "Large"])
def test_what_is_not_true_for_ever_is_asked_again(tmp_path, asker, monkeypatch, fault):
    graph, less = chain(fault), dataclasses.replace(asker, limit_bytes=1 << 29)
    assert sources(graph, less, tmp_path) == ["refused"]
    before = children(asker)
    less = dataclasses.replace(less, limit_bytes=int(1.2 * (1 << 29)))  # what is free varies
    assert sources(graph, less, tmp_path) == ["refused"]
    assert children(asker) - before == (fault == "Killed")
    before = children(asker)
    monkeypatch.setattr(learning, "_today", lambda: "2051-01-01")
    assert sources(graph, less, tmp_path) == ["refused"]
    assert children(asker) - before == (fault in ("Killed", "Crash"))
    assert sources(graph, asker, tmp_path) == ["asked" if fault == "Large" else "refused"]


def test_a_child_that_cannot_start_leaves_margins(tmp_path, asker):
    broken = Asker("arena", {}, 1 << 30, (sys.executable, "-c", "raise SystemExit(3)"))
    table, rates = learn([chain("Relu")], HERE, broken, folder=tmp_path)
    assert [each.source for each in table.values()] == ["refused: the child ended with status 3"]
    assert rates is None


def test_what_is_too_large_is_asked_on_fewer_examples(tmp_path, asker):
    small = Asker("arena", asker.environment, 1 << 20, asker.command)
    table, _ = learn([chain("Relu", batch=64)], HERE, small, folder=tmp_path)
    (only,) = table.values()
    assert only.source == "fitted from batch 1, 2, 4"
    assert only.requests == ((64 * 40_000, 0), (64_000, -1))
    assert only.seconds == pytest.approx(64.0)


def test_what_has_no_room_is_not_asked(tmp_path, asker):
    small = Asker("arena", asker.environment, 100_000, asker.command)
    assert sources(chain("Relu", batch=4), small, tmp_path) == ["refused"]
    table, rates = learn([chain("Relu", batch=4)], HERE, small, folder=tmp_path)
    assert [each.margin_bytes for each in table.values()] == [160_000]
    assert rates is not None


def test_a_fit_that_does_not_hold_is_none(tmp_path, asker):
    small = Asker("arena", asker.environment, 1 << 20, asker.command)
    table, _ = learn([chain("Square", batch=512)], HERE, small, folder=tmp_path)
    (only,) = table.values()
    assert only.source.startswith("refused")
    assert only.margin_bytes == 512 * 40_000


def test_what_was_timed_on_a_busy_machine_is_asked_again_at_rest(tmp_path, asker, monkeypatch):
    at_rest = busily(asker)
    graph = chain("Relu")
    monkeypatch.setattr(learning, "_is_quiet", lambda: False)
    table, rates = learn([graph], HERE, asker, folder=tmp_path)
    assert [each.disturbed for each in table.values()] == [True]
    assert rates is not None
    assert rates.disturbed
    at_rest()
    assert learn([graph], HERE, asker, folder=tmp_path) == (table, rates)
    assert children(asker) == 1
    monkeypatch.setattr(learning, "_is_quiet", lambda: True)
    table, rates = learn([graph], HERE, asker, folder=tmp_path)
    assert [each.seconds for each in table.values()] == [4.0]
    assert rates is not None
    assert not rates.disturbed
    assert children(asker) == 2


def test_what_others_disturbed_is_asked_again_at_once_where_they_have_ended(
    tmp_path, asker, monkeypatch
):
    at_rest = busily(asker)
    monkeypatch.setattr(learning, "_is_quiet", lambda: at_rest() or True)
    table, _ = learn([chain("Relu")], HERE, asker, folder=tmp_path)
    assert [each.seconds for each in table.values()] == [4.0]
    assert children(asker) == 2


def test_a_machine_that_stays_busy_is_asked_twice_and_no_more(tmp_path, asker):
    busily(asker)
    table, _ = learn([chain("Relu")], HERE, asker, folder=tmp_path)
    assert [each.disturbed for each in table.values()] == [True]
    assert children(asker) == 2


def test_a_batch_that_nobody_asked_for_is_on_the_line_of_three(tmp_path, asker, monkeypatch):
    class Chains(Rebatcher):
        def __init__(self) -> None:
            pass

        def at(self, batch: int) -> StepGraph:
            return chain("Relu", "Square", "Refuse", batch=batch)

    def learned(target, graphs, environment, least_bytes):
        table, _ = learn(graphs, HERE, asker, folder=tmp_path, least_bytes=least_bytes)
        return target.replace(facts=LearnedFacts(target.facts, table))

    monkeypatch.setattr(here, "learned_target", learned)
    chains = Chains()
    targets = here.BatchTargets(ARENA, chains)
    graph = chains.at(100)
    facts = targets.at(100, graph).facts
    line, square, refused = (facts.of(op, graph) for op in graph.ops[1:])
    assert [each.size_bytes for each in line.requests] == [100 * 40_000, 100_000]
    assert line.seconds == pytest.approx(100.0)
    assert line.source == "fitted from batch 4, 8, 16"
    # On no line, or refused: as for a kernel that nobody has asked.
    assert square == ARENA.facts.of(graph.ops[2], graph)
    assert refused == ARENA.facts.of(graph.ops[3], graph)
    targets.at(200, chains.at(200))
    assert children(asker) == 1


def test_what_made_less_when_it_was_asked_makes_what_the_graph_says():
    """A kernel is asked with zeros: a segment_mean whose ids are all zero makes one row."""
    graph = chain("SegmentMean")
    signature = signature_of(graph.ops[1], graph)
    assert signature is not None
    asked = Learned(
        key=signature.key, kernel="SegmentMean 4x10000", requests=((64, SCRATCH), (40_000, 0)),
        seconds=1.0, source="asked", on="2026-01-01",
    )  # fmt: skip
    fact = LearnedFacts(ARENA.facts, {signature.key: asked}).of(graph.ops[1], graph)
    assert [(each.size_bytes, each.output) for each in fact.requests] == [
        (64, SCRATCH),
        (160_000, 0),
    ]


def test_what_made_more_rows_when_it_was_asked_makes_those_of_the_batch():
    """A mask that was made up lets all rows through, that of the example batch a tenth of them."""
    graph = chain("Where")
    signature = signature_of(graph.ops[1], graph)
    assert signature is not None
    asked = Learned(
        key=signature.key, kernel="Where 4x10000", requests=((1_600_000, 0),), source="asked",
        on="2026-01-01",
    )  # fmt: skip
    facts = LearnedFacts(ARENA.facts, {signature.key: asked})
    watched = StepGraph(msgspec.structs.replace(graph.data, sized={1: WATCHED}))
    assert [each.size_bytes for each in facts.of(graph.ops[1], graph).requests] == [1_600_000]
    assert [each.size_bytes for each in facts.of(graph.ops[1], watched).requests] == [160_000]


def test_what_a_kernel_reserves_for_its_gradient_it_tells_itself():
    """Of what FusedBatchNormV3 reserves, the graph knows no shape: Eigen's makes one number."""
    graph = chain("FusedBatchNormV3")
    unshaped = msgspec.structs.replace(graph.tensors[1], shape=None, size_bytes=0)
    tensors = (*graph.tensors[:1], unshaped, *graph.tensors[2:])
    graph = StepGraph(msgspec.structs.replace(graph.data, tensors=tensors, sized={1: BOUND}))
    signature = signature_of(graph.ops[1], graph)
    assert signature is not None
    asked = Learned(
        key=signature.key, kernel="", requests=((4, 0),), source="asked", on="2026-01-01"
    )
    (request,) = LearnedFacts(ARENA.facts, {signature.key: asked}).of(graph.ops[1], graph).requests
    assert request.size_bytes == 4


def test_a_view_says_nothing_of_others_of_its_type():
    """A Transpose that moves dimensions of one hands its input on; the next one copies."""
    graph = chain("Moved")
    signature = signature_of(graph.ops[1], graph)
    assert signature is not None
    key = signature.key
    copies = Learned(
        key=key, kernel="Moved 4x10000", requests=((160_000, 0),), source="asked", on="2026-11-26"
    )

    def forwarded(*requests: tuple[int, int]) -> tuple[int, ...]:
        other = Learned(
            key="other",
            kernel="Moved 1x10000",
            requests=requests,
            reused=((0, 0),),
            source="asked",
            on="2026-11-26",
        )
        facts = LearnedFacts(ARENA.facts, {key: copies, "other": other})
        return facts.of(graph.ops[1], graph).requests[0].forwarded

    assert forwarded() == ()
    assert forwarded((40_000, 0)) == (0,)  # it asks where its input is held


def test_a_kernel_tries_its_inputs_in_their_order() -> None:
    """Whichever was seen to be taken first: the other one may have been another size there."""
    graph = chain("Both")
    op = msgspec.structs.replace(graph.ops[1], inputs=(0, 0))

    def learned(key: str, position: int) -> Learned:
        return Learned(
            key=key, kernel="Both 4x10000", requests=((160_000, 0),), reused=((0, position),),
            source="asked", on="2026-11-28",
        )  # fmt: skip

    signature = signature_of(op, graph)
    assert signature is not None
    table = {"other": learned("other", 1), signature.key: learned(signature.key, 0)}
    (request,) = LearnedFacts(ARENA.facts, table).of(op, graph).requests
    assert request.forwarded == (0, 1)


def test_the_largest_tensor_is_so_by_the_width_of_its_numbers() -> None:
    """A kernel that could not be asked has a margin of that."""
    whole, halves = Operand("int64", (5,)), Operand("bfloat16", (17,))
    asked = make_signature("Sum", b"", (whole, halves), (("complex128", (2,)),))
    assert asked.largest_bytes == 40
    assert make_signature("Any", b"", (Operand("bool", (7,)),), ()).largest_bytes == 7
    assert make_signature("Abs", b"", (Operand("complex128", (3,)),), ()).largest_bytes == 48
    assert make_signature("Abs", b"", (Operand("float32", (3,)),), ()).largest_bytes == 12
