"""The parent's side of a trial, with small fake workers in place of TensorFlow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from memtrade.errors import MemtradeError
from memtrade.measure import host, trial
from memtrade.measure.environment import (
    THESIS_LIMIT_BYTES,
    child_environment,
    default_limit_bytes,
)
from memtrade.measure.protocol import Event, Progress, StepDone, TrialSpec
from memtrade.measure.records import make_record
from memtrade.measure.trial import Outcome, run_child

SPEC = TrialSpec(model_options={"layers": 18, "batch_size": 2}, memory_limit_bytes=1 << 30, steps=2)

# What every fake worker may use. `say` writes an event, `spec` is what the parent sent.
PREAMBLE = """
import json, os, signal, sys, time
spec = json.loads(sys.stdin.read())
def say(type, **fields):
    print(json.dumps({"type": type, **fields}), flush=True)
def ready():
    say("ready", runtime=dict(tensorflow_version="2.21.0", device="CPU:0", limit_bytes=1 << 30,
                              onednn=True, intra_op_threads=2, inter_op_threads=1))
def planned():
    say("planned", summary=dict(kept=1, recomputed=2, swapped=3, kept_bytes=10,
        recomputed_bytes=20, swapped_bytes=30, clones=4, actions=50))
def step(seconds, loss=1.0):
    say("step_done", seconds=seconds, peak_bytes=1000, loss=loss)
def done():
    say("done", measured=dict(peak_bytes=1000, peak_bytes_by_step=[900, 1000], persistent_bytes=400,
        memory_cost_bytes=600, host_bytes=50, step_seconds=[0.5], warmup_seconds=[1.0],
        median_seconds=0.5, fastest_seconds=0.5, slowest_seconds=0.5, trace_seconds=0.1,
        plan_seconds=0.2, rewrite_seconds=0.3, losses=[1.0, None]))
"""


class Workers:
    """Writes fake workers and runs trials with them."""

    def __init__(self, folder: Path):
        self.folder = folder

    def command(self, body: str) -> list[str]:
        path = self.folder / "fake_worker.py"
        path.write_text(PREAMBLE + textwrap.dedent(body), encoding="utf-8")
        return [sys.executable, str(path)]

    def run(self, body: str, *, timeout_seconds: float | None = 20.0) -> Outcome:
        return run_child(SPEC, timeout_seconds=timeout_seconds, worker=self.command(body))


@pytest.fixture
def workers(tmp_path: Path) -> Workers:
    return Workers(tmp_path)


def wait_until_gone(pid: int, *, seconds: float = 5.0) -> bool:
    """Whether the process ends within the time; a zombie counts as ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def wait_for_text(path: Path, *, seconds: float = 10.0) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text().strip()):
            return text
        time.sleep(0.02)
    raise AssertionError(f"nothing was written to {path.name}")


# How a trial ends.


def test_a_trial_that_goes_well(workers: Workers) -> None:
    events: list[Event] = []
    outcome = run_child(
        SPEC,
        timeout_seconds=20,
        on_event=events.append,
        worker=workers.command("""
            ready(); say("progress", phase="step", step=1, of=2); planned(); step(0.5, None); done()
        """),
    )
    record = make_record(SPEC, outcome, command="memtrade run")
    assert (record.status, record.reason) == ("ok", "")
    assert record.measured is not None
    assert record.measured.memory_cost_bytes == 600
    assert record.measured.losses == (1.0, None)
    assert record.plan is not None
    assert record.plan.swapped == 3
    assert record.runtime is not None
    assert record.runtime.intra_op_threads == 2
    assert (record.model, record.command, record.spec) == ("resnet-18", "memtrade run", SPEC)
    assert Progress("step", 1, 2) in events
    assert StepDone(0.5, 1000, None) in events


def test_the_worker_gets_the_spec_and_its_environment(workers: Workers) -> None:
    outcome = workers.run("""
        wanted = spec["model_options"]["layers"] == 18 and spec["memory_limit_bytes"] == 1 << 30
        wanted = wanted and os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] == "1024"
        say("failed", status="unsupported", reason=str(wanted))
    """)
    assert (outcome.status, outcome.reason) == ("unsupported", "True")


@pytest.mark.parametrize("status", ["out_of_memory", "infeasible", "unsupported", "crashed"])
def test_what_the_worker_says_of_its_failure_is_the_status(workers: Workers, status: str) -> None:
    outcome = workers.run(f'ready(); planned(); say("failed", status="{status}", reason="why")')
    assert (outcome.status, outcome.reason) == (status, "why")
    assert outcome.plan is not None


def test_bad_input_that_only_the_child_can_see_is_an_error(workers: Workers) -> None:
    with pytest.raises(MemtradeError, match="below the variables"):
        workers.run('say("failed", status="bad_input", reason="limit below the variables")')


