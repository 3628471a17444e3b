"""Children that are forked off a process that has imported TensorFlow: `python -m tests.forks`.

Of what a trial's child takes in a test, most is three seconds of Python's imports. So tests have
`memtrade.measure.children` ask a server for them, one for each environment that decides something
when TensorFlow is imported:

    tests ──environment, arguments, stdin, stdout, stderr──► server ──fork──► guard ──fork──► child
      ◄───────────────process id, and how it ended─────────────────────────────┘

The child runs the module as `python -m` does, in a session of its own. The guard is its parent, and
kills it once the tests are gone. A test that is about the start of a process itself asks for the
fixture `started_anew`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import hashlib
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

import psutil

from memtrade.measure import children
from memtrade.measure.child import PARENT_VARIABLE

# What the children run, and what their servers have imported by then.
MODULE = "memtrade.measure"
IMPORTED = (
    "keras", "memtrade.measure.worker", "memtrade.tf.ask", "memtrade.pipeline.measure.worker",
    "memtrade.keras", "memtrade.explain.refusal", "memtrade.results.explanation",
)  # fmt: skip

# Read by memtrade, or by TensorFlow where it makes a device: children of one server may differ.
# Ray leaves its own behind in a process that has used it.
LATE = (
    "TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB", "TF_CONFIG", "MEMTRADE_", "PYTEST_",
    "XDG_", "PYTHONPATH", "PWD", "OLDPWD", "COLUMNS", "no_proxy", "no_grpc_proxy", "RAY_",
    "PYTHONBREAKPOINT",
)  # fmt: skip

_FOLDER = "MEMTRADE_TEST_FORKS"  # where the servers' sockets are; its name ends in the tests' pid
_TITLE = "-" * 200  # room for what `ps` shows of a child
_PATIENCE_SECONDS = 60.0

_started: list[int] = []  # the processes that were forked for this one


def descendants() -> list[psutil.Process]:
    """The processes below this one that live, those that were forked for it included: their parents
    are servers, which may be another test process's."""
    found = psutil.Process().children(recursive=True)
    for pid in _started:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return list(dict.fromkeys(found))


class Forked:
    """As much of a `subprocess.Popen` as `memtrade.measure.children` needs."""

    def __init__(
        self,
        pid: int,
        guard: socket.socket,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
    ):
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._guard = guard

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        if (status := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._guard], [], [], timeout)[0]:
            with self._guard:
                self.returncode = os.waitstatus_to_exitcode(int(self._guard.recv(100)))
        return self.returncode


def install() -> None:
    """Has `memtrade.measure.children` start its children here, in this process.

    Processes that run tests side by side share the servers of the one that started them.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # not on Linux, or a sandbox that does not have it
        return
    if not Path(os.environ.get(_FOLDER, "/none")).is_dir():
        os.environ[_FOLDER] = tempfile.mkdtemp(prefix="forks-", suffix=f"-{os.getpid()}")
    _patch()


def _patch() -> None:
    here: Any = types.SimpleNamespace(**vars(subprocess) | {"Popen": popen})
    children.subprocess = here


def remove() -> None:
    """Ends the servers that are of this process, within a second."""
    folder = os.environ.pop(_FOLDER, "")
    if folder.endswith(f"-{os.getpid()}"):
        shutil.rmtree(folder, ignore_errors=True)


def popen(
    command: Sequence[str],
    *,
    stdin: IO[bytes],
    stdout: int,
    stderr: int,
    env: Mapping[str, str],
    start_new_session: bool,
) -> Forked | subprocess.Popen[bytes]:
    """A child as `subprocess.Popen` makes it: what it writes comes by pipes."""
    if list(command[:3]) != [sys.executable, "-m", MODULE]:
        return subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, env=env,
            start_new_session=start_new_session,
        )  # fmt: skip
    ours, theirs = [], []
    for where in (stdout, stderr):
        ends = os.pipe() if where == subprocess.PIPE else (-1, os.open(os.devnull, os.O_WRONLY))
        ours.append(os.fdopen(ends[0], "rb", 0) if where == subprocess.PIPE else None)
        theirs.append(ends[1])
    try:
        return Forked(*_fork(command, env, (stdin.fileno(), *theirs)), *ours)
    finally:
        for each in theirs:
            os.close(each)


def ran(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float = 240.0,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` of Python in a folder, with text captured; `command` is a script, -c or
    -m, and what goes with it."""
    if _FOLDER not in os.environ:
        return subprocess.run(
            [sys.executable, *command], env=env, timeout=timeout, cwd=folder,
            capture_output=True, text=True, errors="replace",
        )  # fmt: skip
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        numbers = [each.fileno() for each in files]
        child = Forked(*_fork([sys.executable, *command], env, numbers, folder))
        try:
            status = child.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        for each in files:
            each.seek(0)
        out, err = (each.read().decode(errors="replace") for each in files[1:])
    return subprocess.CompletedProcess(command, status, out, err)


