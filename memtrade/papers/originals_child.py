"""One trial under TensorFlow 1.15 and Python 3.7, with the thesis' original tools.

What `originals.py` starts; a file of its own, which imports nothing of memtrade's but, by its path,
one that imports nothing either (`loopback.py`). It reads the trial's spec on stdin and says what
every worker says (`memtrade/measure/protocol.py`) on stdout. The tools come from the checkouts that
are named, and nothing of them is kept.

    arena    this process: all ops and variables, in an allocator with a limit
    host     a second server process on this machine, where swapped tensors go: TensorFlow 1 has
             one allocator for all CPU devices of a process
"""

import argparse
import ctypes
import importlib.machinery
import json
import os
import re
import socket
import subprocess
import sys
import time
import traceback
import types

ARENA, HOST = "/job:arena/task:0/cpu:0", "/job:host/task:0/cpu:0"
LOOPBACK = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), os.pardir, "pipeline", "measure", "loopback.py"
)


class Stats(ctypes.Structure):
    """absl::optional<AllocatorStats>, as TensorFlow 1.15's framework/allocator.h lays it out."""

    _fields_ = (
        ("known", ctypes.c_bool),
        ("num_allocs", ctypes.c_int64),
        ("bytes_in_use", ctypes.c_int64),
        ("peak_bytes_in_use", ctypes.c_int64),
        ("largest_alloc_size", ctypes.c_int64),
        ("has_limit", ctypes.c_bool),
        ("bytes_limit", ctypes.c_int64),
        ("reserved", ctypes.c_int64 * 8),
    )


class ArenaCounters:
    """The arena's own counters. Its ops for them know GPUs only: the library is asked itself."""

    def __init__(self, tf):
        folder = tf.sysconfig.get_lib()
        library = ctypes.CDLL(os.path.join(folder, "libtensorflow_framework.so.1"))
        state = library._ZN10tensorflow12ProcessState9singletonEv
        allocator = library._ZN10tensorflow12ProcessState15GetCPUAllocatorEi
        state.restype = allocator.restype = ctypes.c_void_p
        self._address = ctypes.c_void_p(allocator(ctypes.c_void_p(state()), 0))
        self._stats = library._ZN10tensorflow12BFCAllocator8GetStatsEv
        self.reset_peak = lambda: library._ZN10tensorflow12BFCAllocator10ClearStatsEv(self._address)

    def stats(self):
        found = Stats()
        self._stats(ctypes.byref(found), self._address)
        return found


def free_port():
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return taken.getsockname()[1]


def start_server(tf, cluster, job, config=None):
    """A server of TensorFlow's, which listens on all interfaces, kept to this machine."""
    loopback = types.ModuleType("loopback")
    importlib.machinery.SourceFileLoader("loopback", LOOPBACK).exec_module(loopback)
    server = tf.train.Server(cluster, job_name=job, config=config, start=False)
    if not loopback.confine_listeners():
        raise OSError("cannot keep TensorFlow's server to this machine: Linux can from 5.7 on")
    server.start()
    return server


def serve(cluster):
    """The other process: holds what is swapped, on its heap, until its parent is gone."""
    import tensorflow as tf

    start_server(tf, cluster, "host")
    sys.stdin.read()
    os._exit(0)


class Host:
    """The second process, started if a tool swaps."""

    def __init__(self, cluster):
        env = {k: v for k, v in os.environ.items() if not k.startswith("TF_CPU_")}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", json.dumps(cluster)],
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            env=env,
        )

    def highest_bytes(self):
        with open(f"/proc/{self._process.pid}/status") as status:
            return 1024 * int(status.read().split("VmHWM:")[1].split()[0])


def gradients(tf, tool, loss, weights):
    """The gradients as the tool makes them, and the checkpoints of OpenAI's."""
    if tool not in ("checkpoints", "ome"):
        return tf.gradients(loss, weights, gate_gradients=True), []
    openai = importlib.import_module("memory_saving_gradients")
    made = openai.gradients(loss, weights, checkpoints="memory", gate_gradients=True)
    ops = tf.get_default_graph().get_operations()
    cut = [op.inputs[0] for op in ops if op.type == "StopGradient" and op.name.endswith("_sg")]
    return made, cut