def test_a_child_that_hangs_is_stopped_with_all_that_it_started(
    workers: Workers, tmp_path: Path
) -> None:
    began = time.monotonic()
    outcome = workers.run(
        f"""
        import subprocess
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        open({str(tmp_path / "helper")!r}, "w").write(str(helper.pid))
        say("progress", phase="step", step=2, of=5)
        time.sleep(60)
        """,
        timeout_seconds=1.5,
    )
    assert outcome.status == "timeout"
    assert outcome.reason == "no result within 1.5 s: stopped in step 2 of 5"
    assert time.monotonic() - began < 8
    assert wait_until_gone(int((tmp_path / "helper").read_text()))


def test_a_child_that_closes_its_pipes_and_stays_is_stopped_too(workers: Workers) -> None:
    outcome = workers.run("os.close(1); os.close(2); time.sleep(60)", timeout_seconds=1)
    assert outcome.status == "timeout"


def test_a_child_killed_from_outside_is_a_crash(workers: Workers, tmp_path: Path) -> None:
    def kill(event: Event) -> None:
        if isinstance(event, StepDone):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    record = run_child(
        SPEC,
        timeout_seconds=20,
        on_event=kill,
        worker=workers.command(f"""
            open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
            say("progress", phase="step", step=1, of=2)
            step(0.5)
            time.sleep(60)
        """),
    )
    assert record.status == "crashed"
    assert record.reason == "killed by SIGKILL in step 1 of 2"
    assert record.measured is None


