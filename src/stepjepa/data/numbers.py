r"""Numbers as people and models write them, and one spelling for each.

Read: thousands separators of several styles, decimals, fractions (`1/2`, `\dfrac{1}{2}`), mixed numbers, powers of ten,
scale words (`5 million`), full-width digits, and all of them among marks and words that say what is counted (`$18`,
`\text{18 dollars}`, `x = 18`). Only what is written as a number is read: nothing is evaluated, and a sum stays a text.
The rules work on strings and on integers of bounded length, so a number of any length costs no more than reading it.
"""

from __future__ import annotations

import math
import re
import unicodedata

__all__ = ["NUMBER", "fold", "normalise_number", "number_of", "plain_text"]

_LATEX_WORDS = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname|boldsymbol|bm|emph|underline|boxed|fbox)"
    r"\s*\{([^{}]*)\}"
)
_LATEX_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}\s*\{([^{}]*)\}|(\d)\s*(\d))")
_PLAIN_NUMBER = re.compile(r"-?[\d.,]*\d")
_DEGREES = re.compile(r"\^?\{?\\(?:circ|degree)(?![A-Za-z])\}?")
_NOTHING = re.compile(r"\\(?:left|right|displaystyle|textstyle|bf|rm|it)(?![A-Za-z])|\\[!()\[\]]")
_SPACE = re.compile(r"\\(?:quad|qquad)(?![A-Za-z])|\\[,;: ]|\\\\|~")
_LATEX_SIGNS = {
    "\\$": "$",
    "\\%": "%",
    "\\times": "\u00d7",
    "\\cdot": "\u00d7",
    "\\div": "\u00f7",
    "\\approx": "\u2248",
    "\\pounds": "\u00a3",
    "{,}": ",",
}
_SPACE_RUN = re.compile(r"\s+")
_GROUP = re.compile(r"\((?:[^(){},]*)\)|\{(?:[^(){},]*)\}|\$[^$]+\$|'[^']+'")

_ONE_SIGN = "\u00bc-\u00be\u2150-\u215e"  # one half and other fractions that are one sign
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


_FULL_WIDTH_DIGITS = {0xFF10 + digit: ord("0") + digit for digit in range(10)}
_FOLD = {ord(sign): ord(plain) for plain, signs in _SAME.items() for sign in signs} | _FULL_WIDTH_DIGITS


def fold(text: str) -> str:
    """The text with minus signs, spaces and full-width marks and digits as ASCII; its length is the same."""
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
    return trimmed(_SPACE_RUN.sub(" ", text.replace("**", "").replace("$$", "")))


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
    for sign, plain in _LATEX_SIGNS.items():
        text = text.replace(sign, plain)
    text = _DEGREES.sub("\u00b0", text)
    for _ in range(3):  # \mathbf{\text{18}}
        text, found = _LATEX_WORDS.subn(r" \1 ", text)
        if not found:
            break
    return _LATEX_FRACTION.sub(_in_one_line, text)


def _in_one_line(match: re.Match[str]) -> str:
    above, below = (part.strip(" $") for part in match.groups() if part is not None)
    return f" {above}/{below}" if _PLAIN_NUMBER.fullmatch(above) and _PLAIN_NUMBER.fullmatch(below) else match[0]


_LONGEST = 400  # digits of a number that is computed with, and the largest exponent; what is longer stays a text
_LONGEST_SENTENCE = 200  # characters of a text in which words around a number are looked at
_LONGEST_NAME = 60
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "k": 3}

# Thousands in groups, 1,234  1{,}234  1\,234  1,23,456  1 234  1'234  1_234  1.234.567, or none: 1234. Repetitions that
# may fail after many turns are bounded, else a line of "11,11,11,..." would be read again and again.
_WHOLE = r"""(?:\d{1,3}(?:(?:,(?:\\!)?|\{,\}|\\,)\d{3})+(?!\d)|\d{1,2}(?:,\d{2}){1,6},\d{3}(?!\d)
    |\d{1,3}(?:[ ]\d{3})+(?![\d/])|\d{1,3}(?:'\d{3})+(?!\d)|\d{1,3}(?:_\d{3})+(?!\d)|\d{1,3}(?:\.\d{3}){2,}(?!\d)|\d+)"""
