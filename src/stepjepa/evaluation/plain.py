r"""Answers without what is written around them: LaTeX, Markdown, quotation marks, other scripts' digits and signs."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["fold", "plain_text", "trimmed"]

_WORDS = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname|boldsymbol|bm|emph|underline|boxed|fbox)"
    r"\s*\{([^{}]*)\}"
)
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}\s*\{([^{}]*)\}|(\d)\s*(\d))")
_PLAIN = re.compile(r"-?[\d.,]*\d")
_DEGREES = re.compile(r"\^?\{?\\(?:circ|degree)(?![A-Za-z])\}?")
_NOTHING = re.compile(r"\\(?:left|right|displaystyle|textstyle|bf|rm|it)(?![A-Za-z])|\\[!()\[\]]")
_SPACE = re.compile(r"\\(?:quad|qquad)(?![A-Za-z])|\\[,;: ]|\\\\|~")
_SIGNS = {
    "\\$": "$",
    "\\%": "%",
    "\\times": "\u00d7",
    "\\cdot": "\u00d7",
    "\\div": "\u00f7",
    "\\approx": "\u2248",
    "\\pounds": "\u00a3",
    "{,}": ",",
}
_SPACES = re.compile(r"\s+")
_GROUP = re.compile(r"\((?:[^(){},]*)\)|\{(?:[^(){},]*)\}|\$[^$]+\$|'[^']+'")

_ONE_HALF_AND_OTHERS = {
    code: " " + unicodedata.normalize("NFKC", chr(code)).replace("\u2044", "/")
    for code in (0xBC, 0xBD, 0xBE, *range(0x2150, 0x215F))
}
_INVISIBLE = dict.fromkeys((0xAD, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFEFF))
_SAME = {
    "-": "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d",
    "+": "\uff0b",
    ",": "\u066c\uff0c",
    ".": "\u066b\uff0e\u3002",
    "%": "\u066a\ufe6a\uff05",
    "$": "\ufe69\uff04",
    "/": "\u2044\u2215\uff0f",
    ":": "\uff1a",
    "=": "\uff1d",
    "*": "\u2217",
    "(": "\uff08",
    ")": "\uff09",
    "'": "\u02bc\u2019",
    " ": "\xa0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000",
}


class _Fold(dict[int, int]):
    """The table of `str.translate`; digits enter it when they are first seen."""

    def __missing__(self, code: int) -> int:
        value = unicodedata.decimal(chr(code), None)
        if value is None:
            return code
        self[code] = ord("0") + value
        return self[code]


_FOLD = _Fold({ord(sign): ord(plain) for plain, signs in _SAME.items() for sign in signs})


def fold(text: str) -> str:
    """The text with digits of any script, minus signs, spaces and full-width marks as ASCII; its length is the same."""
    return text if text.isascii() else text.translate(_FOLD)


def plain_text(text: str) -> str:
    r"""A text without the LaTeX, Markdown, quotation marks, brackets and final period around it, single-spaced.

    Numeric fractions become `1/2`, `\times` the sign it draws; other LaTeX commands stay.

    >>> plain_text(r"**\(\text{Monday}\)**.")
    'Monday'
    """
    if not text.isascii():
        text = fold(text.translate(_ONE_HALF_AND_OTHERS).translate(_INVISIBLE))
    if "\\" in text or "{" in text or "~" in text:
        text = _without_latex(text)
    return trimmed(_SPACES.sub(" ", text.replace("**", "").replace("$$", "")))


def trimmed(text: str) -> str:
    """Without marks at both ends and brackets around the whole."""
    for _ in range(4):  # "(*18*)." takes several turns
        before = text
        text = text.strip(' *`"\u201c\u201d_').lstrip("\u2248").rstrip(" .,;\\")
        if len(text) > 2 and _GROUP.fullmatch(text):
            text = text[1:-1]
        if text == before:
            break
    return text


def _without_latex(text: str) -> str:
    text = _SPACE.sub(" ", _NOTHING.sub("", text))
    for sign, plain in _SIGNS.items():
        text = text.replace(sign, plain)
    text = _DEGREES.sub("\u00b0", text)
    for _ in range(3):  # \mathbf{\text{18}}
        text, found = _WORDS.subn(r" \1 ", text)
        if not found:
            break
    return _FRACTION.sub(_in_one_line, text)


def _in_one_line(match: re.Match[str]) -> str:
    above, below = (part.strip(" $") for part in match.groups() if part is not None)
    return f" {above}/{below}" if _PLAIN.fullmatch(above) and _PLAIN.fullmatch(below) else match[0]