def test_a_child_that_the_oom_killer_takes_is_out_of_host_memory(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([7, 8])
    monkeypatch.setattr(host, "oom_kills", lambda: next(counts))
    outcome = workers.run("""
        say("progress", phase="step", step=1, of=2)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert outcome.status == "out_of_host_memory"
    assert outcome.reason == "taken by the kernel's OOM killer in step 1 of 2"


def test_a_heap_that_cannot_grow_is_out_of_host_memory(workers: Workers) -> None:
    outcome = workers.run("""
        sys.stderr.write("terminate called after throwing an instance of 'std::bad_alloc'\\n")
        os.abort()
    """)
    assert outcome.status == "out_of_host_memory"


def test_a_crash_by_signal_has_its_name_and_the_last_words(workers: Workers) -> None:
    outcome = workers.run("""
        print("first", file=sys.stderr); print("F Check failed", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    """)
    assert (outcome.status, outcome.reason) == ("crashed", "killed by SIGSEGV: F Check failed")


FAILED_ALLOCATION = """
W0000 00:00:1.5 16 op_kernel.cc:1858] OP_REQUIRES failed at mkl_util.h:878 : RESOURCE_EXHAUSTED: \
OOM when allocating tensor with shape[12336] and type uint8
F0000 00:00:1.5 16 tensor.cc:896] Check failed: dtype() == expected_dtype (1 vs. 4)
*** Check failure stack trace: ***
    @     0x7f0e880a71f5  (unknown)
"""


def test_an_abort_after_a_failed_allocation_is_out_of_memory(workers: Workers) -> None:
    outcome = workers.run(
        f"sys.stderr.write({FAILED_ALLOCATION!r}); sys.stderr.flush(); os.abort()"
    )
    assert outcome.status == "out_of_memory"
    assert outcome.reason == "OOM when allocating tensor with shape[12336] and type uint8"


def test_a_crash_has_the_line_that_tells_why(workers: Workers) -> None:
    log = FAILED_ALLOCATION.replace("OOM", "")
    outcome = workers.run(f"sys.stderr.write({log!r}); sys.stderr.flush(); os.abort()")
    assert outcome.status == "crashed"
    assert outcome.reason == (
        "killed by SIGABRT: tensor.cc:896] Check failed: dtype() == expected_dtype (1 vs. 4)"
    )


def test_an_exception_is_a_crash_with_its_message(workers: Workers) -> None:
    outcome = workers.run("raise RuntimeError('the wheel is broken')")
    assert outcome.status == "crashed"
    assert outcome.reason == "exit code 1: RuntimeError: the wheel is broken"


def test_a_worker_that_ends_without_a_word_has_crashed(workers: Workers) -> None:
    assert workers.run("") == Outcome(status="crashed", reason="exit code 0")


def test_done_without_a_measurement_is_a_crash(workers: Workers) -> None:
    outcome = workers.run('say("done", measured=None)')
    assert (outcome.status, outcome.reason) == (
        "crashed",
        "the worker ended without the result of measure",
    )


def test_garbage_on_stdout_is_a_crash_that_quotes_it(workers: Workers) -> None:
    outcome = workers.run('ready(); print("hello from C++", flush=True); time.sleep(60)')
    assert outcome.status == "crashed"
    assert "'hello from C++'" in outcome.reason


def test_the_last_word_counts_whatever_the_exit(workers: Workers) -> None:
    assert workers.run("done(); os.abort()").status == "ok"


def test_much_output_on_both_pipes_blocks_nobody(workers: Workers) -> None:
    outcome = workers.run("""
        for i in range(2000):
            print("x" * 500, file=sys.stderr)
            say("progress", phase="step", step=i, of=2000)
        done()
    """)
    assert outcome.status == "ok"


def test_log_lines_are_handed_on(workers: Workers) -> None:
    lines: list[str] = []
    run_child(
        SPEC,
        timeout_seconds=20,
        on_log=lines.append,
        worker=workers.command("print('a log line', file=sys.stderr, flush=True); done()"),
    )
    assert lines == ["a log line"]


# Whatever becomes of the parent, no child stays behind.

PARENT = """
import sys
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.trial import run_child
run_child(TrialSpec(memory_limit_bytes=1 << 30), worker=[sys.executable, {worker!r}])
"""
SLEEPER = """
{preamble}
open({pid_file!r}, "w").write(str(os.getpid()))
time.sleep(60)
"""
# As the real worker does, it ties its life to the parent's.
TIED = "from memtrade.measure.child import become_child; become_child()"


@pytest.mark.parametrize(
    ("signal_sent", "preamble"),
    [
        (signal.SIGINT, ""),
        (signal.SIGTERM, ""),
        (signal.SIGHUP, ""),
        (signal.SIGKILL, TIED),
    ],
)
def test_a_parent_that_is_stopped_leaves_no_child(
    tmp_path: Path, signal_sent: signal.Signals, preamble: str
) -> None:
    pid_file = tmp_path / "pid"
    worker = tmp_path / "sleeper.py"
    worker.write_text(
        PREAMBLE + SLEEPER.format(preamble=preamble, pid_file=str(pid_file)), encoding="utf-8"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(worker=str(worker))],
        stderr=subprocess.PIPE,
        env=child_environment(SPEC),
    )
    child = int(wait_for_text(pid_file))
    assert os.getpgid(child) == child  # a group of its own: a terminal's Ctrl-C spares it
    parent.send_signal(signal_sent)
    _, log = parent.communicate(timeout=10)
    assert parent.returncode in {-signal_sent, 128 + signal_sent}, log.decode()
    assert wait_until_gone(child)


def test_become_child_puts_itself_first_in_the_oom_killers_queue(workers: Workers) -> None:
    outcome = workers.run(f"""
        {TIED}
        say("failed", status="unsupported", reason=open("/proc/self/oom_score_adj").read().strip())
    """)
    assert outcome.reason == "1000"


def test_a_child_whose_parent_is_already_gone_ends_at_once(tmp_path: Path) -> None:
    environment = child_environment(SPEC) | {"MEMTRADE_PARENT_PID": "1"}
    command = [sys.executable, "-c", f"{TIED}; print(1)"]
    ended = subprocess.run(command, env=environment, check=False)
    assert ended.returncode == 1


def test_handlers_are_restored(workers: Workers) -> None:
    before = signal.getsignal(signal.SIGTERM)
    workers.run("done()")
    assert signal.getsignal(signal.SIGTERM) is before


# The environment of the child.


def test_the_arena_is_switched_on_with_its_limit_in_mib() -> None:
    env = child_environment(SPEC, {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "HOME": "/root"})
    assert env["TF_ENABLE_ONEDNN_OPTS"] == "1"
    assert child_environment(SPEC, {"TF_ENABLE_ONEDNN_OPTS": "0"})["TF_ENABLE_ONEDNN_OPTS"] == "0"
    assert env["TF_CPU_ALLOCATOR_USE_BFC"] == "true"
    assert env["TF_CPU_BFC_MEM_LIMIT_IN_MB"] == "1024"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["HOME"] == "/root"
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in env
    assert "glibc.malloc.arena_max=1" in env["GLIBC_TUNABLES"]


def test_the_users_own_heap_settings_are_kept_and_added_to() -> None:
    own = "glibc.malloc.check=1:glibc.malloc.arena_max=4"
    told = child_environment(SPEC, {"GLIBC_TUNABLES": own})["GLIBC_TUNABLES"]
    assert told.startswith(f"{own}:glibc.malloc.hugetlb=1")
    assert told.count("arena_max") == 1


def test_a_gpu_counts_among_the_visible_ones() -> None:
    spec = TrialSpec(device="gpu:1", memory_limit_bytes=1 << 30)
    env = child_environment(spec, {"TF_CPU_ALLOCATOR_USE_BFC": "true"})
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert "TF_CPU_ALLOCATOR_USE_BFC" not in env
    assert child_environment(spec, {"CUDA_VISIBLE_DEVICES": "2,5"})["CUDA_VISIBLE_DEVICES"] == "5"


def test_the_default_limit_is_the_thesis_gpu_or_a_share_of_what_is_free() -> None:
    assert default_limit_bytes(16 << 30) == THESIS_LIMIT_BYTES
    assert default_limit_bytes(8 << 30) == 19 * (256 << 20)  # 4.75 of 8 GiB
    assert default_limit_bytes(0) == 256 << 20


def test_the_parent_imports_no_tensorflow() -> None:
    code = "import sys, memtrade.measure.trial; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=child_environment(SPEC))
    assert trial.WORKER[1:] == ("-m", "memtrade.measure")