_DECIMAL = rf"(?:\d{{1,3}}(?:[. ]\d{{3}}){{1,9}},\d+(?!\d)|{_WHOLE}(?:\.\d+)?|(?<![\w.])\.\d+)"
_SCALE = r"(?i:hundred|thousand|million|billion|trillion)\b"
_FRAC = r"\\[dtc]?frac[ ]?(?:\{[ ]?-?[\d.,]+[ ]?\}[ ]?\{[ ]?[\d.,]+[ ]?\}|\d[ ]?\d)"

# A number inside one line of a folded text. A minus is a sign only where no digit, letter or closing bracket stands before
# it ("5-3" is a difference). Dates, times and ratios are found whole, so that none of their parts is taken for a number.
NUMBER = re.compile(
    rf"""
    (?=[-\\.\dmnMN$\u20ac\u00a3\u00a5\u20b9{_ONE_SIGN}])(?:          # for speed: what each of them begins with
    \d{{4}}-\d{{2}}-\d{{2}}(?!\d)                               # 2024-12-25
    |\d{{1,4}}/\d{{1,2}}/\d{{2,4}}(?!\d)                        # 12/25/2024
    |\d{{1,6}}(?::\d{{1,6}})+(?:[ ]?(?i:[ap]m\b|[ap]\.m\.?))?        # 3:30 pm, 3:4
    |\d{{1,2}}[ ]?(?i:[ap]m\b|[ap]\.m\.?)                            # 5 pm
    |(?:(?<![\w)\]])-|(?<!\w)(?<![\d)\]][ ])(?i:minus|negative)[ ])?(?:\\?[$\u20ac\u00a3\u00a5\u20b9][ ]?-?)?
     (?:10[ ]?\^[ ]?\{{?[-+]?\d+\}}?                            # 10^6
     |(?:\d+[ ]?)?(?:{_FRAC}|[{_ONE_SIGN}])                      # 1\frac{{1}}{{2}}, 1\u00bd
     |\d+[ ]\d+/\d+(?![\d/])                                    # 1 1/2
     |{_DECIMAL}(?:
        [eE][-+]?\d+\b                                          # 1e6, 2 \times 10^6
        |[ ]?(?:\\times|\\cdot|[\u00d7*x])[ ]?10[ ]?\^[ ]?\{{?[-+]?\d+\}}?
        |[ ]?/[ ]?\d+(?![\d/])
        |[ ]{_SCALE})?))
    """,
    re.VERBOSE,
)

_SIMPLE = re.compile(r"-?[1-9]\d*(?:\.\d*[1-9])?|0|-?0\.\d*[1-9]", re.ASCII)
_READ = re.compile(
    rf"""
    (?P<sign>[-+])?[ ]?
    (?:(?P<mixed>\d+)[ ](?=\d+[ ]?/))?
    (?P<above>{_DECIMAL}\.?)
    (?:[ ]?/[ ]?(?P<below>{_DECIMAL}))?
    (?:[eE](?P<exponent>[-+]?\d+)
      |[ ]?[\u00d7*x][ ]?10[ ]?(?:\^|\*\*)[ ]?\{{?(?P<power>[-+]?\d+)\}}?
      |[ ](?P<scale>{_SCALE})|(?P<kilo>[kK])(?!\w))?
    """,
    re.VERBOSE,
)
_POWER = re.compile(r"(?P<sign>[-+])?[ ]?10[ ]?(?:\^|\*\*)[ ]?\{?(?P<power>[-+]?\d+)\}?")
_BEGINS = re.compile(r"\d|(?<!\w)\.\d")

