"""The thesis' original tools themselves, beside ours: OpenAI's gradient-checkpointing and IBM's
TFLMS v1, from checkouts that the user names, under TensorFlow 1.15 in an arena of the same size.

    python3.7 -m venv tf1
    tf1/bin/pip install tensorflow==1.15.5 'protobuf<3.21' 'numpy<1.19' toposort
    python -m memtrade.papers.originals results/originals --layers 50 --batch-size 8 \\
        --openai gradient-checkpointing --tflms tensorflow-large-model-support \\
        --python37 tf1/bin/python

TFLMS is the branch tflmsv1. The nets are memtrade's own, op for op (`originals_graph.py`), the
child is one file for Python 3.7 (`originals_child.py`), and each trial is a record like any other,
whose strategy says that it is of TensorFlow 1:

    tf1-original   the step as it is
    tf1-openai     OpenAI's, checkpoints="memory"
    tf1-tflms      TFLMS v1 by default, to a second server process on this machine
    tf1-ome        the thesis' OME, whose source is not public: OpenAI's checkpoints, swapped

`kept` in their plans counts checkpoints; swapped bytes leave through gRPC, so times are no GPU's.
"""

import argparse
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memtrade.errors import MemtradeError
from memtrade.measure.environment import THESIS_LIMIT_BYTES, child_environment
from memtrade.measure.protocol import Outcome, TrialSpec
from memtrade.measure.records import Record, make_record, save_record, trial_id
from memtrade.measure.trial import run_child
from memtrade.models import options_of
from memtrade.papers.thesis_nets import OPTIMIZER, ORDER, TOOLS, make_net, rules_of

CHILD = Path(__file__).with_name("originals_child.py")
PACKAGES = ("tensorflow==1.15.5", "protobuf<3.21", "numpy<1.19", "toposort")
# What a checkout must hold.
PROOF = {
    "openai": Path("memory_saving_gradients.py"),
    "tflms": Path("tensorflow_large_model_support") / "lms.py",
}
_VERSIONS = (
    "import json, platform, tensorflow, toposort; "
    "print(json.dumps([platform.python_version(), tensorflow.__version__]))"
)


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Where the original tools and their interpreter are."""

    python: str
    openai: Path
    tflms: Path

    def check(self) -> tuple[str, str]:
        """The interpreter's version and its TensorFlow's.

        Raises:
            MemtradeError: one of them is not what the tools need.
        """
        for name, proof in PROOF.items():
            folder: Path = getattr(self, name)
            if not (folder / proof).is_file():
                raise MemtradeError(f"--{name} names a checkout with {proof}: {folder} has none")
        needed = "the originals need Python 3.7 with " + " ".join(map(shlex.quote, PACKAGES))
        python = shutil.which(self.python)
        if python is None:
            raise MemtradeError(f"{needed}: there is no {self.python}, name one by --python37")
        asked = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True)
        said = asked.stdout.strip().splitlines()
        versions = json.loads(said[-1]) if asked.returncode == 0 and said else ["", ""]
        if not (versions[0].startswith("3.7.") and versions[1].startswith("1.15.")):
            lines = asked.stderr.strip().splitlines() or ["nothing"]
            errors = [line for line in lines if re.match(r"\w+Error: ", line)]
            said = [f"Python {versions[0]}, TensorFlow {versions[1]}"] if versions[0] else errors
            raise MemtradeError(f"{needed}: {self.python} says {(said or lines)[0]}")
        return versions[0], versions[1]


def make_spec(strategy: str, layers: int | None, batch_size: int) -> TrialSpec:
    """A trial of the thesis' ResNet of so many layers, or (None) of its InceptionV4."""
    net = make_net(layers, batch_size, data_format="NHWC")
    select = rules_of(layers)["ome"]["select"]
    return TrialSpec(
        model=net.family,
        model_options={each.name: getattr(net, each.name) for each in options_of(type(net))},
        optimizer=OPTIMIZER,
        learning_rate=1e-3,
        strategy=strategy,
        strategy_options={"select": select} if TOOLS[strategy] == "ome" else {},
        order=ORDER,
        memory_limit_bytes=THESIS_LIMIT_BYTES,
        steps=3,
    )


def record_of(
    spec: TrialSpec, outcome: Outcome, versions: tuple[str, str], *, command: str
) -> Record:
    """The record of a trial that ended now, under another Python and TensorFlow than this one."""
    record = make_record(spec, outcome, command=command)
    machine = msgspec.structs.replace(
        record.machine,
        python_version=versions[0],
        tensorflow_version=versions[1],
        settings=tuple(s for s in record.machine.settings if "ONEDNN" not in s),
    )
    return msgspec.structs.replace(record, id=trial_id(spec, machine), machine=machine)


def measure(spec: TrialSpec, tools: Tools, *, timeout_seconds: float) -> Outcome:
    """Draws the net with this TensorFlow, and runs it with the other one."""
    # Of its servers, none is behind a proxy.
    environment = {**child_environment(spec), "no_proxy": "localhost"}
    with tempfile.TemporaryDirectory() as folder:
        graph = str(Path(folder) / "graph.meta")
        drawing = (sys.executable, "-m", "memtrade.papers.originals_graph", graph)
        request = msgspec.json.encode(spec)
        subprocess.run(drawing, input=request, env=environment, capture_output=True, check=True)
        tool = TOOLS[spec.strategy]
        checkouts = ("--openai", str(tools.openai), "--tflms", str(tools.tflms))
        return run_child(
            spec,
            timeout_seconds=timeout_seconds,
            environment=environment,
            worker=(tools.python, str(CHILD), "--tool", tool, "--graph", graph, *checkouts),
        )


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m memtrade.papers.originals")
    parser.add_argument("results", type=Path, help="a folder of records")
    parser.add_argument("--openai", type=Path, required=True, help="a checkout of OpenAI's tool")
    parser.add_argument("--tflms", type=Path, required=True, help="a checkout of TFLMS v1")
    parser.add_argument("--python37", default="python3.7", help="a Python 3.7 with TensorFlow 1.15")
    layers = "of the ResNets, separated by commas; 0: InceptionV4"
    parser.add_argument("--layers", type=_numbers, default=_numbers("50"), help=layers)
    parser.add_argument("--batch-size", type=_numbers, default=_numbers("8"))
    parser.add_argument("--strategy", default=",".join(TOOLS), help="separated by commas")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for one trial")
    given = parser.parse_args(words)
    tools = Tools(python=given.python37, openai=given.openai, tflms=given.tflms)
    folder = given.results.name if given.results.is_absolute() else given.results
    command = (
        f"python -m memtrade.papers.originals {folder} --openai PATH --tflms PATH --python37 PATH"
    )
    try:
        unknown = set(given.strategy.split(",")) - set(TOOLS)
        if unknown:
            raise MemtradeError(f"--strategy: {min(unknown)} is none of {', '.join(TOOLS)}")
        versions = tools.check()
        strategies = given.strategy.split(",")
        for trial in itertools.product(given.layers, given.batch_size, strategies):
            layers, batch_size, strategy = trial
            spec = make_spec(strategy, layers or None, batch_size)
            outcome = measure(spec, tools, timeout_seconds=given.timeout)
            told = "--layers {} --batch-size {} --strategy {}".format(*trial)
            record = record_of(spec, outcome, versions, command=f"{command} {told}")
            print(save_record(record, given.results), record.status, record.reason)
    except MemtradeError as error:
        print(f"memtrade: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
