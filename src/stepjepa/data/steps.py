"""Step splitters: from the text of an answer to the character spans of its reasoning steps.

A splitter is a small object with one method, `spans(text) -> [(start, end), ...]`. The spans cover the text in order and
without overlap, the separator belongs to the step that it ends, and a text without a boundary is one step. Thinking
blocks, code fences, display maths and tables are never cut (DESIGN: steps are found in the answer's text, never in token
ids, because tokenizers merge ``.\\n\\n`` into one token and chat headers end in ``\\n\\n`` themselves).

This module names them all; each kind has a file of its own, `splitters_plain` to `splitters_auto`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stepjepa.data.splitters_auto import AutoSplitter
from stepjepa.data.splitters_base import CharSpan, StepSplitter, spans_from_cuts
from stepjepa.data.splitters_marked import ConnectiveSplitter, HeadingSplitter, NumberedSplitter
from stepjepa.data.splitters_plain import LineSplitter, SeparatorSplitter
from stepjepa.data.splitters_prose import ListedSteps, RegexSplitter, SentenceSplitter, join_steps, spans_of_steps
from stepjepa.errors import ConfigError

__all__ = [
    "SPLITTERS",
    "STYLES",
    "AutoSplitter",
    "CharSpan",
    "ConnectiveSplitter",
    "HeadingSplitter",
    "LineSplitter",
    "ListedSteps",
    "NumberedSplitter",
    "RegexSplitter",
    "SentenceSplitter",
    "SeparatorSplitter",
    "StepSplitter",
    "choose_splitter",
    "join_steps",
    "make_splitter",
    "spans_from_cuts",
    "spans_of_steps",
]

SPLITTERS = ("separator", "lines", "numbered")  # those that `choose_splitter` chooses from
STYLES = (*SPLITTERS, "connectives", "headings", "sentence", "regex", "auto")  # all that `make_splitter` knows

_WITHOUT_OPTIONS: dict[str, type[StepSplitter]] = {
    "lines": LineSplitter,
    "numbered": NumberedSplitter,
    "connectives": ConnectiveSplitter,
    "headings": HeadingSplitter,
    "sentence": SentenceSplitter,
}


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
    if name in _WITHOUT_OPTIONS:
        return _WITHOUT_OPTIONS[name]()
    raise ConfigError(f"step_splitter is {name!r}; known splitters: {', '.join(STYLES)}")


def _unescaped(separator: str) -> str:
    for escape, character in (("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t")):
        separator = separator.replace(escape, character)
    return separator


def choose_splitter(answers: Sequence[str], separator: str = "\n\n") -> tuple[str, int]:
    """The splitter for a data set: the one of `SPLITTERS` that `AutoSplitter` takes for most of the answers, if it finds two
    or more steps in most of them; else the one that does so in most, the earlier where two do.

    It is ``auto``, which decides for every answer by itself, where less than two thirds of the answers with steps have one
    style, or where it finds steps in more answers.

    Returns:
        Its name, and in how many answers it finds two or more steps.
    """
    auto = AutoSplitter(_unescaped(separator))
    votes: Counter[str] = Counter()
    found = 0
    for style, spans in map(auto.decide, answers):
        votes[style if style in SPLITTERS else "separator"] += len(spans) > 1
        found += len(spans) > 1
    if answers and 2 * found > len(answers) and 3 * max(votes.values()) < 2 * found:
        return "auto", found
    counts = {}
    for name in sorted(("separator", "numbered", "lines"), key=lambda name: -votes[name]):
        splitter = make_splitter(name, separator)
        counts[name] = sum(len(splitter.spans(answer)) > 1 for answer in answers)
        if 2 * counts[name] > len(answers):
            return name, counts[name]
    best = max(counts, key=lambda name: counts[name])
    return ("auto", found) if found > counts[best] else (best, counts[best])
