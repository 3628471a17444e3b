"""What the modules of this package share that run by themselves and write pages below `results/`:

python -m memtrade.papers.device_check results/predicted
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2

from memtrade.errors import MemtradeError
from memtrade.graph import StepGraph
from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.trial import extract_graph
from memtrade.models import Model
from memtrade.results.sheets import Sheet, templates

TIMEOUT_SECONDS = 900.0


def write_pages(write: Callable[[Path], Any], about: str | None) -> NoReturn:
    """Has the pages written into the folder that is named on the command line; `about` is what to
    say where none is."""
    if len(sys.argv) != 2:
        sys.exit(about)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write(folder)
    except MemtradeError as error:
        print(f"memtrade: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


def save_page(path: Path, /, **parts: object) -> None:
    """Writes a page as `page_text` makes it."""
    path.write_text(page_text(path.name, **parts), encoding="utf-8")


def page_text(template: str, /, **parts: object) -> str:
    """The page that the template lays out; tables stand in it as Markdown."""
    return _templates().get_template(template).render(parts)


@cache
def _templates() -> jinja2.Environment:
    return templates().overlay(
        loader=jinja2.PackageLoader("memtrade.papers"),
        finalize=lambda part: part.to_markdown() if isinstance(part, Sheet) else part,
        keep_trailing_newline=True,
    )


def save_csv(path: Path, frame: Any, float_format: str | None = None) -> None:
    """Of a pandas frame, of which Python's types know little."""
    frame.to_csv(path, index=False, float_format=float_format, lineterminator="\n")


def run_in_arena(
    *words: str, limit_bytes: int, timeout_seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a module, the first of `words`, in a child whose arena has that limit; what it says last
    on standard output is its answer."""
    return subprocess.run(
        [sys.executable, "-m", *words],
        env=child_environment(TrialSpec(memory_limit_bytes=limit_bytes)),
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
    )


def trace_model(model: Model, optimizer: str) -> StepGraph:
    """The model's training step, traced in a child, which allocates nothing."""
    spec = TrialSpec(
        model=model.family,
        model_options=asdict(model),  # pyright: ignore[reportArgumentType]  # of a dataclass
        optimizer=optimizer,
        task="extract",
        memory_limit_bytes=1 << 34,
    )
    return extract_graph(spec, timeout_seconds=TIMEOUT_SECONDS)
