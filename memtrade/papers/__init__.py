"""What is here because something was published: figures, the nets and rules behind them, and the
pages under `results/` that hold memtrade beside them.

    published.py           the published tables in published/, as frames, and what shows which
    thesis.py              the thesis' tables and the report, ours beside its own
    thesis_nets.py         its networks and rules as options of ours; thesis_trace.py
    thesis_variants.py     which networks it ran, by its log
    thesis_prediction.py   its tables predicted, with thesis_predictor.py
    thesis_inception.py    what was tried about InceptionV4 and LMS's largest batch
    thesis_tools.py        its networks and rules: published, measured, predicted, and our own rules
    originals.py           the original tools themselves, run: originals_graph.py draws the net for
                           TensorFlow 1, originals_child.py runs it there
    thesis_log.py          records as its log
    pipelines.py           published pipelines predicted; pipelines_page.py, fused.py
    gpipe_runs.py          GPipe on GPT-2, run by run, beside our trials
    gpipe_reserved.py      what the bytes of those runs count: gpipe_torch.py has the step,
                           gpipe_torch.toml its ops, torch_allocator.py where they lie
    gpt2_partitions.py     partition reports of GPT-2 beside ours
    device_check.py        NVIDIA's training speeds beside the device profiles
    keras_own_ways.py      TensorFlow's own ways beside ours; keras_double_batch.py, verify_keras.py
    predict_records.py     what this version predicts of steps that were measured before
    budget_check.py        what `optimal` costs within budgets
    pages.py               how these run by themselves, and write pages as templates/ lays them out

Commands and tests alone know this package: no strategy, simulator or view does. What makes a page
runs as a module, `python -m memtrade.papers.device_check results/predicted`.
"""
