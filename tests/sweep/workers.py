"""A worker in place of the real one, here or on the nodes of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from memtrade.measure import trial
from memtrade.sweep import cluster


def use_worker(script: Path, put: Callable[..., None]) -> None:
    defaults = trial.run_child.__kwdefaults__ or {}
    command = (sys.executable, str(script))
    put(trial.run_child, "__kwdefaults__", defaults | {"worker": command})


def use_worker_on_nodes(script: Path, put: Callable[..., None]) -> None:
    def run(*given: object) -> bytes:
        """What a task runs: its process has memtrade as it is."""
        use_worker(script, setattr)
        return cluster.run_task(*given)  # pyright: ignore[reportArgumentType]

    put(cluster, "run_task", run)
