"""What `memtrade watch` runs: a script, watched from within its own process.

    python -m memtrade.watch SCRIPT [ARGUMENT ...]

A thread asks TensorFlow's allocator what is in use and writes it, a JSON object per line, to the
pipe whose number `PIPE` says. It waits until the script has TensorFlow run something: asked before
that, TensorFlow would take up its devices, and settings of the script would come too late. Where
memory runs out, the error is explained (`memtrade.explain_oom`) and goes on its way.
"""

import contextlib
import importlib
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import IO, Any

import msgspec

from memtrade.measure.protocol import PIPE, Sampled

SECONDS = 0.25

# The file of TensorFlow's that a thread is in while TensorFlow runs something for it.
_RUNNING = os.path.join("tensorflow", "python", "eager", "execute.py")

# The files that a script is run from; runpy is frozen into Python, or is not.
_OURS = {__file__, "<frozen runpy>", runpy.__file__}


def main(script: str, *arguments: str) -> None:
    """Runs the script as Python does, to its end or its error."""
    with open(int(os.environ.pop(PIPE)), "wb", buffering=0) as pipe:
        ended = threading.Event()
        watcher = threading.Thread(target=_watch, args=(pipe, ended), daemon=True)
        watcher.start()
        sys.argv = [script, *arguments]
        sys.excepthook = _tell
        sys.path[0] = os.path.dirname(os.path.abspath(script))

        def stop() -> None:
            ended.set()
            watcher.join()

        try:
            _run(script, stop)
        finally:
            stop()


def _run(script: str, stop_watching: Callable[[], None]) -> None:
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        if not _ran_out(error):
            raise
        # Two threads that import what imports each other may see half of it.
        stop_watching()
        # Only now: what a script says before it imports TensorFlow must come first.
        with importlib.import_module("memtrade.answers").explain_oom():
            raise


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As Python tells an error that ends a script: from the script's own first line on."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def _ran_out(error: Exception) -> bool:
    tf: Any = sys.modules.get("tensorflow")
    return tf is not None and isinstance(error, tf.errors.ResourceExhaustedError)


def _watch(pipe: IO[bytes], ended: threading.Event) -> None:
    count, layer = None, ""
    while not ended.wait(SECONDS):
        frames = list(_frames())
        if count is None and _runs(frames):
            count = _counter()
        if count is not None:
            layer = layer or _layer_at_peak(frames)
            _say(pipe, count(), layer)
    if count is None and "tensorflow" in sys.modules:  # it was too quick; now asking does no harm
        count = _counter()
    if count is not None:
        _say(pipe, count(), layer)


def _frames() -> Iterator[FrameType]:
    """Of the script, the innermost first. Its objects may not be listed from another thread: what
    is in the making would change under Python's hands."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _runs(frames: Sequence[FrameType]) -> bool:
    """Whether TensorFlow is running something for the script."""
    return any(
        frame.f_code.co_filename.endswith(_RUNNING) and frame.f_code.co_name != "<module>"
        for frame in frames  # a module's own frame is there while it is imported
    )


def _counter() -> Callable[[], Any]:
    """What asks the device."""
    tf: Any = sys.modules["tensorflow"]
    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    process = importlib.import_module("memtrade.tf.process")
    return lambda: process.counted(device)


def _layer_at_peak(frames: Sequence[FrameType]) -> str:
    """Of the Keras model that is in `fit`, as predicted; "" where there is none, or not yet."""
    keras: Any = sys.modules.get("keras")
    for frame in frames:
        if keras is None or frame.f_code.co_name != "fit":
            continue
        model: Any = frame.f_locals.get("self")
        size = frame.f_locals.get("batch_size")
        if isinstance(model, keras.Model) and model.compiled:
            with contextlib.suppress(Exception):  # it cannot be told; the script goes on
                answers = importlib.import_module("memtrade.answers")
                return answers.summary(model, batch_size=size or 32, show=False).peak_layer
    return ""


def _say(pipe: IO[bytes], counted: Any, layer: str) -> None:
    if counted is not None:
        said = Sampled(time.time(), counted.in_use_bytes, counted.most_bytes, layer)
        with contextlib.suppress(OSError):  # nobody listens any more
            pipe.write(msgspec.json.encode(said) + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
