"""What the documentation of the library shows can be run as it stands."""

import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import memtrade
import memtrade.keras
from docs.fill import BLOCK as FILLED
from docs.follow import follow
from memtrade.guard.peak import peak_of
from memtrade.units import megabytes
from tests.graphs import chain, target

PAGE = Path(__file__).resolve().parents[1] / "docs" / "own-model.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", ["memtrade.answers", "memtrade.api", "memtrade.keras"])
def test_the_examples_of_the_library(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted
    assert not results.failed


def test_your_own_model(capsys):
    """The blocks of the page, one after the other, as a reader would type them."""
    names: dict[str, Any] = {}
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert capsys.readouterr().out == "['largest', 'loss']\n"
    step, batch = names["make_step"](8)
    assert isinstance(step(*batch)["loss"], tf.Tensor)


def test_the_readme(capsys):
    readme = (PAGE.parents[1] / "README.md").read_text()
    (block,) = BLOCK.findall(readme)
    exec(compile(block, "README.md", "exec"), {})
    assert float(capsys.readouterr().out.splitlines()[-1]) > 0


def test_the_reference_names_what_the_library_has():
    """Each name where it is made, for a page shows it from there; and all that is offered."""
    page = (PAGE.parent / "reference.md").read_text()
    named = set()
    for module, members in re.findall(
        r"^::: (\S+)(?:\n.*\n +members: \[(.*)\])?", page, re.MULTILINE
    ):
        for name in filter(None, members.split(", ")):
            assert vars(importlib.import_module(module))[name].__module__ == module, name
            named.add(name)
    assert {*memtrade.__all__} - {"__version__", "keras"} <= named
    assert {*memtrade.keras.__all__} - {"TrainFunction"} <= named


def test_the_strategy_that_contributors_are_shown():
    """It is whole: the file of a strategy that makes a plan."""
    (block,) = BLOCK.findall((PAGE.parents[1] / "CONTRIBUTING.md").read_text())
    names: dict[str, Any] = {}
    exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    strategy, graph = names["STRATEGY"], chain(4)
    plan = strategy.plan(graph, strategy.options(count=2), target("arena"))
    assert len(plan.tensors("swap")) == 2
    assert [each.kind for each in plan.actions].count("swap_in") == 2


def test_the_step_that_is_followed():
    """The page shows what the code does now."""
    page = (PAGE.parent / "one-step.md").read_text(encoding="utf-8")
    shown = {match[2].split()[-1]: match[0] for match in FILLED.finditer(page)}
    told = follow()
    assert shown.keys() == told.keys()
    for stage, text in told.items():
        assert text in shown[stage], f"docs/one-step.md has an old {stage!r}: make readme"


def test_the_records_and_tables_that_pages_name_are_there():
    root = PAGE.parents[1]
    pages = [root / "README.md", *PAGE.parent.glob("*.md")]
    named = {
        found[0]
        for page in pages
        for found in re.finditer(r"\bresults/[\w./-]+\.(?:json|md|csv)\b", page.read_text())
    }
    assert len(named) > 5
    assert [each for each in sorted(named) if not (root / each).exists()] == []


def test_the_marker_that_turns_red_says_what_the_page_shows():
    page = PAGE.read_text()
    [block] = re.findall(r"^```py\n(?:(?!^```$).*\n)*?@pytest.mark.peak(?:.*\n)*?```$", page, re.M)
    names: dict[str, Any] = {"tf": tf, "pytest": pytest}
    exec(compile(block[6:-3].rpartition("```py\n")[2], str(PAGE), "exec"), names)
    batch = (tf.TensorSpec([1024, 64]),)
    red, lean = (peak_of(names["train_step"], batch, each) for each in ("original", "checkpoints"))
    peak = f"the peak of train_step is {red.bound} {megabytes(red.size_bytes)} MB (predicted)"
    assert f"{peak}, above 1.0 MB and 1%: {red.held}" in page
    assert f"the same step takes {megabytes(lean.size_bytes)} MB" in page
    assert not lean.bound
