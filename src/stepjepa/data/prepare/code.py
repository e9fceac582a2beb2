"""Whether a text holds code, whose white space must stay as it is.

A text that is taken for code without being any loses nothing: its white space stays, too.
"""

from __future__ import annotations

import re

from stepjepa.data.blocks import blocks_of, is_python

# A line that only code has: it opens a function, a class or a block, brings in a module, queries a table, is typed at
# Python's prompt, or names a rule of make.
_OPENER = re.compile(
    r"""^[ \t]*(?:
      (?:async[ ])?def[ ]\w+.*|@\w[\w.]*(?:\(.*)?
    | (?:class|interface|struct|enum|namespace|impl|trait)[ ]\w+(?:[^.\n]*|\(.*\).*)[:{(]
    | (?:if|elif|else|for|while|with|try|except|finally|match|case|switch|do)\b.*[:{]
    | (?:export[ ]|default[ ]|async[ ]|pub[ ])*(?:function|fn|func)\b.*
    | (?:public|private|protected|static|const|let|var|final|void|int|char|double|float|bool|auto|unsigned)\b.*[;{=(]
    | (?:for|while|until|if)[ ].*;[ ]*(?:do|then)|>>>[ ].*
    | [\w.$()/%-]+:[^\n]*\n+\t\S.*
    | import[ ][\w.*]+(?:[ ]as[ ]\w+)?(?:,[ ]*\w+)*;?|from[ ][\w.]+[ ]import\b.*
    | \#[ ]*(?:include[ ]*[<"]|define[ ]|ifn?def[ ]|endif\b).*|\#!/.*
    | (?:SELECT|INSERT[ ]INTO|CREATE[ ]TABLE|UPDATE|DELETE[ ]FROM)[ ].*
    )[ \t]*$""",
    re.VERBOSE | re.MULTILINE,
)
# How lines of code end, or begin.
_LINE = re.compile(r"[ \t]*(?:[})\]].*|</?\w.*>|//.*|.*[;{}\\])[ \t]*")


def holds_code(text: str) -> bool:
    """Whether there is code outside of fences: Python, a line that only code has, or half of the lines with its signs."""
    if is_python(text):
        return True
    outside: list[str] = []
    reached = 0
    for block in sorted(blocks_of(text), key=lambda block: block.start):
        outside.append(text[reached : block.start])
        reached = max(reached, block.end)
    bare = "".join([*outside, text[reached:]])
    if _OPENER.search(bare):
        return True
    lines = [line for line in bare.split("\n") if line.strip()]
    return len(lines) > 1 and 2 * sum(_LINE.fullmatch(line) is not None for line in lines) > len(lines)
