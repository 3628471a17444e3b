"""What is here because something was published: figures, the nets and rules behind them, and the
pages under `results/` that hold memtrade beside them.

    published                     the tables in published/, as frames, and what shows which
    thesis*, originals*, executor the thesis' tables, nets and log; its tools themselves, run
    pipelines*, fit, fused        published pipelines predicted
    gpipe_*, torch*               what the bytes of GPipe's and torchgpipe's runs count
    keras_*, verify_keras         Keras models: TensorFlow's own ways beside ours, batches, equality
    pages                         how these run by themselves, and write pages by templates/

Commands and tests alone know this package: no strategy, simulator or view does. What makes a page
runs as a module, `python -m memtrade.papers.device_check results/predicted`.
"""
