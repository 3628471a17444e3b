"""`memtrade watch`: a training script with its memory, peak and limit, live."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.live import Live
from rich.text import Text

from memtrade.commands.progress import on_terminal, say
from memtrade.errors import MemtradeError
from memtrade.facts.surroundings import ONEDNN
from memtrade.measure.environment import child_environment
from memtrade.measure.flags import DeviceFlags
from memtrade.measure.protocol import PIPE, Sampled, TrialSpec
from memtrade.units import megabytes

_BAR = 24  # characters
# Without a terminal, a line is written where the peak has grown by so much.
_GROWN = 1.05
_SAMPLED = msgspec.json.Decoder(Sampled)

_CRASHED = (
    "the script crashed, as TensorFlow 2.21 does on a CPU where some of its kernels are refused "
    "memory. memtrade.summary(model, batch_size=...) says what the step takes"
)
_AGAIN = f"; with {ONEDNN}=0 most kernels raise an error, which a page explains"


def watch(
    script: Annotated[Path, Parameter(help="The Python file to run.")],
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    device: DeviceFlags = DeviceFlags(),
) -> int:
    """Run a training script and show its memory: in use, peak, the limit, the layer at the peak.

    Without a GPU the script runs in an arena, TensorFlow's GPU allocator on the CPU, so that there
    is a limit (--memory-limit, before the script's name). Where memory runs out, a page explains
    it. The layer is predicted, of a compiled Keras model. What the script writes is passed on.

    Parameters
    ----------
    arguments
        The script's own.
    """
    if not script.is_file():
        raise MemtradeError(f"there is no script {str(script)!r}: name a Python file")
    if device.timeout != DeviceFlags.timeout:
        raise MemtradeError("a watched script takes its time: leave --timeout out")
    name, limit_bytes = device.resolve()
    environment = child_environment(TrialSpec(device=name, memory_limit_bytes=limit_bytes))
    if ONEDNN not in os.environ:
        del environment[ONEDNN]  # the script runs as it would by itself
    read, write = os.pipe()
    environment |= {PIPE: str(write), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "memtrade.watch", str(script), *arguments]
    live = on_terminal()
    child = subprocess.Popen(
        command,
        env=environment,
        pass_fds=(write,),
        stdout=subprocess.PIPE if live else None,
        stderr=subprocess.STDOUT if live else None,
    )
    os.close(write)
    with open(read, "rb", buffering=0) as pipe:
        peak_bytes = (_live if live else _plain)(child, pipe, limit_bytes)
    status = child.wait()
    if peak_bytes:
        say(f"peak {_of(peak_bytes, limit_bytes)}")
    if status == -signal.SIGSEGV:
        say(_CRASHED + (_AGAIN if os.environ.get(ONEDNN) != "0" else ""))
    return status if status >= 0 else 128 - status


def _plain(child: subprocess.Popen[bytes], pipe: IO[bytes], limit_bytes: int) -> int:
    """Lines on stderr; the script writes for itself. Returns the peak in bytes."""
    peak_bytes = 0
    for said in map(_SAMPLED.decode, pipe):
        if said.peak_bytes > _GROWN * peak_bytes:
            say(_words(said, limit_bytes))
            peak_bytes = said.peak_bytes
    return peak_bytes


def _live(child: subprocess.Popen[bytes], pipe: IO[bytes], limit_bytes: int) -> int:
    """One line that changes, below what the script writes. Returns the peak in bytes."""
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    peak_bytes = 0
    with Live(console=console, refresh_per_second=8) as live:
        written = threading.Thread(target=_pass_on, args=(child.stdout, console), daemon=True)
        written.start()
        for said in map(_SAMPLED.decode, pipe):
            peak_bytes = said.peak_bytes
            live.update(_line(said, limit_bytes))
        written.join()
    return peak_bytes


def _pass_on(written: IO[bytes], console: Console) -> None:
    for line in written:
        text = line.decode(errors="replace").rstrip("\n").rpartition("\r")[2]
        console.print(Text.from_ansi(text))


def _line(said: Sampled, limit_bytes: int) -> Text:
    share = min(1.0, said.in_use_bytes / limit_bytes)
    peak = min(_BAR - 1, round(_BAR * said.peak_bytes / limit_bytes))
    bar = ["█" if i < share * _BAR else "·" for i in range(_BAR)]
    bar[peak] = "|"
    return Text(f"{''.join(bar)} {_words(said, limit_bytes)}", no_wrap=True, overflow="ellipsis")


def _words(said: Sampled, limit_bytes: int) -> str:
    layer = f", {said.layer} stands at it (predicted)" if said.layer else ""
    in_use = f"in use {megabytes(said.in_use_bytes)} MB"
    return f"{in_use}, peak {_of(said.peak_bytes, limit_bytes)}{layer}"


def _of(peak_bytes: int, limit_bytes: int) -> str:
    share = peak_bytes / limit_bytes
    return f"{megabytes(peak_bytes)} MB of {megabytes(limit_bytes)} MB ({share:.0%})"
