"""Steps on several devices, before and after, in processes of their own; and a table of them.

python -m tests.tf.replicas results/replicas
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec
from memtrade.results.sheets import Sheet

TIMEOUT_SECONDS = 240

# TensorFlow's allocator for the CPU then counts.
ARENA = TrialSpec(device="arena", memory_limit_bytes=1 << 28)

Found = dict[str, Any]


def start(case: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.tf.replicas_child", case]
    environment = {**child_environment(ARENA, os.environ), **environment}
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def said(child: subprocess.Popen[str]) -> Found:
    try:
        stdout, stderr = child.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        child.kill()
    assert child.returncode == 0, stderr[-3000:]
    return json.loads(stdout.splitlines()[-1])


def two_workers() -> list[Found]:
    """The same steps in two processes of a MultiWorkerMirroredStrategy."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            ports.append(f"localhost:{free.getsockname()[1]}")
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    cluster = {"worker": ports}
    children = [
        start("worker", TF_CONFIG=json.dumps({"cluster": cluster, "task": task})) for task in tasks
    ]
    try:
        with ThreadPoolExecutor(len(children)) as pool:
            return list(pool.map(said, children))
    finally:
        for child in children:
            child.kill()


def main(folder: str) -> int:
    cases = {"2 logical CPUs, ome": said(start("2"))["two"]}
    cases["4 logical CPUs, lms"] = said(start("4"))["four"]
    for number, worker in enumerate(two_workers()):
        cases |= {f"worker {number} of 2, {strategy}": worker[strategy] for strategy in worker}
    rows = [row for name, found in cases.items() for row in _rows(name, found)]
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
