"""For mkdocstrings: docstrings as Markdown reads them.

"a, b: both of them" in a list becomes an entry for a and one for b, each with its type; drawings, which are indented and so
code already, lose their fences.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SEVERAL = re.compile(r"^    (\w+(?:, \w+)+):(.*(?:\n {5,}.*)*)", re.MULTILINE)


def split_names(docstring: str) -> str:
    """The docstring with its entries of several names taken apart, other lists than Args and Attributes left alone."""
    parts = re.split(r"^(?=\w+:$)", docstring, flags=re.MULTILINE)
    return "".join(
        _SEVERAL.sub(lambda m: "\n".join(f"    {name}:{m[2]}" for name in m[1].split(", ")), part)
        if part.startswith(("Args:", "Attributes:"))
        else part
        for part in parts
    )


class SplitNames(griffe.Extension):
    """Changes docstrings as they are collected."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^ {4,}```$", "", split_names(obj.docstring.value), flags=re.MULTILINE)
