"""A fit finds the parameters that made the times."""

import msgspec
import pytest

from memtrade.devices import Device, load_device
from memtrade.graph import StepGraph
from memtrade.papers import fit
from memtrade.papers.fit import Sample, fit_device
from memtrade.simulate.timeline import TimeSimulator
from tests.graphs import Builder, on

PROFILE = ("compute", "memory", "launch")


def products(count: int, copies: int, size: int) -> StepGraph:
    """Matrix products and copies of size x size, so that samples differ in what bounds them."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[4 * size * size])
    last = x
    for i in range(count + copies):
        (last,) = b.op(
            f"op{i}", "MatMul" if i < count else "Transpose", [last, x], sizes=[4 * size * size]
        )
    graph = b.build(inputs=[x], outputs=[last], loss=last)
    square = [msgspec.structs.replace(t, shape=(size, size)) for t in graph.tensors]
    return StepGraph(msgspec.structs.replace(graph.data, tensors=tuple(square)))


def ratios(device: Device, samples: list[Sample]) -> list[float]:
    """Predicted over measured."""
    return [TimeSimulator(graph, on(device)).step_seconds(()) / s for graph, _, s in samples]


def test_the_parameters_that_made_the_times_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fit, "PRIOR", 0)
    given = load_device("gtx-1070")
    true = msgspec.structs.replace(
        given,
        launch_overhead_seconds=100e-6,
        efficiency={
            name: share * (0.5 if name in ("conv", "matmul") else 0.6)
            for name, share in given.efficiency.items()
        },
    )
    graphs = [products(30, 1, 2000), products(1, 60, 2000), products(20, 20, 10)]
    samples = [Sample(g, (), TimeSimulator(g, on(true)).step_seconds(())) for g in graphs]
    fitted = fit_device(on(given), samples, PROFILE)
    assert ratios(fitted, samples) == pytest.approx([1, 1, 1], rel=0.02)
    assert fitted.launch_overhead_seconds == pytest.approx(100e-6, rel=0.05)
    assert fitted.efficiency["matmul"] == pytest.approx(true.efficiency["matmul"], rel=0.05)
    assert fitted.efficiency["memory"] == pytest.approx(true.efficiency["memory"], rel=0.05)


def test_what_the_samples_do_not_tell_stays_as_given():
    given = load_device("gtx-1070")
    graph = products(0, 50, 1000)  # copies only
    sample = Sample(graph, (), 2 * TimeSimulator(graph, on(given)).step_seconds(()))
    fitted = fit_device(on(given), [sample], PROFILE)
    assert fitted.efficiency["conv"] == pytest.approx(given.efficiency["conv"], rel=0.05)
    assert ratios(fitted, [sample]) == pytest.approx([1], rel=0.05)


def test_other_parameters_may_be_fitted():
    given = load_device("gtx-1070")
    true = msgspec.structs.replace(given, trace_seconds=150e-6, step_overhead_seconds=0.07)
    graphs = [products(10, 1, 500), products(100, 1, 500), products(1, 400, 500)]
    samples = [Sample(g, (), TimeSimulator(g, on(true)).step_seconds(())) for g in graphs]
    found = fit_device(on(given), samples, ("trace", "step"))
    assert found.trace_seconds == pytest.approx(150e-6, rel=0.05)
    assert found.step_overhead_seconds == pytest.approx(0.07, rel=0.05)
    assert found.efficiency == given.efficiency
