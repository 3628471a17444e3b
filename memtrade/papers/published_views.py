"""Where each published table is shown beside ours, and any of them by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from memtrade.papers.published import load_published, published_names
from memtrade.results.sheets import NONE, Sheet


@dataclass(frozen=True)
class View:
    """`by`: a command that prints it, or a page in `results/` with both."""

    what: str
    by: str


_THESIS = "memtrade table thesis results/measured results/max_batch"
_TOOLS = "memtrade table tools results/thesis results/originals"
_PREDICTED = "results/predicted/thesis.md"
_VARIANTS = "results/predicted/thesis_variants.md"
_GPIPE = "results/pipeline/gpipe_gpt2.md"
_REST = "results/predicted/thesis_rest.md"
_TORCHGPIPE = "results/predicted/torchgpipe_reserved.md"
_TRANSPARENCY = "results/transparency/transparency.md"
_PARTITIONS = "results/predicted/gpt2_partitions.md"

# Published table -> what shows its figures.
VIEWS = {
    "thesis_resnet": View("four strategies on ResNet by depth, predicted for its GPU", _PREDICTED),
    "thesis_resnet_lists": View(
        "the same as plain lists: host memory with the idle 3.29 GB", _REST
    ),
    "thesis_inception_v4": View("four strategies on InceptionV4, in its own order", _TOOLS),
    "thesis_max_batch": View("largest batches of ResNet-50 beside ours", _THESIS),
    "thesis_log_runs": View("runs of the two logs", _REST),
    "thesis_log_memory": View("memory between steps, which tells the networks", _VARIANTS),
    "thesis_log_steps": View("memory cost of each step, which tells the networks", _VARIANTS),
    "thesis_log_lms_edits": View("what TFLMS swapped and added", _VARIANTS),
    "thesis_log_ome_tensors": View("checkpoints of InceptionV4, and which were swapped", _VARIANTS),
    "thesis_other": View("single figures of the notes", _REST),
    "gpipe_gpt2_runs": View("84 runs of GPipe on GPT-2 beside ours", _GPIPE),
    "gpipe_gpt2_devices": View(
        "memory of each device in them", "results/predicted/gpipe_reserved.md"
    ),
    "gpt2_partition_reports": View("partition reports of GPT-2", _PARTITIONS),
    "gpt2_partition_stages": View("times and volumes of their stages", _PARTITIONS),
    "gpt2_partition_imbalance": View("how even they are", _PARTITIONS),
    "torchgpipe_unet_memory": View("memory of U-Nets", _TORCHGPIPE),
    "torchgpipe_amoebanetd_memory": View("memory of AmoebaNet-D", _TORCHGPIPE),
    "torchgpipe_speed": View("throughput of pipelines", "results/predicted/torchgpipe_speed.md"),
    "torchgpipe_accuracy": View(
        "errors of ResNet-101 trained with and without pipelines", _TRANSPARENCY
    ),
    "nvidia_resnet50": View("throughput of ResNet-50", "results/predicted/devices.md"),
}


def views_sheet() -> Sheet:
    """All published tables, and what shows each."""
    rows = []
    for name in published_names():
        count = len(load_published(name))
        view = VIEWS[name]
        alone = f"memtrade table published {name}"
        rows.append((name, view.what, view.by, alone, str(count)))
    return Sheet(
        title="What was published, and what shows it",
        columns=("table", "what", "beside ours", "by itself", "rows"),
        words=4,
        rows=tuple(rows),
        notes=("memtrade/papers/published/README.md says where each comes from",),
    )


def published_sheet(frame: Any, name: str) -> Sheet:
    """One published table, a frame of `load_published`, without columns that say nothing."""
    said = [column for column in frame if frame[column].notna().any() and column != "provenance"]
    said = [column for column in said if frame[column].astype(str).str.strip().any()]
    rows = tuple(
        tuple(NONE if pd.isna(value) or value == "" else str(value) for value in row)
        for row in frame[said].itertuples(index=False)
    )
    return Sheet(title=name, columns=tuple(map(str, said)), words=len(said), rows=rows, frame=frame)
