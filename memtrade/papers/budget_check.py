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
# Each with the share of the activations that the budget leaves, and whether tensors may be swapped.
QUESTIONS = (
    ("activations 1/4", 0.25, True),
    ("activations 1/2", 0.5, True),
    ("activations 1/2, no swapping", 0.5, False),
    ("least memory", None, True),
)


def rows(network: str, graph: StepGraph, device: str) -> Iterator[dict[str, Any]]:
    """A plan's prediction for each question. `overhead`: the step's time over the original's,
    less 1."""
    target = profile_target(device)
    predictor = Predictor(graph, target)

    def planned(strategy: str, **options: Value) -> tuple[Plan, Predicted, float]:
        """The plan, what it takes, and its step's seconds."""
        plan = PLANNED[strategy].plan(graph, make_options(strategy, options), target)
        found = predictor.predict(plan, limit_bytes=ROOMY_BYTES)
        assert found.step_seconds is not None
        return plan, found, found.step_seconds

    _, base, base_seconds = planned("original")
    for question, share, swap in QUESTIONS:
        budget = share and int(base.persistent_bytes + share * base.memory_cost_bytes)
        asked = f"{budget}B" if budget else ""
        plan, found, seconds = planned(
            "optimal", budget=asked, host_memory_limit=HOST_MEMORY, swap=swap
        )
        yield {
            "network": network, "device": device, "question": question,
            "budget_mb": budget / 1e6 if budget else None,
            "peak_mb": found.peak_bytes / 1e6,
            "original_peak_mb": base.peak_bytes / 1e6,
            "host_mb": found.host_bytes / 1e6,
            "step_seconds": seconds,
            "overhead": seconds / base_seconds - 1,
            "kept": len(plan.tensors("keep")),
            "recomputed": len(plan.tensors("recompute")),
            "swapped": len(plan.tensors("swap")),
        }  # fmt: skip


def main(folder: Path) -> None:
    found = []
    for name, given in NETWORKS:
        model = MODELS[name](batch_size=BATCH_SIZE, **given)
        graph = trace_model(model, "sgd")
        for device in DEVICES:
            for row in rows(model.name, graph, device):
                told = f"{model.name}, {device}, {row['question']}"
                print(f"{told}: {row['overhead']:+.1%}", flush=True)
                found.append(row)
    save_csv(folder / "budgets.csv", pd.DataFrame(found).round(4))
    save_page(folder / "budgets.md", batch_size=BATCH_SIZE, rows=found)


if __name__ == "__main__":
    write_pages(main, __doc__)
