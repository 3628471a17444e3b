"""The image, as far as it can be told without building it: what it copies is there and is sent."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import tomllib
from pathlib import Path

from memtrade.measure.flags import DEFAULT_STRATEGIES

ROOT = Path(__file__).resolve().parents[1]


def instructions(text: str) -> list[tuple[str, str]]:
    """Its lines as (instruction, arguments), continued ones joined, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(name.upper(), rest) for name, rest in pairs]


STEPS = instructions((ROOT / "Dockerfile").read_text(encoding="utf-8"))


def only(name: str) -> str:
    [found] = [rest for step, rest in STEPS if step == name]
    return found


def sources() -> list[str]:
    return [
        word
        for step, rest in STEPS
        if step == "COPY"
        for word in shlex.split(rest)[:-1]
        if not word.startswith("--")
    ]


def test_what_it_copies_is_there_and_sent_to_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert sources()
    for source in sources():
        assert (ROOT / source).exists(), source
        assert not any(fnmatch.fnmatch(source, pattern) for pattern in ignored), source


def test_it_copies_before_it_installs_what_the_build_reads() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    install = next(i for i, (step, rest) in enumerate(STEPS) if step == "RUN" and "'.[" in rest)
    before = {word for step, rest in STEPS[:install] if step == "COPY" for word in rest.split()}
    needed = {"pyproject.toml", "constraints.txt", "memtrade"}
    assert before >= needed | {project["readme"], *project["license-files"]}
    [extra] = re.findall(r"'\.\[(\w+)\]'", STEPS[install][1])
    [tensorflow] = [each for each in project["optional-dependencies"][extra] if "and-cuda" in each]
    layer = next(rest for step, rest in STEPS if step == "RUN" and "and-cuda" in rest)
    assert tensorflow.startswith("tensorflow[and-cuda]")
    assert "'tensorflow[and-cuda]'" in layer


def test_its_python_is_one_that_the_project_supports() -> None:
    [minor] = re.findall(r"^python:3\.(\d+)-slim$", only("FROM"))
    assert 11 <= int(minor) <= 13


def test_it_runs_the_benchmark_as_no_root_with_results_on_a_volume() -> None:
    names = [step for step, _ in STEPS]
    user = only("USER")
    assert user not in ("root", "0")
    assert any(step == "RUN" and f"{user} " in rest + " " for step, rest in STEPS)
    assert all(names.index("USER") > i for i, name in enumerate(names) if name in ("RUN", "COPY"))
    program, script, *flags = json.loads(only("ENTRYPOINT"))
    assert program == "python"
    assert script in sources()
    assert flags == ["--results", only("VOLUME")]


def test_its_default_is_the_comparison_of_the_thesis() -> None:
    words = json.loads(only("CMD"))
    flags = dict(zip(words[::2], words[1::2], strict=True))
    assert tuple(flags["--strategy"].split(",")) == DEFAULT_STRATEGIES
