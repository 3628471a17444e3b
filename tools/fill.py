"""Fills a document's tables with the output of the commands that make them.

    python tools/fill.py README.md

A block begins with `<!-- begin: COMMAND -->` and ends with `<!-- end -->`. The command runs in the
current folder; what it prints replaces the block's text. Where one fails, the file stays as it is.
"""

import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"(<!-- begin: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str) -> str:
    def output(block: re.Match[str]) -> str:
        done = subprocess.run(block[2], shell=True, capture_output=True, text=True, check=True)
        return f"{block[1]}\n{done.stdout.strip()}\n\n{block[3]}"

    return BLOCK.sub(output, text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(fill(path.read_text()))
