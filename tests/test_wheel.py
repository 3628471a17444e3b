"""What is installed has all that its commands need: a wheel, built from the source archive and
unpacked, beside whose code there is nothing else of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).resolve().parents[1]
VERSION = "9.8+gabcdef123"
# What a build without git sees: a downloaded archive, the Dockerfile.
SOURCES = ("memtrade", "pyproject.toml", "setup.py", "README.md", "LICENSE")


def build(folder: Path, kind: str) -> Path:
    """The one file that the build backend makes of a folder."""
    script = f"from setuptools import build_meta; build_meta.build_{kind}('dist')"
    environment = {**os.environ, "SETUPTOOLS_SCM_PRETEND_VERSION": VERSION}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    [built] = (folder / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, made as an installer makes it: source archive first."""
    source, unpacked = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("unpacked")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.pyc"))
        else:
            shutil.copy(ROOT / name, source)
    with tarfile.open(build(source, "sdist")) as archive:
        archive.extractall(unpacked, filter="data")
    [folder] = unpacked.iterdir()
    with zipfile.ZipFile(build(folder, "wheel")) as archive:
        archive.extractall(unpacked / "wheel")
    return unpacked / "wheel"


def files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_it_holds_every_file_of_the_package(wheel: Path) -> None:
    assert files(wheel / "memtrade") == files(ROOT / "memtrade")
    [about] = wheel.glob("*.dist-info")
    assert f"Version: {VERSION}" in (about / "METADATA").read_text(encoding="utf-8").splitlines()


COMMANDS = """
import sys
from memtrade.cli import main
from memtrade.models import MODELS
for words in sys.stdin.read().splitlines():
    print("$", words, flush=True)
    assert main(words.split()) == 0, words
from memtrade.papers.published import load_published, published_names
from memtrade.papers.pipelines import load_comparison
from memtrade.sweep.shipped import sweep_file
from pathlib import Path
assert len([load_published(name) for name in published_names()]) == 20
comparisons = sweep_file(Path("sweeps/published_pipelines.toml"), table="comparison")
load_comparison(comparisons, "gpipe_gpt2")
assert "tensorflow" not in sys.modules
import memtrade
print(memtrade.__file__)
"""


def test_its_commands_run_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """Those that take no measurement: what they read comes with the wheel, but for the records."""
    shutil.copytree(ROOT / "results" / "measured", tmp_path / "runs")
    words = """
        devices
        facts
        sweep quick --dry-run
        sweep sweeps/thesis.toml --dry-run
        sweep own_ways --dry-run
        table thesis --format markdown
        plot peak --output peak.svg
        report runs --output report.html
    """.replace("  ", "")
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMMANDS],
        input=words.strip(),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(wheel), "XDG_CACHE_HOME": str(tmp_path)}
        | {"MPLCONFIGDIR": matplotlib.get_cachedir()},  # else it looks for all fonts anew
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == str(wheel / "memtrade" / "__init__.py")
    parts = done.stdout.removeprefix("$ ").split("\n$ ")
    said = {words: text for words, _, text in (part.partition("\n") for part in parts)}
    assert "gtx-1070" in said["devices"]
    assert "resnet-50 batch 32" in said["sweep sweeps/thesis.toml --dry-run"]
    assert "peak MB published" in said["table thesis --format markdown"]
    # plotly.js, packed: gzip's first bytes.
    assert '"plotly">H4sI' in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_constraints_name_every_dependency_of_the_package(wheel: Path) -> None:
    """`pip install -c constraints.txt` pins what it installs; each is within what is asked for."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pinned.items()}
    [about] = wheel.glob("*.dist-info")
    metadata = (about / "METADATA").read_text(encoding="utf-8")
    asked = [
        Requirement(line.removeprefix("Requires-Dist: "))
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist: ")
    ]
    assert len(asked) > 10
    for each in asked:
        if each.marker and each.marker.evaluate({"extra": "gpu"}):
            continue  # CUDA's wheels are not pinned: they belong to a driver
        assert each.specifier.contains(pinned[canonicalize_name(each.name)]), str(each)
