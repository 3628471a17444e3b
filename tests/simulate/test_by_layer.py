"""Memory by layer: rows add up to the peak, and everything is counted once."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from memtrade.graph import StepGraph
from memtrade.results.layers import summarize
from memtrade.simulate.by_layer import REST, by_layer, owners
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import use_of_memory
from tests.graphs import ARENA, Builder, chain

MIB = 1 << 20
WEIGHT, SLOT = 3 * MIB, 5 * MIB


def placed(graph: StepGraph, layers: dict[str, str], source: str = "") -> StepGraph:
    ops = tuple(
        msgspec.structs.replace(op, layer=layers.get(op.name, ""), source=source)
        for op in graph.ops
    )
    return StepGraph(msgspec.structs.replace(graph.data, ops=ops))


def trained() -> StepGraph:
    """y = x w; loss = sum(y); a slot follows w's gradient, a moving average the activation."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    handles = [b.op(name, "Placeholder", sizes=[0])[0] for name in ("w", "slot", "moving")]
    for t in handles:
        b.tensors[t] = msgspec.structs.replace(b.tensors[t], dtype="resource")
    w, slot, moving = handles
    (read,) = b.op("read", "ReadVariableOp", [w], sizes=[WEIGHT])
    (y,) = b.op("y", "MatMul", [x, read], sizes=[4 * MIB])
    b.op("average", "AssignAddVariableOp", [moving, y], stateful=True)
    (loss,) = b.op("loss", "Sum", [y], sizes=[4])
    (seed,) = b.op("seed", "Mul", [loss, y], sizes=[4 * MIB])
    (gradient,) = b.op("gradient", "MatMul", [x, seed], sizes=[WEIGHT])
    b.op("follow", "AssignAddVariableOp", [slot, gradient], stateful=True)
    b.op("update", "AssignSubVariableOp", [w, gradient], stateful=True)
    effects = [op.id for op in b.ops if op.type.startswith("Assign")]
    graph = b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=effects)
    data = msgspec.structs.replace(
        graph.data, captures=tuple(handles), capture_bytes=(WEIGHT, SLOT, MIB)
    )
    dense: list[str] = ["w", "slot", "moving", "read", "y", "gradient"]
    return placed(StepGraph(data), dict.fromkeys(dense, "dense"))


@pytest.mark.parametrize("graph", [chain(6), trained()], ids=["chain", "trained"])
def test_the_rows_add_up_to_the_peak(graph: StepGraph) -> None:
    graph = placed(graph, {op.name: op.name for op in graph.ops if op.name.startswith("l")})
    clock = TimeSimulator(graph, ARENA)
    usage = use_of_memory(clock, ())
    rows = by_layer(graph, clock.simulator.linker, usage)
    assert sum(row.peak_bytes for row in rows) == usage.peak_bytes
    assert min(row.peak_bytes for row in rows) >= 0
    assert len({row.name for row in rows}) == len(rows)


def test_weights_slots_and_moving_averages_are_told_apart() -> None:
    graph = trained()
    rows = {row.name: row for row in summarize("step", graph, ARENA).rows}
    assert rows["dense"].slot_bytes == SLOT
    assert rows["dense"].weight_bytes == WEIGHT + MIB  # the average is no slot
    assert rows["dense"].activation_bytes == 4 * MIB
    assert rows["dense"].peak_bytes >= WEIGHT + SLOT + MIB + 4 * MIB
    assert rows[REST].peak_bytes >= MIB  # the batch


def test_layers_come_in_the_order_of_the_forward_part_and_one_stands_at_the_peak() -> None:
    graph = chain(6)
    names = {f"{part}{i}": f"block{i}" for part in ("layer", "grad") for i in range(1, 7)}
    found = summarize("chain", placed(graph, names), ARENA)
    assert [row.name for row in found.rows if row.activation_bytes][:2] == ["block1", "block2"]
    assert sum(row.at_peak for row in found.rows) == 1
    assert [row.name for row in found.rows if row.at_peak] == [found.peak_layer]
    assert names.get(found.peak_op, "") == found.peak_layer


def test_who_stands_at_the_peak_runs_in_the_step_though_its_constants_took_more() -> None:
    """Computing the zeros holds them twice, before any op; the rows are of the step itself."""
    b = Builder()
    (size,) = b.op("size", "Const", sizes=[4])
    (zeros,) = b.op("zeros", "Fill", [size], sizes=[4 * MIB])
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (y,) = b.op("y", "MatMul", [zeros, x], sizes=[MIB])
    found = summarize("step", b.build(inputs=[x], outputs=[y], loss=y), ARENA)
    assert found.peak_op == "y"
    assert found.first_bytes > found.peak_bytes
    peak, first, *_ = found.sheet().notes
    assert "when y runs" in peak
    assert f"{found.first_bytes / 1e6:.1f} MB" in first


@pytest.mark.parametrize(
    ("largest", "unit", "peak"), [(MIB, "KB", "4,193.8"), (4 * MIB, "MB", "12.6")]
)
def test_sizes_of_a_small_step_are_told_in_kilobytes(largest: int, unit: str, peak: str) -> None:
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[largest])
    (y,) = b.op("y", "MatMul", [x], sizes=[largest])
    (z,) = b.op("z", "MatMul", [y], sizes=[largest])
    found = summarize("step", b.build(inputs=[x], outputs=[z], loss=z), ARENA).sheet()
    assert found.title.endswith(f"in {unit}")
    assert f"Peak ≈ {peak} {unit}, predicted for arena" in found.notes[0]
    assert all(row[-1] == peak for row in found.rows)


def test_a_narrow_terminal_has_one_line_for_each_layer_and_no_calls_before_an_op() -> None:
    scope = "StatefulPartitionedCall/encoder/block_1/grouped_query_attention"
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (y,) = b.op(f"{scope}/query/MatMul", "MatMul", [x], sizes=[4 * MIB])
    layer = "encoder/block_1/grouped_query_attention/query"
    graph = placed(b.build(inputs=[x], outputs=[y], loss=y), {f"{scope}/query/MatMul": layer})
    found = summarize("step", graph, ARENA)
    console = Console(width=80, markup=False, file=io.StringIO())
    console.print(found.sheet(width=80).to_rich(width=80))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    (row,) = (line for line in lines if line.startswith("encoder/bl…query_attention/query ◄"))
    assert row.split()[-1] == "4,194.3"
    assert "when encoder/block_1" in found.sheet().notes[0]
    assert layer in found.sheet().rows[0][0]


def test_a_line_stands_in_where_there_is_no_layer() -> None:
    graph = placed(chain(2), {"layer1": "block"}, source="train.py:7")
    assert {owners(graph)[op.id] for op in graph.ops} == {"block", "train.py:7"}
    assert set(owners(graph, "source")) == {"train.py:7"}


def test_the_sheet_keeps_what_it_leaves_out_in_its_sums() -> None:
    names = {f"layer{i}": f"block{i}" for i in range(1, 7)}
    found = summarize("chain", placed(chain(6), names), ARENA)
    whole, short = found.sheet(), found.sheet(top=2)
    assert len(short.rows) == 3
    assert whole.rows[-1] == short.rows[-1]
    assert f"{len(found.rows) - 2} more" in short.notes[1]
    rows = found.frame().to_dict("records")
    assert sum(row["peak_bytes"] for row in rows) == found.peak_bytes
