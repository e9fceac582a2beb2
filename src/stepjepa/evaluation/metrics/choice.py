"""`multiple_choice`: the letter of the chosen option."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from stepjepa.data.answers import last_boxed
from stepjepa.data.numbers import fold, plain_text
from stepjepa.errors import DataError
from stepjepa.evaluation.metrics.base import Metric, Verdict

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LABEL = (
    r"[(\[{*_\s\"'`$]{0,6}(?:\\text\{\s*)?(?:option|choice|letter)?\s{0,2}[(\[*\"'`]{0,4}"
    r"([A-Za-z])(?![A-Za-z0-9'\u2019])"
)
_SAYS = re.compile(
    rf"\b(?:answer|choice|option)\b[^.\n]{{0,40}}?(?:\b(?:is|are|be)\b|[:=])\s{{0,3}}{_LABEL}", re.IGNORECASE
)
_SAYS_TEXT = re.compile(r"\banswer\b[^.:\n]{0,40}?(?:\bis\b:?|:)[ \t]*([^\n]{1,300})", re.IGNORECASE)
_WORD = re.compile(r"\s+[a-z]")
_FIRST = re.compile(r"\s*[(\[*\"'`]{0,4}([A-Za-z])(?:[)\].:*\"'`,]|\s*$|\s*\n)")
_LONE = re.compile(r"(?<![\w'\u2019.])(?:\(([A-Za-z])\)|([B-Z])(?![\w'\u2019])|(A)(?=[).:*\]]|\s*$))", re.MULTILINE)
_NUMBERED = re.compile(r"(?:option |choice )?\(?(\d{1,2})\)?[.:)]?", re.IGNORECASE)


@dataclass(kw_only=True)
class MultipleChoice(Metric):
    r"""Compares the chosen option.

    The reference is a letter (`B`, `(B)`), the text of an option, or its number counted from 0 where the row has `choices`;
    a reference that is a longer text is read like a generated one. Options are the row's `choices`, `options` or `endings`:
    a list of texts, or an object with `text` and `label` (ARC).

    The generated text's choice is the letter in its last `\boxed{}`, else behind the last "answer is", else the letter with
    which it begins (`B.`, `(B)`), else the option whose text it is, else the last letter that stands alone.
    """

    name: ClassVar[str] = "multiple_choice"
    columns: ClassVar[tuple[str, ...]] = (
        "answerKey",
        "ground_truth",
        "label",
        "answer",
        "completion",
        "messages",
    )

    def score(self, generated: str, row: Mapping[str, Any]) -> Verdict:
        """1 where the same option is chosen."""
        options = _options(row)
        gold = _known(self.reference(row), options)
        answer = _chosen(generated, options)
        if gold is None:
            return Verdict(0.0, None, answer, "the reference names no option")
        if answer is None:
            return Verdict(0.0, gold, None, "no option named")
        return Verdict(float(answer == gold), gold, answer, "" if answer == gold else "another option")


def _options(row: Mapping[str, Any]) -> dict[str, str]:
    """Label -> text of the row's options; empty where it lists none.

    Raises:
        DataError: labels and texts do not go together.
    """
    listed = next((row[name] for name in ("choices", "options", "endings") if row.get(name)), None)
    if listed is None:
        return {}
    labels: Any = None
    if isinstance(listed, Mapping):
        if "text" not in listed:  # {"A": "red", "B": "blue"}
            return {str(label).strip().upper(): str(text) for label, text in listed.items()}
        labels, listed = listed.get("label"), listed["text"]
    if not isinstance(listed, (list, tuple)) or (labels is not None and len(labels) != len(listed)):
        raise DataError(
            "the options of a row must be a list of texts, or an object with `text` and `label` of one length"
        )
    if labels is None and len(listed) > len(_LETTERS):
        raise DataError(f"more than {len(_LETTERS)} options without labels")
    names = _LETTERS if labels is None else [str(label).strip().upper() for label in labels]
    return dict(zip(names, map(str, listed), strict=False))


def _known(reference: str, options: Mapping[str, str]) -> str | None:
    bare = plain_text(reference)
    if bare.upper() in options:
        return bare.upper()
    if bare.isdecimal() and options:
        return list(options)[int(bare)] if len(bare) < 3 and int(bare) < len(options) else None
    return _chosen(reference, options)


def _chosen(text: str, options: Mapping[str, str]) -> str | None:
    """The label that a text chooses; one that the row does not list counts as a choice, a wrong one."""
    text = fold(text).strip()
    boxed = last_boxed(text)
    if boxed is not None:
        return _label(boxed, options) or _by_text(boxed, options)
    found = [match[1] for match in _SAYS.finditer(text) if not (match[1] == "a" and _WORD.match(text, match.end()))]
    if found:
        return found[-1].upper()
    said = [label for match in _SAYS_TEXT.finditer(text) if (label := _by_text(match[1], options)) is not None]
    if said:
        return said[-1]
    first = _FIRST.match(text)
    if first is not None and (not options or first[1].upper() in options):
        return first[1].upper()
    whole = _by_text(text, options) or _label(text, options)
    if whole is not None:
        return whole
    alone = [one or two or three for one, two, three in _LONE.findall(text)]
    alone = [label for label in alone if label.upper() in (options or _LETTERS[:10])]
    return alone[-1].upper() if alone else None


def _label(text: str, options: Mapping[str, str]) -> str | None:
    """The label that a short text is, alone or before the option's text."""
    bare = plain_text(text)
    if bare.upper() in options:
        return bare.upper()
    match = re.match(r"(?:option |choice )?\(?([A-Za-z])\)?(?:[.:)\s]|$)", bare, re.IGNORECASE)
    if match is not None and (len(bare) == len(match[0].strip()) or bare[len(match[1])] in ".:)" or bare[0] == "("):
        return match[1].upper()
    number = _NUMBERED.fullmatch(bare)
    return number[1] if number is not None and number[1] in options else None


def _by_text(text: str, options: Mapping[str, str]) -> str | None:
    """The one option whose text this is."""
    words = _words(text)
    same = [label for label, option in options.items() if _words(option) == words]
    return same[0] if len(same) == 1 else None


def _words(text: str) -> str:
    return " ".join(plain_text(text).casefold().split())
