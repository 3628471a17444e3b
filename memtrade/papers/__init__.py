"""What is here because something was published: figures, the nets and rules behind them, and the
pages under `results/` that hold memtrade beside them.

Only commands and tests know this package: no strategy, simulator or view does. What makes a page
runs as a module, `python -m memtrade.papers.device_check results/predicted`.
"""
