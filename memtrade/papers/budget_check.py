"""What `optimal` costs within a budget, on devices that need not be there: a table of predictions.

    python -m memtrade.papers.budget_check results/predicted

Writes budgets.csv and budgets.md into the folder. Three questions, for each network and device: the
overhead in time when activations may take a quarter of what they take in the original graph; when
they may take half, with swapping and without; and the smallest peak. What activations take is the
original's peak less what is there between steps. Nothing is measured here; steps are traced in a
child process and planned in this one. Takes some minutes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from memtrade.graph import StepGraph
from memtrade.models import MODELS
from memtrade.options import Value
from memtrade.papers.pages import save_csv, save_page, trace_model, write_pages
from memtrade.plan import Plan
from memtrade.simulate.memory import ROOMY_BYTES
from memtrade.simulate.predict import Predicted, Predictor
from memtrade.strategies import PLANNED, make_options
from memtrade.target import profile_target

NETWORKS = (("resnet", {"layers": 50}), ("resnet", {"layers": 101}), ("inception-v4", {}))
DEVICES = ("gtx-1070", "v100-16gb", "arena")
BATCH_SIZE = 32
# As much as it takes to carry all activations of these steps, on whatever machine plans.
HOST_MEMORY = "64GiB"


def steps() -> Iterator[tuple[str, StepGraph]]:
    for name, given in NETWORKS:
        model = MODELS[name](batch_size=BATCH_SIZE, **given)
        yield model.name, trace_model(model, "sgd")


def rows(network: str, graph: StepGraph, device: str) -> Iterator[dict[str, Any]]:
    """A plan's prediction for each question. `overhead`: the step's time over the original's,
    less 1."""
    target = profile_target(device)
    predictor = Predictor(graph, target)

    def make_plan(strategy: str, options: dict[str, Value]) -> Plan:
        return PLANNED[strategy].plan(graph, make_options(strategy, options), target)

    def predict(plan: Plan) -> Predicted:
        return predictor.predict(plan, limit_bytes=ROOMY_BYTES)

    base = predict(make_plan("original", {}))
    assert base.step_seconds is not None

    def share(part: float) -> int:
        return int(base.persistent_bytes + part * base.memory_cost_bytes)

    questions = (
        ("activations 1/4", share(0.25), True),
        ("activations 1/2", share(0.5), True),
        ("activations 1/2, no swapping", share(0.5), False),
        ("least memory", None, True),
    )
    for question, budget, swap in questions:
        options: dict[str, Value] = {
            "budget": f"{budget}B" if budget else "",
            "host_memory_limit": HOST_MEMORY,
            "swap": swap,
        }
        plan = make_plan("optimal", options)
        found = predict(plan)
        assert found.step_seconds is not None
        yield {
            "network": network, "device": device, "question": question,
            "budget_mb": budget / 1e6 if budget else None,
            "peak_mb": found.peak_bytes / 1e6,
            "original_peak_mb": base.peak_bytes / 1e6,
            "host_mb": found.host_bytes / 1e6,
            "step_seconds": found.step_seconds,
            "overhead": found.step_seconds / base.step_seconds - 1,
            "kept": len(plan.tensors("keep")),
            "recomputed": len(plan.tensors("recompute")),
            "swapped": len(plan.tensors("swap")),
        }  # fmt: skip


def main(folder: Path) -> None:
    found = []
    for network, graph in steps():
        for device in DEVICES:
            for row in rows(network, graph, device):
                print(f"{network}, {device}, {row['question']}: {row['overhead']:+.1%}", flush=True)
                found.append(row)
    save_csv(folder / "budgets.csv", pd.DataFrame(found).round(4))
    save_page(folder / "budgets.md", batch_size=BATCH_SIZE, rows=found)


if __name__ == "__main__":
    write_pages(main, __doc__)