_MARKS = re.compile(r"(?:\b(?:US|AU|CA|NZ|HK|A|C))?\$|[%\u20ac\u00a3\u00a5\u20b9]")
_NAME = re.compile(r"[^\W\d_][\w ,']*(?:_\{?\w+\}?|\(\w+\))?\s*")
# Words before and after a number: letters of any script and the marks between words, no sign of a calculation.
_OTHER_SCRIPTS = "[^\\x00-\\x7f\\d\u00d7\u00f7\u03c0\u2200-\u22ff]"
_BEFORE = re.compile(rf"(?:[A-Za-z ,.':!?]|-(?=[A-Za-z])|{_OTHER_SCRIPTS})*")
_AFTER = re.compile(rf"(?:[A-Za-z ,.'!?()]|[-/](?=[A-Za-z])|\^\{{?[23]\}}?(?!\d)|{_OTHER_SCRIPTS})*")
_WORD = re.compile(r"[^\W\d_]+")
_CURRENCY_WORDS = frozenset("usd eur gbp inr aud cad us rs".split())
_UNIT_LETTERS = frozenset("mgLlhskKCFNJWVA")
_DATES = frozenset(
    "january february march april may june july august september october november december jan feb mar apr jun jul aug sep "
    "sept oct nov dec monday tuesday wednesday thursday friday saturday sunday".split()
)
# These make of a number another one, or something else than a number.
_OTHER_BEFORE = _DATES | frozenset("not no than least most above below over under between".split())
_OTHER_AFTER = _DATES | frozenset(
    "am pm o or half halves third thirds fourth fourths fifth fifths sixth sixths eighth eighths tenth tenths hundredth "
    "hundredths pi sqrt squared cubed factorial percentile".split()
)
_PART = re.compile(r"\band (?:a |one )?(?:half|third|quarter)\b|\b[ap]\.m\b", re.IGNORECASE)


def normalise_number(text: str) -> str:
    r"""One spelling for one number: digits, with a point and decimals if it has any, or a fraction in lowest terms.

    Taken away: LaTeX and Markdown around it, currency and percent signs, thousands separators, a plus sign, leading zeros,
    zeros after the decimals, a final period, a name before an equals sign, words before and after a single number. What is
    then no number is returned without those marks and otherwise as it is.

    >>> normalise_number("$1,234.50."), normalise_number(r"18\text{ dollars}"), normalise_number(r"\frac{2}{6}")
    ('1234.5', '18', '1/3')
    """
    if _SIMPLE.fullmatch(text):
        return text
    number, bare = _read(text)
    return bare if number is None else number


def number_of(text: str) -> str | None:
    """`normalise_number` of a text that is a number, None of any other."""
    return text if _SIMPLE.fullmatch(text) else _read(text)[0]


def _read(text: str) -> tuple[str | None, str]:
    """The number that a text is, or None, and the text without marks."""
    bare = trimmed(_right_side(_MARKS.sub("", plain_text(text))))
    match = _POWER.fullmatch(bare) or _READ.fullmatch(bare)
    number = None if match is None else _value(match.groupdict())
    if number is None and len(bare) <= _LONGEST_SENTENCE:
        number = _among_words(bare)
    return number, bare


def _right_side(text: str) -> str:
    """What stands after the last equals sign, where before it stands a name, or a calculation without names."""
    left, sign, right = text.replace("\u2248", "=").rpartition("=")
    if not sign or left[-1:] in ("<", ">", "!") or not any(map(str.isdecimal, right)):
        return text
    names, digits = any(map(str.isalpha, left)), any(map(str.isdecimal, left))
    if names and digits and not (len(left) <= _LONGEST_NAME and _NAME.fullmatch(left)):
        return text
    return right


