"""Steps of texts without markers: at a separator, at line ends, at a pattern, and those that a data set holds already."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from stepjepa.data.steps.uncut import CharSpan, Uncut, spans_from_cuts
from stepjepa.errors import ConfigError, DataError

PATTERN_SECONDS = 2.0  # that a pattern may take for one answer
_LINE_END = re.compile(r"(?:\r\n|\n|\r)+")


def separated(text: str, separator: str) -> list[CharSpan]:
    r"""Steps end with a separator string, by default a blank line (``\n\n``).

    Further separators and line breaks that follow at once belong to the same step, and separators before all else to the
    first. Where the separator consists of line breaks, Windows line ends and blank lines that hold spaces count too.
    """
    breaks = separator.count("\n")
    if breaks and not separator.strip():
        # White space before the first line break belongs to the step anyway.
        pattern = rf"\n(?:[^\S\n]*\n){{{breaks - 1},}}"
    else:
        escaped = re.escape(separator)
        pattern = rf"{escaped}(?:\s*{escaped})*\s*"
    matches = list(re.finditer(pattern, text))
    if matches and not text[: matches[0].start()].strip():
        del matches[0]
    return spans_from_cuts(text, (match.end() for match in matches))


def lines(text: str) -> list[CharSpan]:
    """Every line that is not blank is a step, its line break included (GSM8K's original answers)."""
    return spans_from_cuts(text, (match.end() for match in _LINE_END.finditer(text)))


def matched(text: str, pattern: str) -> list[CharSpan]:
    """Steps open where a pattern matches. With a group called ``start`` they open where that group does, with one called
    ``end`` they end with it. ``^`` and ``$`` stand for the ends of a line.

    Raises:
        ConfigError: it takes too long for this text.
    """
    compiled = compiled_pattern(pattern)
    opens, ends = "start" in compiled.groupindex, "end" in compiled.groupindex
    cuts = []
    try:
        for match in compiled.finditer(text, timeout=PATTERN_SECONDS):
            if ends and match["end"] is not None:
                cuts.append(match.end("end"))
            if (opens and match["start"] is not None) or not (opens or ends):
                cuts.append(match.start("start" if opens else 0))
    except TimeoutError:
        raise ConfigError(
            f"the pattern {pattern!r} of step_splitter=regex takes more than {PATTERN_SECONDS:g} seconds for an"
            f" answer of {len(text):,} characters; avoid repetitions inside repetitions, as in (a+)+"
        ) from None
    return spans_from_cuts(text, cuts)


@lru_cache(maxsize=16)
def compiled_pattern(pattern: str) -> Any:
    """The pattern, compiled by `regex`: unlike `re`, it can be told to give up.

    Raises:
        ConfigError: the pattern is missing or broken, or matches an empty text.
    """
    if not pattern:
        raise ConfigError("step_splitter=regex needs a pattern; give it in step_separator, such as '^Step [0-9]+'")
    import regex

    try:
        compiled = regex.compile(pattern, regex.MULTILINE)
        empty = compiled.search("", timeout=PATTERN_SECONDS) is not None
    except (regex.error, TimeoutError, OverflowError, RecursionError) as error:
        raise ConfigError(f"the pattern {pattern!r} of step_splitter=regex is broken: {error}") from None
    if empty:
        raise ConfigError(
            f"the pattern {pattern!r} of step_splitter=regex matches an empty text, so it would cut at every character"
        )
    return compiled


def spans_of_steps(text: str, steps: Sequence[str]) -> list[CharSpan]:
    """Spans of steps that are known already, such as those of a column, found one after the other in `text`.

    White space at a step's ends does not count, and runs of it inside may differ. What precedes the first step belongs to
    it, what is between two to the one before. Such steps may cut thinking blocks, code and maths.

    Raises:
        DataError: a step is no text, or is not in `text` after the one before.
    """
    starts: list[int] = []
    reached = 0
    for number, step in enumerate(steps, start=1):
        if not isinstance(step, str):
            raise DataError(f"step {number} of {len(steps)} is no text but {type(step).__name__}")
        words = step.strip()
        if not words:
            continue
        start = text.find(words, reached)
        end = start + len(words)
        if start < 0:
            loose = re.compile(r"\s+".join(map(re.escape, words.split()))).search(text, reached)
            if loose is None:
                where = f"behind step {number - 1}" if number > 1 else "at all"
                short = words if len(words) <= 60 else f"{words[:60]}..."
                raise DataError(f"step {number} of {len(steps)} does not stand in the answer {where}: {short!r}")
            start, end = loose.span()
        starts.append(start)
        reached = end
    if not starts and not text.strip():
        return []
    cuts = starts[1:]
    return list(zip([0, *cuts], [*cuts, len(text)], strict=True))


def join_steps(steps: Sequence[str], separator: str = "\n\n") -> tuple[str, list[CharSpan]]:
    """One text of steps that are known already, and their spans in it. Blank steps are left out."""
    filled = [step for step in steps if step.strip()]
    ends, reached = [], 0
    for step in filled:
        reached += len(step) + len(separator)
        ends.append(reached)
    text = separator.join(filled)
    return text, spans_from_cuts(text, ends[:-1], Uncut(""))
