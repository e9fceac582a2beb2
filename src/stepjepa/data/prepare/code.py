"""Whether a text holds code, whose white space must stay as it is.

A text that is taken for code without being any loses nothing: its white space stays, too.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings

from stepjepa.data.blocks import blocks_of

# A line that only code has: it opens a function, a class or a block, brings in a module, or queries a table.
_OPENER = re.compile(
    r"""^[ \t]*(?:
      (?:async[ ])?def[ ]\w+.*|@\w[\w.]*(?:\(.*)?
    | (?:class|interface|struct|enum|namespace|impl|trait)[ ]\w+(?:[^.\n]*|\(.*\).*)[:{(]
    | (?:if|elif|else|for|while|with|try|except|finally|match|case|switch|do)\b.*[:{]
    | (?:export[ ]|default[ ]|async[ ]|pub[ ])*(?:function|fn|func)\b.*
    | (?:public|private|protected|static|const|let|var|final|void|int|char|double|float|bool|auto|unsigned)\b.*[;{=(]
    | import[ ][\w.*]+(?:[ ]as[ ]\w+)?(?:,[ ]*\w+)*;?|from[ ][\w.]+[ ]import\b.*
    | \#[ ]*(?:include[ ]*[<"]|define[ ]|ifn?def[ ]|endif\b).*|\#!/.*
    | (?:SELECT|INSERT[ ]INTO|CREATE[ ]TABLE|UPDATE|DELETE[ ]FROM)[ ].*
    )[ \t]*$""",
    re.VERBOSE | re.MULTILINE,
)
# How lines of code end, or begin.
_LINE = re.compile(r"[ \t]*(?:[})\]].*|</?\w.*>|//.*|.*[;{}\\])[ \t]*")
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)  # statements that an equation may be, too


def holds_code(text: str) -> bool:
    """Whether there is code outside of fences: Python, a line that only code has, or half of the lines with its signs."""
    if _is_python(text):
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


def _is_python(text: str) -> bool:
    """Whether a text is Python that other white space would change."""
    if "\n" not in text:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a string
            statements = ast.parse(textwrap.dedent(text)).body  # the body of a function is indented as a block
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    indented = re.search(r"\n[ \t]+\S", text) is not None
    return indented or not all(isinstance(one, _SIMPLE) for one in statements)
