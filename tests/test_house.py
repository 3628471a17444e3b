"""The rooms in ARCHITECTURE.md's picture are the contract's, and those there are."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

from tests.conftest import LONGEST

ROOT = Path(__file__).resolve().parents[1]
HOUSE = ROOT / "memtrade"
NAME = "The rooms, from the roof to the ground"


def contract() -> list[set[str]]:
    """The rows of the layers contract, as paths below memtrade/."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [layers] = [
        each["layers"]
        for each in settings["tool"]["importlinter"]["contracts"]
        if each["type"] == "layers"
    ]
    return [
        {name.removeprefix("memtrade.").replace(".", "/") for name in row.split(" : ")}
        for row in layers
    ]


def picture() -> list[set[str]]:
    """The rows of the picture: names stand left of the line, what they are right of it."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    [drawn] = re.findall(r"## The house\n.*?```\n(.*?)```", text, re.DOTALL)
    return [set(line.partition("│")[0].split()) for line in drawn.splitlines() if "│" in line]


def rooms() -> set[str]:
    """Each module and package of memtrade; of `pipeline`, whose parts are on several floors,
    those."""
    found = {
        path.relative_to(HOUSE).with_suffix("").as_posix()
        for folder in (HOUSE, HOUSE / "pipeline")
        for path in folder.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    return {name for name in found if not name.endswith("__init__")} - {"pipeline"}


def test_the_picture_is_the_contract() -> None:
    assert picture() == contract()


def test_every_room_stands_on_one_floor() -> None:
    placed = [room for row in contract() for room in row]
    assert len(placed) == len(set(placed))
    assert set(placed) == rooms()


def terms(glossary: str) -> list[str]:
    """The words that the glossary's first column lists, without what others call them."""
    cells = [line.split("|")[1] for line in glossary.splitlines() if line.startswith("| ")][1:]
    listed = [re.sub(r"\(.*?\)", "", cell).split("/") for cell in cells]
    return [word.strip() for words in listed for word in words]


def unused(listed: list[str]) -> list[str]:
    text = " ".join(path.read_text(encoding="utf-8").lower() for path in HOUSE.rglob("*.py"))
    text = re.sub(r"[\s_#-]+", " ", text)
    return [word for word in listed if not re.search(rf"\b{word.replace('-', ' ')}", text)]


def test_every_word_of_the_glossary_is_used() -> None:
    listed = terms((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    assert len(listed) == len(set(listed)) > 30
    assert unused(listed) == []
    assert unused([*listed, "makespan"]) == ["makespan"]


# What CONTRIBUTING.md asks of each strategy's file is called the same in all of them.
ALIKE = {"Options"}


def shared_names(files: dict[str, str]) -> list[str]:
    """Public classes of the same name, by the files' text."""
    found = Counter(
        name
        for text in files.values()
        for name in re.findall(r"^class ([A-Z]\w*)", text, re.MULTILINE)
    )
    return sorted(name for name, count in found.items() if count > 1 and name not in ALIKE)


def test_one_word_names_one_class() -> None:
    files = {str(path): path.read_text(encoding="utf-8") for path in HOUSE.rglob("*.py")}
    assert shared_names(files) == []
    assert shared_names(files | {"planted.py": "class Plan:\n    pass\n"}) == ["Plan"]


# Lines of a function behind its docstring.
LONGEST_BODY = 50


def long_bodies(text: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if body and (node.end_lineno or 0) - body[0].lineno >= LONGEST_BODY:
                found.append(node.name)
    return found


def test_a_function_tells_its_story_in_parts() -> None:
    files = [path for path in HOUSE.rglob("*.py") if long_bodies(path.read_text(encoding="utf-8"))]
    assert files == []
    lines = "\n    x = 1" * LONGEST_BODY
    assert long_bodies(f"def short():\n    'told'{lines}\ndef long():\n    x = 0{lines}") == [
        "long"
    ]


PLANTED = {
    "strategies/lms.py": "memtrade.papers.thesis",
    "results/tables.py": "memtrade.sweep.grid",
    "tf/swap.py": "memtrade.measure.trial",
    "plan.py": "memtrade.schedule",
}


def test_imports_that_lead_up_are_found(tmp_path: Path) -> None:
    shutil.copytree(HOUSE, tmp_path / "memtrade", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for room, above in PLANTED.items():
        planted = tmp_path / "memtrade" / room
        planted.write_text(planted.read_text(encoding="utf-8") + f"\nimport {above}\n")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 1
    assert f"{NAME} BROKEN" in found.stdout
    for room, above in PLANTED.items():
        below = "memtrade." + room.removesuffix(".py").replace("/", ".")
        assert f"{below} -> {above} (l." in found.stdout


def test_the_files_that_begin_first_are_there() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).exists()] == []