def swap_checkpoints(tf, checkpoints, before, select):
    """The thesis' OME: a checkpoint goes to the host, and returns when what reads it runs again.

    That is once the gradients have come down to where its segment ends: what OpenAI's tool lets
    the segment's ops wait for. With `select` "read_once", only what one forward op alone reads.
    """
    graph, graph_editor = tf.get_default_graph(), tf.contrib.graph_editor
    forward = set(before)
    for tensor in checkpoints:
        if select == "read_once" and len(forward.intersection(tensor.consumers())) != 1:
            continue
        cut = graph.get_operation_by_name(tensor.op.name + "_sg")
        awaited = {each for op in cut.outputs[0].consumers() for each in op.control_inputs}
        # Where several segments read it, it returns for the first of them.
        control = graph_editor.ControlOutputs(graph)
        later = graph_editor.get_forward_walk_ops(cut, control_outputs=control)
        awaited.difference_update(later)
        with tf.device(HOST):
            out = tf.identity(tensor, name="ome/swapout")
            back = tf.identity(out, name="ome/swapin")
        graph_editor.add_control_inputs(back.op, list(awaited))
        graph_editor.reroute_ts([back], [tensor], can_modify=[cut])


def swap_all(tf):
    """IBM's TFLMS v1, by default: every tensor that a gradient reads."""
    tflms = importlib.import_module("tensorflow_large_model_support")
    tflms.LMS({"gradients"}, graph=tf.get_default_graph(), cpu_device=HOST).run()


def summary(before, graph, checkpoints):
    """What the tool did to the graph, as `PlanSummary` has it. Only ops that run count."""
    known = {op.name: op for op in before}
    new = [op for op in graph.get_operations() if op.name not in known]
    origins = [(op, known.get(re.sub(r"_\d+$", "", op.name))) for op in new]
    clones = [old for op, old in origins if old is not None and old.type == op.type and op.inputs]
    swapped = {op.inputs[0] for op in new if op.name.split("/")[-1].startswith("swapout")}
    swaps = [op for op in new if re.search(r"(lms|ome)/swap(in|out)", op.name)]
    rerun = {tensor for op in clones for tensor in op.outputs[:1]}
    kept = [tensor for tensor in checkpoints if tensor not in swapped]

    def size(tensors):
        return sum((t.shape.num_elements() or 0) * t.dtype.size for t in tensors)

    return {
        "kept": len(kept), "kept_bytes": size(kept),
        "recomputed": len(rerun), "recomputed_bytes": size(rerun),
        "swapped": len(swapped), "swapped_bytes": size(swapped),
        "clones": len(clones), "actions": 0, "ops_added": len(clones) + len(swaps),
        "checkpoints": [
            [t.name, t.shape.as_list(), t.dtype.name, "swap" if t in swapped else "keep"]
            for t in checkpoints
        ],
    }  # fmt: skip


