from memtrade.strategies import segments
from memtrade.strategies.segments import cuts, frontiers, useful
from tests.graphs import Builder, chain


def skipping(layers: int):
    """A chain whose input is also read at its end: no bottleneck in between."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[8192])
    (first,) = b.op("first", "Sin", [x], sizes=[8192])
    made = [first]
    for i in range(layers):
        (y,) = b.op(f"layer{i}", "Sin", [made[-1]], sizes=[8192])
        made.append(y)
    (joined,) = b.op("joined", "Mul", [made[-1], first], sizes=[8192])
    (loss,) = b.op("loss", "Sum", [joined], sizes=[4])
    (gradient,) = b.op("seed", "Mul", [loss, joined], sizes=[8192])
    for i in range(layers, -1, -1):
        (gradient,) = b.op(f"grad{i}", "SinGrad", [gradient, made[i]], sizes=[8192])
    return b.build(inputs=[x], outputs=[loss, gradient], loss=loss)


def test_each_layer_of_a_chain_is_a_bottleneck():
    """But for the last one, behind which only the loss comes."""
    graph = chain(5)
    found = [[graph.label(t) for t in f.tensors] for f in frontiers(graph)]
    assert found == [[f"layer{i}:0"] for i in range(1, 5)]


def test_a_skip_connection_widens_the_frontier():
    graph = skipping(3)
    wide = [f for f in frontiers(graph) if len(f.tensors) == 2]
    assert wide
    assert all(graph.label(f.tensors[0]) == "first:0" for f in wide)


def test_a_tensor_of_two_frontiers_is_counted_once():
    graph = skipping(12)
    for cut in cuts(graph, resident=True):
        assert len(set(cut.checkpoints)) == len(cut.checkpoints)
        assert cut.checkpoint_bytes == 8192 * len(cut.checkpoints)


def test_finer_cuts_hold_less_when_checkpoints_leave():
    sizes = [cut.backward_bytes for cut in cuts(chain(12), resident=False)]
    counts = [len(cut.checkpoints) for cut in cuts(chain(12), resident=False)]
    assert sizes == sorted(sizes)
    assert counts == sorted(counts, reverse=True)


def test_a_call_that_takes_much_for_itself_makes_its_segment_shorter(monkeypatch):
    graph = chain(12, 8192)
    smallest = min(cut.backward_bytes for cut in cuts(graph, resident=False))
    taken = {"grad9": 20 * 8192}
    monkeypatch.setattr(segments, "call_scratch_bytes", lambda op, _: taken.get(op.name, 0))
    beside = cuts(graph, resident=False)
    assert smallest < 21 * 8192 <= min(cut.backward_bytes for cut in beside)
    leanest = min(beside, key=lambda cut: cut.backward_bytes)
    # The segment of what grad9 reads is as short as it can be; elsewhere there is room.
    around = [graph.label(t) for t in leanest.checkpoints if 7 <= int(graph.label(t)[5:-2]) <= 8]
    assert around == ["layer7:0", "layer8:0"]
    assert len(leanest.checkpoints) < 8


def test_a_checkpoint_that_only_makes_checkpoints_is_left_out():
    """`total` makes `y` and nothing else: with `y` kept, nobody would hold it."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[8192])
    (a,) = b.op("a", "Sin", [x], sizes=[8192])
    (total,) = b.op("total", "AddV2", [a, a], sizes=[8192])
    (y,) = b.op("y", "Relu", [total], sizes=[8192])
    (loss,) = b.op("loss", "Sum", [y], sizes=[4])
    (seed,) = b.op("seed", "Mul", [loss, y], sizes=[8192])
    (gradient,) = b.op("grad", "SinGrad", [seed, a], sizes=[8192])
    graph = b.build(inputs=[x], outputs=[loss, gradient], loss=loss)
    assert useful(graph, [a, total, y]) == [a, y]
    assert useful(graph, [a, total]) == [a, total]  # y is recomputed from it
