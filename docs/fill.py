"""Fills a document's tables with the output of the commands that make them.

    python docs/fill.py README.md

A block begins with `<!-- begin: COMMAND -->` and ends with `<!-- end -->`. The command is
memtrade's or a Python script's, and runs in the current folder; what it prints replaces the block's
text. Where one fails, the file stays as it is.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"(<!-- begin: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)

PROGRAMS = {"memtrade": [sys.executable, "-m", "memtrade"], "python": [sys.executable]}


def fill(text: str) -> str:
    """The text with its blocks made anew.

    Raises:
        KeyError: a command is of another program than `PROGRAMS`.
        CalledProcessError: a command fails.
    """

    def output(block: re.Match[str]) -> str:
        program, *words = shlex.split(block[2])
        command = [*PROGRAMS[program], *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return f"{block[1]}\n{done.stdout.strip()}\n\n{block[3]}"

    return BLOCK.sub(output, text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
