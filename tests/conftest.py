"""What must be said before TensorFlow is imported by whichever test comes first."""

import gc
import os
import signal
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from memtrade import cli
from memtrade.measure import children
from tests import forks

HERE = Path(__file__).parent

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as in the worker, on every CPU
# Shipped facts do for most tests. Those about kernels as they are here say so by a fixture.
os.environ.setdefault("MEMTRADE_ASK", "0")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")  # as in the worker: one executor thread


# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    """A tenth of the tests' time went into looking through traced graphs for garbage."""
    gc.set_threshold(700, 10, 50)
    forks.install()
    if "PYTEST_XDIST_WORKER" in os.environ:
        _share_the_cores()


def _share_the_cores() -> None:
    """Where several processes run tests side by side, each computes on one core. Children, and so
    all that is measured, have what the machine has: no variable is set."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)


def pytest_collection_finish() -> None:
    """What has been imported by now stays: the collector need not look through it again."""
    forks.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """So does what tests share, traced models for the most part."""
    done = yield
    gc.collect()
    gc.freeze()
    return done


def pytest_unconfigure() -> None:
    forks.remove()


Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Runs a command as it is typed: exit status, stdout, stderr."""

    def run(*tokens: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main(tokens)
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are processes of their own from the start, as users have them."""
    monkeypatch.setattr(children, "subprocess", subprocess)


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels are asked as they are here, into a cache that all processes of a run share."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each of several has a folder of its own in it
        base = base.parent
    monkeypatch.setenv("MEMTRADE_ASK", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(base / "cache"))


# The files that take longest, the longest first: they begin first, so that no process ends on one
# alone. `pytest --durations=0` tells.
LONGEST = (
    "corpus/test_corpus.py", "tf/test_gradients_equal.py", "tf/test_keras_fit.py",
    "notebooks/test_notebooks.py", "planted/test_planted.py", "tf/test_pareto.py",
    "commands/test_max_batch.py", "tf/test_batch.py", "pipeline/test_trial.py",
    "tf/test_native.py", "measure/test_budgets.py", "strategies/test_optimal.py",
    "tf/test_pipeline.py", "models/test_architectures.py", "sweep/test_cluster.py",
    "tf/test_build.py", "tf/test_apply.py", "tf/test_ask.py",
    "strategies/test_optimal_exact.py", "measure/test_sizes.py", "strategies/test_blocks.py",
    "commands/test_watch.py", "tf/test_split.py", "tf/test_rebatch.py",
    "papers/test_thesis_predictor.py", "tf/test_watched.py", "commands/test_predict.py",
    "simulate/test_bfc.py", "sweep/test_runner.py", "tf/test_replicas.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that ask kernels hold whichever run: `make eigen` runs these with oneDNN off, too."""
    for item in items:
        if "asking" in getattr(item, "fixturenames", ()):
            item.add_marker("kernels")
    place = {HERE / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
