"""Child process of test_predicted_vs_measured.py: a tiny real step, rewritten, in the arena.

Usage: drive_step.py FOLDER LIMIT_MIB
Writes FOLDER/graph (StepGraph), FOLDER/plan.json and FOLDER/peaks.json: the peak of each step.
Every third large activation is swapped, every third recomputed, every third kept.
"""

import json
import os
import sys
from pathlib import Path

FOLDER, LIMIT_MIB = Path(sys.argv[1]), int(sys.argv[2])
os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(LIMIT_MIB)
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import tensorflow as tf  # noqa: E402

from memtrade.models import make_model  # noqa: E402
from memtrade.plan import Decision, Plan  # noqa: E402
from memtrade.schedule import lower  # noqa: E402
from memtrade.tf.build import make_step  # noqa: E402
from memtrade.tf.extract import trace  # noqa: E402
from memtrade.tf.rewrite import apply_plan  # noqa: E402
from memtrade.tf.swap import SerializeTransfer  # noqa: E402

STEPS = 3
DECISIONS: tuple[Decision, ...] = ("swap", "recompute", "keep")

tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
whole = tf.raw_ops.Empty(shape=[LIMIT_MIB - 2, 1 << 20], dtype=tf.uint8, init=False)
del whole

model = make_model("resnet", {"layers": 18, "batch_size": 2, "image_size": 160, "num_classes": 10})
step = make_step(model, optimizer="momentum")
traced = trace(step)
graph = traced.graph
large = [t for t in graph.activations if graph.tensors[t].size_bytes > 4096]
actions = lower(graph, {t: DECISIONS[i % 3] for i, t in enumerate(large)})
plan = Plan("thirds", {}, graph.fingerprint, "pinned", (), actions)
function = apply_plan(traced, plan, SerializeTransfer())
batch = step.make_batch()
peaks = []
for _ in range(STEPS):
    tf.config.experimental.reset_memory_stats("CPU:0")
    float(function(*batch))
    peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"])
(FOLDER / "graph").write_bytes(graph.to_bytes())
plan.save(FOLDER / "plan.json")
(FOLDER / "peaks.json").write_text(json.dumps(peaks))