def _among_words(text: str) -> str | None:
    """The one number in a text of words that only say what it counts."""
    found = _BEGINS.search(text)
    if found is None:
        return None
    begin = found.start()
    if text[begin - 1 : begin] in ("-", "+") and not text[max(begin - 2, 0) : begin - 1].isalnum():
        begin -= 1
    match = _POWER.match(text, begin) or _READ.match(text, begin)
    if match is None:
        return None
    before, after = text[:begin], text[match.end() :]
    if not _BEFORE.fullmatch(before) or not _AFTER.fullmatch(after) or _PART.search(after):
        return None
    if after[:1] in ("!", "^", "\u00b2", "\u00b3"):
        return None  # 18! and 18^2; of a unit they are none of the number's business
    words = [word.casefold() for word in _WORD.findall(before)]
    if not _OTHER_BEFORE.isdisjoint(words) or before[-1:].isalpha() and words[-1] not in _CURRENCY_WORDS:
        return None
    units = _WORD.findall(after)
    if units and units[0].isascii() and len(units[0]) == 1 and units[0] not in _UNIT_LETTERS:
        return None  # 5x, 5 n
    if not _OTHER_AFTER.isdisjoint(unit.casefold() for unit in units):
        return None
    parts = match.groupdict()
    if words and words[-1] in ("minus", "negative") and not parts["sign"]:
        parts["sign"] = "-"
    return _value(parts)


def _value(parts: dict[str, str | None]) -> str | None:
    """The spelling of what `_READ` or `_POWER` found; None where that is too long, or divides by zero."""
    whole, decimals = _digits(parts.get("above") or "1")
    shift = _exponent(parts)
    if shift is None:
        return None
    if not shift and parts.get("below") is None:
        return _signed(parts["sign"], whole.lstrip("0") or "0", decimals.rstrip("0"))
    under, under_decimals = _digits(parts.get("below") or "1")
    mixed = parts.get("mixed") or "0"
    if len(whole) + len(decimals) + len(under) + len(under_decimals) + len(mixed) > _LONGEST:
        return None
    above = int(whole + decimals) * 10 ** len(under_decimals)
    below = int(under + under_decimals) * 10 ** len(decimals)
    above += int(mixed) * below
    return _ratio(parts["sign"], above * 10 ** max(shift, 0), below * 10 ** max(-shift, 0))


def _digits(text: str) -> tuple[str, str]:
    """The digits before and after the decimal point."""
    if "," in text and ("." in text or " " in text) and text.rfind(",") > max(text.rfind("."), text.rfind(" ")):
        text = text.replace(".", "").replace(",", ".")  # 1.234,5
    elif text.count(".") > 1 and not text.endswith("."):
        text = text.replace(".", "")  # 1.234.567
    for sign in ", '_":
        text = text.replace(sign, "")
    whole, _, decimals = text.partition(".")
    return whole or "0", decimals


def _exponent(parts: dict[str, str | None]) -> int | None:
    """The power of ten that multiplies the number; None where it is too large to write out."""
    scale = parts.get("scale") or parts.get("kilo")
    if scale:
        return _SCALES[scale.lower()]
    power = parts.get("exponent") or parts.get("power") or "0"
    return None if len(power) > 5 or abs(int(power)) > _LONGEST else int(power)


def _ratio(sign: str | None, above: int, below: int) -> str | None:
    """A fraction in lowest terms, as a decimal number where it is one."""
    if below == 0:
        return None
    common = math.gcd(above, below)
    above, below = above // common, below // common
    places, rest = 0, below
    for prime in (2, 5):
        power = 0
        while rest % prime == 0:
            rest, power = rest // prime, power + 1
        places = max(places, power)
    if rest > 1:
        return f"{'-' if sign == '-' else ''}{above}/{below}"
    digits = str(above * 10**places // below).rjust(places + 1, "0")
    return _signed(sign, digits[: len(digits) - places], digits[len(digits) - places :])


def _signed(sign: str | None, whole: str, decimals: str) -> str:
    number = f"{whole}.{decimals}" if decimals else whole
    return f"-{number}" if sign == "-" and number != "0" else number
