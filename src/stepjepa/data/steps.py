"""Step splitters: from the text of an answer to the character spans of its reasoning steps.

A splitter is a small object with one method, `spans(text) -> [(start, end), ...]`. The spans cover the text in order and
without overlap, the separator belongs to the step that it ends, and a text without a boundary is one step. Thinking
blocks, code fences and display maths are never cut (DESIGN: steps are found in the answer's text, never in token ids,
because tokenizers merge ``.\\n\\n`` into one token and chat headers end in ``\\n\\n`` themselves).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from stepjepa.errors import ConfigError

CharSpan = tuple[int, int]

# A closing fence may be followed by a carriage return; an opening one of backticks has no further backtick on its line.
_UNCUT = re.compile(
    r"<think>.*?(?:</think>|\Z)"
    r"|^[ \t]*(?P<fence>`{3,}(?=[^`\n]*$)|~{3,}).*?(?:^[ \t]*(?P=fence)[`~]*[ \t\r]*$|\Z)"
    r"|\$\$.*?\$\$"
    r"|\\\[.*?\\\]"
    r"|\\begin\{(?P<env>[A-Za-z]+\*?)\}.*?\\end\{(?P=env)\}",
    re.DOTALL | re.MULTILINE,
)
_UNCUT_SIGNS = ("<think>", "</think>", "```", "~~~", "$$", "\\[", "\\begin{")

# A line that opens a numbered step. `Step 3` as bare words needs a sign behind it, or "Step 3 gives 5" would be one.
_NUMBERED = re.compile(
    r"^(?P<indent>[ \t]*)(?P<heading>#{1,6}[ \t]+)?(?P<bold>\*{1,3}|__)?"
    r"(?:(?P<step>step)[ \t]+\d+\b(?!\.\d)(?(heading)|(?(bold)|(?=[ \t]*(?:[:.)*\u2013\u2014-]|\r?$))))"
    r"|\d{1,3}[.)](?=[ \t*_]))",
    re.IGNORECASE | re.MULTILINE,
)


class StepSplitter(Protocol):
    """Anything that cuts a text into steps."""

    def spans(self, text: str) -> list[CharSpan]:
        """Character spans (start, end) that cover `text` in order, without overlap; [] for a blank text."""
        ...


class _Uncut:
    """The stretches of a text that are never cut: `position in _Uncut(text)` is whether a cut there would be inside one."""

    def __init__(self, text: str):
        spans: list[CharSpan] = []
        if any(sign in text for sign in _UNCUT_SIGNS):
            thought = text.find("</think>")
            if thought >= 0 and "<think>" not in text[:thought]:  # templates may open the block in the prompt
                spans.append((0, thought + len("</think>")))
            # A fence counts from its first sign: the indentation before it may belong to a separator.
            spans += ((max(m.start(), m.start("fence")), m.end()) for m in _UNCUT.finditer(text))
        self._starts = [start for start, _ in spans]
        self._reach = list(accumulate((end for _, end in spans), max))

    def __contains__(self, position: int) -> bool:
        before = bisect_left(self._starts, position)
        return before > 0 and position < self._reach[before - 1]


def spans_from_cuts(text: str, cuts: Iterable[int]) -> list[CharSpan]:
    """Spans between the given cut positions.

    Cuts inside a thinking block, a code fence or display maths are dropped. A piece of white space alone joins the step
    before it (the first one: the step behind it), so that every step has something to say.
    """
    uncut = _Uncut(text)
    kept = sorted({cut for cut in cuts if 0 < cut < len(text) and cut not in uncut})
    spans: list[CharSpan] = []
    start = piece = 0
    for end in [*kept, len(text)]:
        if text[piece:end].strip():
            spans.append((start, end))
            start = end
        elif spans:
            spans[-1] = (spans[-1][0], end)
            start = end
        piece = end
    return spans


@dataclass(frozen=True)
class SeparatorSplitter:
    r"""Steps end with a separator string, by default a blank line (``\n\n``).

    Further separators and line breaks that follow at once belong to the same step, and separators in front of all else
    to the first. Where the separator consists of line breaks, Windows line ends and blank lines that hold spaces count
    too.
    """

    separator: str = "\n\n"

    def __post_init__(self) -> None:
        if not self.separator:
            raise ConfigError("step_separator is empty; give the string that stands between two steps")

    def spans(self, text: str) -> list[CharSpan]:
        """See `StepSplitter.spans`."""
        breaks = self.separator.count("\n")
        if breaks and not self.separator.strip():
            # White space in front of the first line break belongs to the step anyway.
            pattern = rf"\n(?:[^\S\n]*\n){{{breaks - 1},}}"
        else:
            separator = re.escape(self.separator)
            pattern = rf"{separator}(?:\s*{separator})*\s*"
        matches = list(re.finditer(pattern, text))
        if matches and not text[: matches[0].start()].strip():
            del matches[0]
        return spans_from_cuts(text, (match.end() for match in matches))


@dataclass(frozen=True)
class LineSplitter:
    """Every line that is not blank is a step, its line break included (GSM8K's original answers)."""

    def spans(self, text: str) -> list[CharSpan]:
        """See `StepSplitter.spans`."""
        return spans_from_cuts(text, (match.end() for match in re.finditer(r"(?:\r\n|\n|\r)+", text)))


@dataclass(frozen=True)
class NumberedSplitter:
    """Steps open with ``Step 3:``, ``3.``, ``3)``, ``**Step 3**`` or ``### Step 3`` at the start of a line.

    What stands before the first marker belongs to the first step. Nested items belong to their step: those that are
    indented further than the least indented marker, and plain numbers under ``Step 3:``, headings or bold numbers.
    A text with fewer than two markers is one step.
    """

    def spans(self, text: str) -> list[CharSpan]:
        """See `StepSplitter.spans`."""
        uncut = _Uncut(text)
        markers = [marker for marker in _NUMBERED.finditer(text) if marker.start() not in uncut]
        least = min((_width(marker) for marker in markers), default=0)
        markers = [marker for marker in markers if _width(marker) == least]
        for kind in ("step", "heading", "bold"):
            of_kind = [marker for marker in markers if marker[kind]]
            if len(of_kind) >= 2 or (of_kind and of_kind[0] is markers[0]):
                markers = of_kind
                break
        return spans_from_cuts(text, (marker.start() for marker in markers[1:]))


def _width(marker: re.Match[str]) -> int:
    return len(marker["indent"].expandtabs(4))


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


def choose_splitter(answers: Sequence[str], separator: str = "\n\n") -> tuple[str, int]:
    """The splitter of `SPLITTERS` for a data set: the first that finds two or more steps in most of the answers, else the
    one that does so in most of them.

    Returns:
        Its name, and in how many answers it finds two or more steps.
    """
    counts = {}
    for name in ("separator", "numbered", "lines"):
        splitter = make_splitter(name, separator)
        counts[name] = sum(len(splitter.spans(answer)) > 1 for answer in answers)
        if 2 * counts[name] > len(answers):
            return name, counts[name]
    best = max(counts, key=lambda name: counts[name])
    return best, counts[best]
