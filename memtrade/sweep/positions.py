"""On which line of a TOML file a key stands, for messages. tomllib reads values but no places.

A TOML statement ends with its line, unless a bracket or a string is still open. So the lines of a
valid file are taken together until tomllib accepts them as a document of their own: that is one
statement, whatever brackets, quotes and comments it contains.
"""

import re
import tomllib
from collections.abc import Iterator
from typing import Any, NamedTuple

# A string, which may contain "#", or a comment up to the line's end.
_STRING_OR_COMMENT = re.compile(r"""("(?:\\.|[^"\\])*"|'[^']*')|#.*""")


class Statement(NamedTuple):
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
        own: list[Statement] = []
        for about in ((block, key), (0, key), (block, "")):
            own = own or [each for each in self._statements if (each.block, each.key) == about]
        pattern = re.compile(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])")
        for statement in own if word else ():
            for offset, text in enumerate(statement.text.split("\n")):
                if pattern.search(_STRING_OR_COMMENT.sub(lambda found: found[1] or "", text)):
                    return statement.line + offset
        return own[0].line if own else 1


def _statements(text: str, name: str) -> Iterator[Statement]:
    block, table = 0, ""
    held: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        held.append(line)
        statement = "\n".join(held)
        try:
            parsed: dict[str, Any] = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # it goes on
        first, held = number - len(held) + 1, []
        if not parsed:
            continue  # a comment or an empty line
        [(key, value)] = parsed.items()
        if statement.lstrip().startswith("["):
            inside = value[0] if isinstance(value, list) else value
            inner = next(iter(inside), "")  # [grid.model] or [[grid.model]]
            if key != name:
                block, table = 0, key
            elif inner:
                table = inner
            else:
                block, table = block + 1, ""
            key = ""
        yield Statement(first, statement, block, table or key)
