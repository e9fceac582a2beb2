"""Step splitters: from the text of an answer to the character spans of its reasoning steps.

A splitter is a small object with one method, `spans(text) -> [(start, end), ...]`. The spans cover the text in order and
without overlap, the separator belongs to the step that it ends, and a text without a boundary is one step. Thinking
blocks, code fences, display maths and tables are never cut (DESIGN: steps are found in the answer's text, never in token
ids, because tokenizers merge ``.\\n\\n`` into one token and chat headers end in ``\\n\\n`` themselves).

This module names them all; each kind has a file of its own, `splitters_plain` to `splitters_auto`. What the steps of a row
are, is answered by `data.steps`.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepjepa.data.splitters_auto import AutoSplitter
from stepjepa.data.splitters_base import StepSplitter
from stepjepa.data.splitters_marked import ConnectiveSplitter, HeadingSplitter, NumberedSplitter
from stepjepa.data.splitters_plain import LineSplitter, SeparatorSplitter
from stepjepa.data.splitters_prose import RegexSplitter, SentenceSplitter
from stepjepa.errors import ConfigError

SPLITTERS = ("separator", "numbered", "lines")  # those that `choose_splitter` chooses from; of equal ones the first
STYLES = (*SPLITTERS, "connectives", "headings", "sentence", "regex", "auto")  # all that `make_splitter` knows

_WITHOUT_OPTIONS: tuple[type[StepSplitter], ...] = (
    LineSplitter,
    NumberedSplitter,
    ConnectiveSplitter,
    HeadingSplitter,
    SentenceSplitter,
)


def make_splitter(name: str, separator: str = "\n\n") -> StepSplitter:
    r"""The splitter called `name`: one of `STYLES`.

    `separator` serves ``separator`` and ``auto``; the two-character escapes ``\n``, ``\r`` and ``\t`` in it (as a shell
    passes them) mean the control characters. For ``regex`` it is the pattern, as it is, and needed.

    Raises:
        ConfigError: unknown name, an empty separator, or no pattern or a broken one.
    """
    if name == "regex":
        return RegexSplitter("" if separator in ("\n\n", "\\n\\n") else separator)
    if name in ("separator", "auto"):
        return (SeparatorSplitter if name == "separator" else AutoSplitter)(_unescaped(separator))
    for kind in _WITHOUT_OPTIONS:
        if kind.name == name:
            return kind()
    raise ConfigError(f"step_splitter is {name!r}; known splitters: {', '.join(STYLES)}")


def _unescaped(separator: str) -> str:
    for escape, character in (("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t")):
        separator = separator.replace(escape, character)
    return separator


def choose_splitter(answers: Sequence[tuple[str, int | None]], separator: str = "\n\n") -> str:
    """The splitter that a data set is read with: the one of `SPLITTERS` that serves most answers, ``separator`` if no other
    serves more; ``auto``, which decides for every answer by itself, where none serves two thirds of those with steps.

    A splitter serves an answer of a known number of steps if it finds that number, and ``separator`` is taken at once if no
    other finds it more often. Of the other answers it serves those that `AutoSplitter.serving` names.

    Args:
        answers: each with the number of its steps, None where that is not known.
    """
    auto = AutoSplitter(_unescaped(separator))
    splitters = {name: make_splitter(name, separator) for name in SPLITTERS}
    known = [(text, total) for text, total in answers if total is not None]
    counts = {name: sum(len(one.spans(text)) == total for text, total in known) for name, one in splitters.items()}
    most = max(counts.values())
    if 0 < most == counts["separator"]:
        return "separator"
    served = sum(len(auto.spans(text)) == total for text, total in known)
    # Where no splitter finds any of the numbers, they are none of steps.
    for text, total in answers:
        if total is None or not most:
            serving = auto.serving(text)
            served += bool(serving)
            for name in serving & counts.keys():
                counts[name] += 1
    best = max(SPLITTERS, key=lambda name: counts[name])
    return "auto" if 3 * counts[best] < 2 * served else best
