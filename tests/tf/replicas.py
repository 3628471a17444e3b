"""Steps on several devices, before and after, in processes of their own; and a table of them.

python -m tests.tf.replicas results/replicas
"""

from __future__ import annotations

import json
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec
from memtrade.results.sheets import Sheet
from tests import forks

TIMEOUT_SECONDS = 240

# TensorFlow's allocator for the CPU then counts.
ARENA = TrialSpec(device="arena", memory_limit_bytes=1 << 28)

Found = dict[str, Any]


def said(case: str, **environment: str) -> Found:
    """What a process of that case says."""
    environment = {**child_environment(ARENA, os.environ), **environment}
    command = ["-m", "tests.tf.replicas_child", case]
    child = forks.ran(command, env=environment, timeout=TIMEOUT_SECONDS)
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout.splitlines()[-1])


def two_workers() -> list[Found]:
    """The same steps in two processes of a MultiWorkerMirroredStrategy."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            ports.append(f"localhost:{free.getsockname()[1]}")
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    cluster = {"worker": ports}
    told = [json.dumps({"cluster": cluster, "task": task}) for task in tasks]
    with ThreadPoolExecutor(len(told)) as pool:
        return list(pool.map(lambda each: said("worker", TF_CONFIG=each), told))


def main(folder: str) -> int:
    forks.install()
    cases = {"2 logical CPUs, ome": said("2")["two"]}
    cases["4 logical CPUs, lms"] = said("4")["four"]
    for number, worker in enumerate(two_workers()):
        cases |= {f"worker {number} of 2, {strategy}": worker[strategy] for strategy in worker}
    rows = [row for name, found in cases.items() for row in _rows(name, found)]
    forks.remove()
    sheet = Sheet(
        title="A step on several devices, before and after memtrade.apply",
        columns=("devices", "replica", "equal", "losses of three steps", "and rewritten",
                 "original MB, predicted", "peak MB, predicted", "original MB, measured",
                 "peak MB, measured"),
        words=5,
        rows=tuple(rows),
        notes=(_NOTE,),
        command=f"python -m tests.tf.replicas {folder}",
    )  # fmt: skip
    path = Path(folder, "replicas.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(sheet.to_markdown(), encoding="utf-8")
    return 0


_NOTE = (
    "Custom loops of a few layers with momentum (and batch norm on the 2 CPUs; plain updates with "
    "lms), 1,024 rows a replica. Equal: all "
    "that is returned and every variable of every replica after three steps, to the bit, against "
    "TensorFlow without its graph optimizer. Logical CPUs share one allocator, so what is measured "
    "there is that of all replicas together: two cores run the original's mostly one after the "
    "other, and the rewritten ones side by side. The two workers are processes of their own, with "
    "MultiWorkerMirroredStrategy: there each replica's own allocator says its peak."
)


def _rows(name: str, found: Found) -> list[tuple[str, ...]]:
    def megabytes(size: int) -> str:
        return f"{size / 1e6:.2f}"

    losses = [" ".join(f"{loss:.6f}" for loss in each) for each in found["losses"]]
    equal = "no" if found["differing"] else "yes"
    rows = []
    for number, (peak, original) in enumerate(found["peaks"]):
        told = (name, str(number), equal, *losses) if number == 0 else ("", str(number), "", "", "")
        taken = [megabytes(each) if number == 0 else "" for each in found["measured"]]
        rows.append((*told, megabytes(original), megabytes(peak), *taken))
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
