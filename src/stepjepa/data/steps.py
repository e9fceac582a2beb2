"""Step splitters: from the text of an answer to the character spans of its reasoning steps.

A splitter is a small object with one method, `spans(text) -> [(start, end), ...]`. The spans cover the text in order and
without overlap, the separator belongs to the step that it ends, and a text without a boundary is one step. Thinking
blocks, code fences and display maths are never cut (DESIGN: steps are found in the answer's text, never in token ids,
because tokenizers merge ``.\\n\\n`` into one token and chat headers end in ``\\n\\n`` themselves).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from stepjepa.errors import ConfigError

CharSpan = tuple[int, int]

_UNCUT = re.compile(
    r"<think>.*?(?:</think>|\Z)"
    r"|^[ \t]*(?P<fence>`{3,}|~{3,}).*?(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)"
    r"|\$\$.*?\$\$"
    r"|\\\[.*?\\\]",
    re.DOTALL | re.MULTILINE,
)

# A line that opens a numbered step: "3. text", "3) text", "Step 3: text", "**Step 3**", "### Step 3". Nested items are
# indented, so only markers at the start of a line count.
_NUMBERED = re.compile(
    r"^(?:#{1,6}[ \t]+)?(?:\*\*|__)?(?:step[ \t]+\d+\b|\d{1,3}[.)](?=[ \t*]))",
    re.IGNORECASE | re.MULTILINE,
)


class StepSplitter(Protocol):
    """Anything that cuts a text into steps."""

    def spans(self, text: str) -> list[CharSpan]:
        """Character spans (start, end) that cover `text` in order, without overlap; [] for a blank text."""
        ...


def _uncut_spans(text: str) -> list[CharSpan]:
    if not any(mark in text for mark in ("<think>", "```", "~~~", "$$", "\\[")):
        return []
    return [match.span() for match in _UNCUT.finditer(text)]


def spans_from_cuts(text: str, cuts: Iterable[int]) -> list[CharSpan]:
    """Spans between the given cut positions.

    Cuts inside a thinking block, a code fence or display maths are dropped. A piece of white space alone joins the step
    before it (the first one: the step behind it), so that every step has something to say.
    """
    uncut = _uncut_spans(text)
    kept = sorted({cut for cut in cuts if 0 < cut < len(text) and not any(a < cut < b for a, b in uncut)})
    edges = [0, *kept, len(text)]
    spans: list[CharSpan] = []
    start = 0
    for end in edges[1:]:
        if text[start:end].strip():
            spans.append((start, end))
            start = end
        elif spans:
            spans[-1] = (spans[-1][0], end)
            start = end
    return spans


@dataclass(frozen=True)
class SeparatorSplitter:
    r"""Steps end with a separator string, by default a blank line (``\n\n``).

    Further separators and line breaks that follow at once belong to the same step. Where the separator consists of line
    breaks, Windows line ends and blank lines that hold spaces count too.
    """

    separator: str = "\n\n"

    def __post_init__(self) -> None:
        if not self.separator:
            raise ConfigError("step_separator is empty; give the string that stands between two steps")

    def spans(self, text: str) -> list[CharSpan]:
        """See `StepSplitter.spans`."""
        breaks = self.separator.count("\n")
        if breaks and not self.separator.strip():
            pattern = r"(?:[ \t]*\r?\n){%d,}" % breaks
        else:
            pattern = (
                rf"(?:{re.escape(self.separator)})+\s*" if self.separator.strip() else re.escape(self.separator) + "+"
            )
        return spans_from_cuts(text, (match.end() for match in re.finditer(pattern, text)))


@dataclass(frozen=True)
class LineSplitter:
    """Every line that is not blank is a step, its line break included (GSM8K's original answers)."""

    def spans(self, text: str) -> list[CharSpan]:
        """See `StepSplitter.spans`."""
        return spans_from_cuts(text, (match.end() for match in re.finditer(r"(?:\r\n|\n|\r)+", text)))


@dataclass(frozen=True)
class NumberedSplitter:
    """Steps open with ``Step 3:``, ``3.``, ``3)``, ``**Step 3**`` or ``### Step 3`` at the start of a line.

    What stands before the first marker belongs to the first step; indented (nested) items belong to their step. A text
    with fewer than two markers is one step.
    """

    def spans(self, text: str) -> list[CharSpan]:
        """See `StepSplitter.spans`."""
        starts = [match.start() for match in _NUMBERED.finditer(text)]
        return spans_from_cuts(text, starts[1:])


SPLITTERS = ("separator", "lines", "numbered")


def make_splitter(name: str, separator: str = "\n\n") -> StepSplitter:
    r"""The splitter called `name`: one of `SPLITTERS`.

    `separator` serves ``separator`` alone; the two-character escapes ``\n``, ``\r`` and ``\t`` in it (as a shell passes
    them) mean the control characters.

    Raises:
        ConfigError: unknown name, or an empty separator.
    """
    if name == "separator":
        for escape, character in (("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t")):
            separator = separator.replace(escape, character)
        return SeparatorSplitter(separator)
    if name == "lines":
        return LineSplitter()
    if name == "numbered":
        return NumberedSplitter()
    raise ConfigError(f"step_splitter is {name!r}; known splitters: {', '.join(SPLITTERS)}")