def _fork(
    command: Sequence[str],
    env: Mapping[str, str],
    numbers: Sequence[int],
    folder: Path | None = None,
) -> tuple[int, socket.socket]:
    """The process id of a child that runs the command, and its guard. `numbers`: its standard
    streams."""
    told = {"words": command[1:], "environment": dict(env), "folder": str(folder or Path.cwd())}
    guard = _server(env)
    socket.send_fds(guard, [json.dumps(told).encode() + b"\n"], numbers)
    pid = int(guard.recv(100))
    _started.append(pid)
    guard.settimeout(None)
    return pid, guard


def _server(environment: Mapping[str, str]) -> socket.socket:
    """A connection to the server of children with that environment, which is started if need be."""
    decides = {name: value for name, value in environment.items() if not name.startswith(LATE)}
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
    path = Path(os.environ[_FOLDER], key)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _start_server(path, environment)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_PATIENCE_SECONDS)
    connection.connect(str(path))
    return connection


def _start_server(path: Path, environment: Mapping[str, str]) -> None:
    root = Path(__file__).resolve().parents[1]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        number = listener.fileno()
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", str(number), str(path), _TITLE],
            pass_fds=[number], env={**environment, "PYTHONPATH": str(root)}, cwd=root,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    server.returncode = 0  # nobody waits for it: it ends when the folder is gone


def freeze() -> None:
    """What there is by now stays, and is counted once: to count it anew takes as long as there is,
    and memtrade asks whether something is frozen before each plan."""
    gc.freeze()
    frozen = gc.get_freeze_count()
    gc.get_freeze_count = lambda: frozen


def serve(number: int, path: Path) -> None:
    """Forks guards until the folder of its socket is gone, or the tests are."""
    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for guards
    tests = int(path.parent.name.rpartition("-")[2])
    with socket.socket(fileno=number) as listener:
        listener.settimeout(1.0)
        while path.exists() and psutil.pid_exists(tests):
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                listener.close()
                connection.settimeout(None)
                _guard(connection)
            connection.close()


def _guard(connection: socket.socket) -> NoReturn:
    """Stays beside the child that it makes, and ends with it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, numbers, *_ = socket.recv_fds(connection, 1 << 20, 3)
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 20)
    child = os.fork()
    if child == 0:
        connection.close()
        _run(json.loads(text), numbers)
    for each in numbers:
        os.close(each)
    connection.send(str(child).encode())
    alive = os.pidfd_open(child)
    ready, _, _ = select.select([alive, connection], [], [])
    if alive not in ready:  # whoever asked for the child is gone
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        connection.send(str(status).encode())
    os._exit(0)


def _run(told: dict[str, Any], numbers: Sequence[int]) -> NoReturn:
    """In the child, what `python` does with these words."""
    os.setsid()
    for number, place in zip(numbers, range(3), strict=True):
        os.dup2(number, place)
        os.close(number)
    kind, *words = told["words"]
    _be_called(" ".join([sys.executable, *told["words"]]))
    os.environ.clear()
    os.environ.update(told["environment"])
    if PARENT_VARIABLE in os.environ:
        os.environ[PARENT_VARIABLE] = str(os.getppid())
    os.chdir(told["folder"])
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    _patch()
    if kind == "-m":
        sys.path[:1], sys.argv = [told["folder"], *path], words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path[:1], sys.argv = ["", *path], ["-c", *words[1:]]
        exec(compile(words[0], "-c", "exec", dont_inherit=True), {"__name__": "__main__"})
    else:
        sys.path[:1], sys.argv = [str(Path(kind).parent), *path], [kind, *words]
        runpy.run_path(kind, run_name="__main__")
    sys.exit()


def _be_called(title: str) -> None:
    """Writes what this process is over its arguments, where the system looks for it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    if not begin:  # a sandbox that does not say
        return
    # As long as the last byte is not zero, the system shows what comes before the first that is.
    text = title.encode()[: end - begin - 2]
    ctypes.memmove(begin, text + bytes(1), len(text) + 1)
    ctypes.memset(end - 1, ord("-"), 1)


if __name__ == "__main__":
    from tests import forks  # not as __main__, which the children's modules become

    forks.serve(int(sys.argv[1]), Path(sys.argv[2]))
