"""How long `memtrade.summary` of Keras's EfficientNetB0 takes once TensorFlow has traced its step.

    pytest benchmarks/test_answers.py --benchmark-json=results/speed/answers.json

Extraction, simulation and the table count; LIMIT_SECONDS is what is promised.
"""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from memtrade.answers import made_up_batch
from memtrade.results.layers import summarize
from memtrade.target import profile_target
from memtrade.tf.calling import step_to_read
from memtrade.tf.extract import trace_concrete

LIMIT_SECONDS = 5.0
BATCH = 32


def test_summary_of_efficientnet(benchmark):
    model = keras.applications.EfficientNetB0(weights=None)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    function = tf.function(model.train_step, autograph=False)
    step, concrete = step_to_read(function, (made_up_batch(model, BATCH),), None)
    took = []

    def summary():
        begin = time.perf_counter()
        graph = trace_concrete(step, concrete).graph
        found = summarize(model.name, graph, profile_target("arena"))
        text = found.sheet().to_markdown()
        took.append(time.perf_counter() - begin)
        benchmark.extra_info.update(ops=len(graph.ops), rows=len(found.rows))
        return text

    text = benchmark.pedantic(summary, rounds=3)
    assert "stem_conv" in text
    assert max(took) <= LIMIT_SECONDS