class OriginalTrial:
    """One trial, phase by phase."""

    def __init__(self, spec, tool, graph_path, send):
        import tensorflow as tf

        self.tf, self.spec, self.path, self.send = tf, spec, graph_path, send
        self.tool = tool
        jobs = ["arena", "host"] if self.tool in ("lms", "ome") else ["arena"]
        self.cluster = {job: [f"localhost:{free_port()}"] for job in jobs}

    def run(self):
        tf = self.tf
        self.host = Host(self.cluster) if "host" in self.cluster else None
        config = tf.ConfigProto(inter_op_parallelism_threads=1)
        # Else the runtime would merge what runs again with what ran before.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        server = start_server(tf, self.cluster, "arena", config)
        self.allocator = ArenaCounters(tf)
        stats = self.allocator.stats()
        runtime = {
            "tensorflow_version": tf.__version__, "device": "CPU:0",
            "limit_bytes": stats.bytes_limit, "onednn": False,
            "intra_op_threads": len(os.sched_getaffinity(0)), "inter_op_threads": 1,
        }  # fmt: skip
        if not stats.known or stats.bytes_limit != self.spec["memory_limit_bytes"]:
            return self.send("failed", status="bad_input", reason="TensorFlow 1 set no limit")
        self.send("ready", runtime=runtime)
        began = time.perf_counter()
        step, loss = self._build()
        edited = time.perf_counter() - began - self.trace_seconds
        self._initialize(server.target)
        with tf.Session(server.target, config=config) as session:
            return self._measure(session, step, loss, edited)

    def _build(self):
        """The op that does a step, and its loss."""
        tf = self.tf
        self.send("progress", phase="trace")
        began = time.perf_counter()
        with tf.device(ARENA):
            tf.train.import_meta_graph(self.path)
            graph = tf.get_default_graph()
            loss = graph.get_tensor_by_name("loss:0")
            before = graph.get_operations()
            self.trace_seconds = time.perf_counter() - began
            self.send("progress", phase="rewrite")
            weights = tf.trainable_variables()
            made, checkpoints = gradients(tf, self.tool, loss, weights)
            adam = tf.train.AdamOptimizer(self.spec["learning_rate"])
            update = adam.apply_gradients(list(zip(made, weights)))  # noqa: B905  # not in Python 3.7
        if self.tool == "lms":
            swap_all(tf)
        elif self.tool == "ome":
            select = self.spec["strategy_options"].get("select")
            swap_checkpoints(tf, checkpoints, before, select)
        if self.tool != "original":
            self.send("planned", summary=summary(before, graph, checkpoints))
        return tf.group(update, *tf.get_collection(tf.GraphKeys.UPDATE_OPS)), loss

    def _initialize(self, target):
        """Gives the variables their first values, in a session that folds none into a constant,
        which would stay, and whose end frees what it took. An initial value lies beside the
        variable that it is copied to, and leaves a hole: smallest first, none of the variables
        is put into one, and padded.
        """
        tf = self.tf
        plain = tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0)
        config = tf.ConfigProto(graph_options=tf.GraphOptions(optimizer_options=plain))
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        variables = tf.global_variables()
        with tf.Session(target, config=config) as session:
            for variable in sorted(variables, key=lambda v: v.shape.num_elements()):
                session.run(variable.initializer)

    def _measure(self, session, step, loss, edited):
        idle = self.host.highest_bytes() if self.host else 0
        warmup, steps = self.spec["warmup"], self.spec["steps"]
        peaks, seconds, losses, in_use = [], [], [], [self.allocator.stats().bytes_in_use]
        for i in range(warmup + steps):
            counted = i >= warmup
            phase, number, of = ("step", i - warmup, steps) if counted else ("warm-up", i, warmup)
            self.send("progress", phase=phase, step=number + 1, of=of)
            self.allocator.reset_peak()
            began = time.perf_counter()
            value = float(session.run([step, loss])[1])
            seconds.append(time.perf_counter() - began)
            peaks.append(self.allocator.stats().peak_bytes_in_use)
            in_use.append(self.allocator.stats().bytes_in_use)
            losses.append(value)
            self.send("step_done", seconds=seconds[-1], peak_bytes=peaks[-1], loss=value)
        done = sorted(seconds[warmup:])
        middle = (done[(len(done) - 1) // 2] + done[len(done) // 2]) / 2
        measured = {
            "peak_bytes": max(peaks), "peak_bytes_by_step": peaks,
            "persistent_bytes": in_use[-1], "memory_cost_bytes": max(peaks) - in_use[-1],
            "host_bytes": self.host.highest_bytes() - idle if self.host else 0,
            "step_seconds": seconds[warmup:], "warmup_seconds": seconds[:warmup],
            "median_seconds": middle, "fastest_seconds": done[0], "slowest_seconds": done[-1],
            "trace_seconds": self.trace_seconds, "plan_seconds": 0.0, "rewrite_seconds": edited,
            "losses": losses, "in_use_bytes": in_use,
        }  # fmt: skip
        self.send("done", measured=measured)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--graph", "--tool", "--openai", "--tflms", "--serve"):
        parser.add_argument(name)
    given = parser.parse_args()
    if given.serve:
        serve(json.loads(given.serve))
    sys.path[:1] = [path for path in (given.openai, given.tflms) if path]
    # TensorFlow may write to standard output: events get a descriptor of their own.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(kind, **said):
        events.write(json.dumps(dict(said, type=kind)) + "\n")
        events.flush()

    code = 1
    try:
        import tensorflow as tf

        try:
            OriginalTrial(json.load(sys.stdin), given.tool, given.graph, send).run()
        except tf.errors.ResourceExhaustedError as error:
            reason = str(error.message).strip().split("\n")[0]
            send("failed", status="out_of_memory", reason=reason)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)  # a server of TensorFlow 1 has no end of its own


if __name__ == "__main__":
    main()
