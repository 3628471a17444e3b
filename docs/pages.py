"""A hook of mkdocs: what the documentation takes from the program itself.

{{ commands }}    the help of every command
{{ $ memtrade ... }}    what a command prints to stdout (markdown)
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from typing import Any

_COMMAND = re.compile(r"^\{\{ \$ memtrade (.+?) \}\}$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    if "{{ commands }}" in markdown:
        markdown = markdown.replace("{{ commands }}", _reference())
    return _COMMAND.sub(lambda match: _run(*shlex.split(match[1])), markdown)


def _reference() -> str:
    from memtrade.cli import COMMANDS

    parts = []
    for group, commands in COMMANDS.items():
        parts.append(f"## {group}\n")
        for path in commands:
            name = path.rpartition(":")[2]
            parts.append(f"### memtrade {name}\n\n```text\n{_run(name, '--help').strip()}\n```\n")
    return "\n".join(parts)


@cache
def _run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "memtrade", *words], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"memtrade {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
