"""Writes a sweep of random pairs of a step and a budget for `optimal`.

    python -m memtrade.sweeps.budget_pairs 200 > budget_pairs.toml
    memtrade sweep budget_pairs.toml --results pairs
    memtrade accuracy pairs --format markdown > results/budgets/pairs.md

What is committed was run beside other work: its peaks and budgets count, its times do not. A
budget is drawn evenly from 30% to 100% of the original's peak. It may be less than any plan needs:
then the trial ends as infeasible, and nothing has run. The seed is fixed.
"""

import random
import sys
from typing import Any

from memtrade.models import MODELS
from memtrade.papers.pages import trace_model
from memtrade.simulate.predict import Predictor
from memtrade.strategies import PLANNED, make_options
from memtrade.target import profile_target

LOW, HIGH = 0.3, 1.0
OWN_STEPS = "memtrade.sweeps.own_steps"
OWN = (
    "transposed", "grouped", "depthwise", "sound", "volume", "attention", "embeddings", "resized",
)  # fmt: skip
STEPS: list[dict[str, Any]] = [
    {"name": "resnet", "layers": 18, "image_size": 96, "batch_size": 8},
    {"name": "resnet", "layers": 50, "image_size": 64, "batch_size": 8},
    {"name": "inception-v4", "image_size": 107, "batch_size": 4},
    {"name": "gpt2", "layers": 3, "width": 192, "heads": 4, "batch_size": 4},
    {"name": "unet", "image_size": 64, "batch_size": 2},
    {"name": "amoebanet-d", "layers": 6, "filters": 48, "image_size": 96, "batch_size": 4},
    *({"name": "target", "target": f"{OWN_STEPS}:{name}", "batch_size": 4} for name in OWN),
]


def original_peak(step: dict[str, Any]) -> int:
    """In bytes, predicted from the traced step."""
    options = {key: value for key, value in step.items() if key != "name"}
    graph = trace_model(MODELS[step["name"]](**options), "sgd")
    target = profile_target("arena")
    plan = PLANNED["original"].plan(graph, make_options("original"), target)
    return Predictor(graph, target).predict(plan).peak_bytes


def block(step: dict[str, Any], budgets: list[str]) -> str:
    model = ", ".join(f"{key} = {value!r}".replace("'", '"') for key, value in step.items())
    chosen = ", ".join(f'"{budget}"' for budget in budgets)
    return f"""
[[grid]]
model = {{ {model} }}
strategy = {{ name = "optimal", budget = [{chosen}] }}
"""


def main(pairs: int) -> None:
    drawn = random.Random(0)
    peaks = [original_peak(step) for step in STEPS]
    budgets: list[list[str]] = [[] for _ in STEPS]
    for _ in range(pairs):
        i = drawn.randrange(len(STEPS))
        budgets[i].append(f"{drawn.uniform(LOW, HIGH) * peaks[i] / 1e6:.2f}MB")
    print(f"# {pairs} random pairs: python -m memtrade.sweeps.budget_pairs {pairs}")
    print('\ndevice = "arena"\nmemory_limit = "4GiB"\nsteps = 1\nwarmup = 1')
    for step, chosen in zip(STEPS, budgets, strict=True):
        if chosen:
            print(block(step, chosen), end="")


if __name__ == "__main__":
    main(int(sys.argv[1]))
