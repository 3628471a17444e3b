"""On which line of a TOML file a key stands, for messages. tomllib reads values but no places.

A TOML statement ends with its line, unless a bracket or a string is still open. So the lines of a
valid file are taken together until tomllib accepts them as a document of their own: that is one
statement, whatever brackets, quotes and comments it contains.
"""

import re
import tomllib
from dataclasses import dataclass
from typing import Any

# A string, which may contain "#", or a comment up to the line's end.
_STRING_OR_COMMENT = re.compile(r"""("(?:\\.|[^"\\])*"|'[^']*')|#.*""")


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement of the file that says something about a block.

    Attributes:
        line: its first line, from 1.
        block: which [[grid]] it belongs to, from 1; 0 is what stands above them.
        key: the block's key that it is about; "" is the block's own header.
    """

    line: int
    text: str
    block: int
    key: str


class Positions:
    """The statements of a valid TOML file whose blocks are `[[name]]`."""

    def __init__(self, text: str, *, name: str):
        self._statements = list(_statements(text, name))

    def line(self, block: int, key: str, word: str = "") -> int:
        """The line of `key`, and within its value the line where `word` stands, if it does.

        A key that the block does not have itself comes from above the blocks.
        """
        own = self._about(block, key) or self._about(0, key) or self._about(block, "")
        pattern = re.compile(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])")
        for statement in own if word else ():
            for offset, text in enumerate(statement.text.split("\n")):
                if pattern.search(_STRING_OR_COMMENT.sub(lambda found: found[1] or "", text)):
                    return statement.line + offset
        return own[0].line if own else 1

    def _about(self, block: int, key: str) -> list[Statement]:
        return [each for each in self._statements if (each.block, each.key) == (block, key)]


def _statements(text: str, name: str) -> list[Statement]:
    found: list[Statement] = []
    block, table = 0, ""
    held: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        held.append(line)
        statement = "\n".join(held)
        try:
            parsed = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # it goes on
        first, held = number - len(held) + 1, []
        if not parsed:
            continue  # a comment or an empty line
        key = next(iter(parsed))
        if statement.lstrip().startswith("["):
            inner = _inner_key(parsed[key])
            if key != name:
                block, table = 0, key
            elif inner:
                table = inner  # [grid.model] or [[grid.model]]
            else:
                block, table = block + 1, ""
            key = ""
        found.append(Statement(line=first, text=statement, block=block, key=table or key))
    return found


def _inner_key(header: Any) -> str:
    """The second key of a table's header, "" if it has only one."""
    inside = header[0] if isinstance(header, list) else header
    return next(iter(inside), "")
