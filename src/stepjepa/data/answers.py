r"""The final answer of a text, numbers as people and models write them, and the comparison of two answers.

Numbers may have thousands separators of several styles, decimals, fractions (`1/2`, `\dfrac{1}{2}`), mixed numbers, powers
of ten, scale words (`5 million`), full-width digits, and signs and words that name what is counted (`$18`,
`\text{18 dollars}`, `x = 18`). No expression is evaluated: `1/2` and `0.5` are the same number, but `\sqrt{4}` and `2`
are not; the metric `math` compares expressions symbolically. The rules work on strings and on integers of bounded length, so
the cost is linear in the length of a number.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from stepjepa.data.blocks import answer_of

# Numbers

_LATEX_WORDS = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname|boldsymbol|bm|emph|underline|boxed|fbox)"
    r"\s*\{([^{}]*)\}"
)
_LATEX_FRACTION = re.compile(
    r"\\[dtc]?frac\s*(?:\{[ $]*(-?[\d.,]*\d)[ $]*\}\s*\{[ $]*(-?[\d.,]*\d)[ $]*\}|(\d)\s*(\d))"
)
_DEGREES = re.compile(r"\^?\{?\\(?:circ|degree)(?![A-Za-z])\}?")
# Commands that change how a formula looks, not what it means.
_LAYOUT = re.compile(r"\\(?:left|right|displaystyle|textstyle|bf|rm|it)(?![A-Za-z])|\\[!()\[\]]")
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

# Fractions that are a single character. The leading space separates the parts of a mixed number: 1 1/2, not 11/2.
_ONE_SIGN = "\u00bc-\u00be\u2150-\u215e"
_ONE_HALF_AND_OTHERS = {
    code: " " + unicodedata.normalize("NFKC", chr(code)).replace("\u2044", "/")
    for code in (0xBC, 0xBD, 0xBE, *range(0x2150, 0x215F))
}
# Soft hyphens, zero-width spaces and direction marks, which web pages leave inside numbers.
_INVISIBLE = dict.fromkeys((0xAD, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFEFF))
_SAME = {
    "-": "\u2010\u2011\u2012\u2013\u2212\ufe63",
    ".": "\u3002",
    "/": "\u2044\u2215",
    "*": "\u2217",
    "'": "\u02bc\u2019",
    " ": "\xa0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000",
}
# The full-width forms of the printable ASCII characters.
_FULL_WIDTH = {0xFF01 + number: 0x21 + number for number in range(94)}
_FOLD = _FULL_WIDTH | {ord(sign): plain for plain, signs in _SAME.items() for sign in signs}


def fold(text: str) -> str:
    """Replace minus signs, spaces and full-width characters with ASCII, one for one, so that positions stay valid."""
    return text if text.isascii() else text.translate(_FOLD)


def plain_text(text: str) -> str:
    r"""Remove LaTeX commands of layout and text and bold marks, collapse spaces, and strip other Markdown, quotation marks,
    brackets and a final period from the ends of a text.

    Numeric fractions become `1/2`, and `\times` becomes the sign that it prints; other LaTeX commands stay.

    >>> plain_text(r"**\(\text{Monday}\)**.")
    'Monday'
    """
    if not text.isascii():
        text = fold(text.translate(_ONE_HALF_AND_OTHERS).translate(_INVISIBLE))
    if "\\" in text or "{" in text or "~" in text:
        text = _without_latex(text)
    return trimmed(_SPACE_RUN.sub(" ", text.replace("**", "").replace("$$", "")))


def trimmed(text: str) -> str:
    """Strip Markdown and quotation marks at both ends, and brackets around the complete text."""
    # Marks may nest: "(*18*)." takes three passes. The bound keeps the cost linear.
    for _ in range(4):
        before = text
        text = text.strip(' *`"\u201c\u201d_').lstrip("\u2248").rstrip(" .,;\\")
        if len(text) > 2 and _GROUP.fullmatch(text):
            text = text[1:-1]
        if text == before:
            break
    return text


def _without_latex(text: str) -> str:
    text = _SPACE.sub(" ", _LAYOUT.sub("", text))
    for sign, plain in _LATEX_SIGNS.items():
        text = text.replace(sign, plain)
    text = _DEGREES.sub("\u00b0", text)
    # The pattern matches innermost braces, so \mathbf{\text{18}} takes two passes.
    for _ in range(3):
        text, replaced = _LATEX_WORDS.subn(r" \1 ", text)
        if not replaced:
            break
    return _LATEX_FRACTION.sub(r" \1\3/\2\4", text)


# The maximum number of digits for arithmetic. A longer number is not converted.
_LONGEST = 400
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "k": 3}

# Whole numbers with thousands in groups, 1,234  1{,}234  1\,234  1,23,456  1 234  1'234  1_234  1.234.567, or without: 1234.
# Repetitions that may fail late are bounded; otherwise, a line of "11,11,11,..." would take quadratic time.
_WHOLE = r"""(?:\d{1,3}(?:(?:,(?:\\!)?|\{,\}|\\,)\d{3})+(?!\d)|\d{1,2}(?:,\d{2}){1,6},\d{3}(?!\d)
    |\d{1,3}(?:[ ]\d{3})+(?![\d/])|\d{1,3}(?:'\d{3})+(?!\d)|\d{1,3}(?:_\d{3})+(?!\d)|\d{1,3}(?:\.\d{3}){2,}(?!\d)|\d+)"""
_DECIMAL = rf"(?:\d{{1,3}}(?:[. ]\d{{3}}){{1,9}},\d+(?!\d)|{_WHOLE}(?:\.\d+)?|(?<![\w.])\.\d+)"
_SCALE = r"(?i:hundred|thousand|million|billion|trillion)\b"
_FRAC = r"\\[dtc]?frac[ ]?(?:\{[ ]?-?[\d.,]+[ ]?\}[ ]?\{[ ]?[\d.,]+[ ]?\}|\d[ ]?\d)"

# A number inside one line of a folded text. A minus is a sign only if no digit, letter or closing bracket precedes it
# ("5-3" is a difference). Dates, times and ratios match as a whole, so that their parts do not count as numbers.
NUMBER = re.compile(
    rf"""
    (?=[-\\.\dmnMN$\u20ac\u00a3\u00a5\u20b9{_ONE_SIGN}])(?:          # for speed: the first character of every alternative
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

_POWER = r"10[ ]?(?:\^|\*\*)[ ]?\{?"
# Words before and after a number: letters of any script and the marks between words, but no arithmetic operators.
_OTHER_SCRIPTS = "[^\\x00-\\x7f\\d\u00d7\u00f7\u03c0\u2200-\u22ff]"
# A number without LaTeX, and the words around it. Their length is bounded, since they could match anywhere in a long text.
_COUNTED = re.compile(
    rf"""
    (?P<before>(?:[A-Za-z ,':!?]|\.(?!\d)|(?<=\w)\.|-(?=[A-Za-z])|{_OTHER_SCRIPTS}){{0,200}}?)
    (?P<sign>\A[-+][ ]?|(?<!\w)(?:[-+]|(?i:minus|negative)[ ,:]+))?
    (?:{_POWER}(?P<ten>[-+]?\d{{1,3}})\}}?
    |(?:(?P<mixed>\d+)[ ](?=\d+[ ]?/))?
     (?P<above>{_DECIMAL}\.?)
     (?:[ ]?/[ ]?(?P<below>{_DECIMAL}))?
     (?:[eE](?P<exponent>[-+]?\d{{1,3}})
       |[ ]?[\u00d7*x][ ]?{_POWER}(?P<power>[-+]?\d{{1,3}})\}}?
       |[ ](?P<scale>{_SCALE})|(?P<kilo>[kK])(?!\w))?)
    (?P<after>(?:[A-Za-z ,.'!?()]|[-/](?=[A-Za-z])|\^\{{?[23]\}}?(?!\d)|{_OTHER_SCRIPTS}){{0,200}})
    """,
    re.VERBOSE,
)
_DATE = (
    "january|february|march|april|may|june|july|august|september|october|november|december|jan|feb|mar|apr|jun|jul|aug|sept?"
    "|oct|nov|dec|(?:mon|tues|wednes|thurs|fri|satur|sun)day"
)
# These words change the number, or turn it into something else (a date, a bound); so does a letter directly before it.
_NOT_BEFORE = re.compile(
    rf"""\b(?:{_DATE}|not|no|than|least|most|above|below|over|under|between)\b
    |(?:\A|[\W\d_])(?!(?:usd|eur|gbp|inr|aud|cad|us|rs)\Z)[^\W\d_]+\Z""",
    re.VERBOSE | re.IGNORECASE,
)
_NOT_AFTER = re.compile(
    rf"""\A[!^\u00b2\u00b3]|\b(?:{_DATE}|[ap]m|[ap]\.m|o|or|half|halves|thirds?|fourths?|fifths?|sixths?|eighths?|tenths?
    |hundredths?|pi|sqrt|squared|cubed|factorial|percentile|and[ ](?:a[ ]|one[ ])?quarter)\b
    |\A\W*(?-i:(?![mgLlhskKCFNJWVA])[A-Za-z])(?![^\W\d_])       # 5x, but 5 m""",
    re.VERBOSE | re.IGNORECASE,
)
_MARKS = re.compile(r"(?:\b(?:US|AU|CA|NZ|HK|A|C))?\$|[%\u20ac\u00a3\u00a5\u20b9]")
# The left side of an equation: words without digits, a calculation, or a name such as x_1 or f(2).
_LEFT_SIDE = re.compile(r"\D*|[\W\d_]*|[^\W\d_][\w ,']{0,60}(?:_\{?\w+\}?|\(\w+\))?\s*")
_DECIMAL_COMMA = re.compile(r"[\d. ]*[. ]\d{3},\d+")


def number_of(text: str) -> Fraction | None:
    r"""Return the value of a text that is a number: digits, a decimal or a fraction.

    The LaTeX and Markdown around it, currency and percent signs, thousands separators, a name before an equals sign, and
    words around a single number do not matter. None for a text that is not a number, for words that change the number,
    and for more than `_LONGEST` digits.

    >>> number_of("$1,234.50."), number_of(r"18\text{ dollars}")
    (Fraction(2469, 2), Fraction(18, 1))
    """
    match = _COUNTED.fullmatch(_bare(text))
    if match is None or _NOT_BEFORE.search(match["before"]) or _NOT_AFTER.search(match["after"]):
        return None
    above = _plain_digits(match["above"] or "1")
    below = _plain_digits(match["below"] or "1")
    mixed = match["mixed"] or "0"
    power = match["ten"] or match["exponent"] or match["power"] or "0"
    if len(mixed + above + below + power) > _LONGEST or not Fraction(below):
        return None
    scale = match["scale"] or match["kilo"]
    exponent = _SCALES[scale.lower()] if scale else int(power)
    value = (int(mixed) + Fraction(above) / Fraction(below)) * Fraction(10) ** exponent
    negative = match["sign"] is not None and "+" not in match["sign"]
    return -value if negative else value


def _bare(text: str) -> str:
    """A text without marks and LaTeX; only the right side of an equation whose left side is a name or a calculation."""
    bare = _MARKS.sub("", plain_text(text))
    left, equals, right = bare.replace("\u2248", "=").rpartition("=")
    comparison = left.endswith(("<", ">", "!"))
    if equals and not comparison and re.search(r"\d", right) and _LEFT_SIDE.fullmatch(left):
        bare = right
    return trimmed(bare)


def _plain_digits(text: str) -> str:
    """Digits with a decimal point and no other separator."""
    text = text.rstrip(".")
    # European styles: 1.234,5 and 1 234,5, then 1.234.567.
    if _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    elif text.count(".") > 1:
        text = text.replace(".", "")
    return re.sub("[, '_]", "", text)


# Final answers

# "\\boxed", as in doubly escaped JSON, opens a box; an escaped brace does not nest.
_BRACES = re.compile(
    r"(?P<box>\\f?boxed\s*\{)|(?P<escaped>\\(?!\\?f?boxed).)|(?P<open>\{)|(?P<close>\})", re.DOTALL
)
_BARE_BOX = re.compile(r"\\boxed\s*(-?\d[\d.,/]*)")
_ANSWER_TAGS = re.compile(r"<answer>\s{0,8}(\S|\S[^\n]{0,80}?\S)\s{0,8}</answer>")

# "The answer is", "Final answer:", with the markup and the words that may precede the number.
_LEAD_IN = re.compile(
    r"\banswer\b[^.\n\d]{0,40}?(\b(?:is|are|equals)\b|:|=)"
    r"(?:[\s*_$\\(\[{:=\u2248]|\\text|\b(?:therefore|thus|hence|then|so|simply|exactly|approximately|about|equal|to|a|total|of|the)\b){0,12}",
    re.IGNORECASE,
)
# Text without words: letters occur one by one, or in LaTeX commands with their arguments.
_FORMULA = re.compile(
    r"(?=[^\n]*\w)(?:\\[A-Za-z]+(?:\{[^{}\n]*\})?|(?<![^\W\d_])[^\W\d_](?![^\W\d_])|[\W\d_])+"
)
# Marks between the words that announce an answer and the answer, and after it.
_AROUND = " \t:=*_.!\u2248"
_CALCULATION = re.compile(
    r"[ *$]{0,3}(?:[+/^=\u00d7\u00f7<>]|\*[ ]?\d|-[ ]?[\d(]|\\times|\\cdot|\\div|x[ ]?\d)"
)
_LIST_ITEM = re.compile(r"[.)][ \t]+\S")
_HASHES = re.compile(r"####((?:(?!####)[^\n])*)")
# A number, perhaps after "answer", but not a numbered heading such as "1. Count".
_HEADED = re.compile(
    r"\W{0,4}(?:(?:the |my )?(?:final |correct )?(?:answer|result)(?: is)?\W{0,6})?\d(?!\d{0,2}[.)][ \t]+\S)",
    re.IGNORECASE,
)

# The text directly before a final answer, in the order in which `final_answer` searches for it.
_CUES = (
    re.compile(r"\\f?boxed\s*\{?\s*"),
    re.compile(r"####[ \t]*"),
    re.compile(r"<answer>\s{0,8}"),
    re.compile(rf"(?:\b(?:the|my)\s+)?(?:(?:final|correct)\s+)?{_LEAD_IN.pattern}", re.IGNORECASE),
)
# White space, except between two digits: "1 2" and "12" differ.
_SPACES = re.compile(r"(?<!\d)\s+|\s+(?!\d)")


def last_boxed(text: str) -> str | None:
    r"""Return the stripped content of the last complete, nonempty `\boxed{...}`, or None.

    Braces may nest; escaped braces do not count. A box that never closes, as in a truncated answer, and an empty box are
    skipped. Of nested boxes, the innermost one counts. `\boxed 18` counts only if no box has braces.
    """
    if "boxed" not in text:
        return None
    # For each open brace, the start of the content if it opens a box, else None.
    opened: list[int | None] = []
    begin = end = 0
    for mark in _BRACES.finditer(text):
        if mark["box"]:
            opened.append(mark.end())
        elif mark["open"]:
            opened.append(None)
        elif mark["close"]:
            start = opened.pop() if opened else None
            # A box around another box begins before it, and does not count.
            if start is not None and start > begin and text[start : mark.start()].strip():
                begin = start
                end = mark.start()
    if end:
        return text[begin:end].strip()
    bare = _BARE_BOX.findall(text)
    return bare[-1].rstrip(".,/") if bare else None


def final_answer(text: str) -> str | None:
    r"""Return the final answer of a text, as written (see `number_of`).

    It is the first of these that the text has: the last nonempty `\boxed{}`; the rest of the line after the first `####`, if
    the text ends there or it is a number rather than a heading; the text between the last `<answer>` tags; the number,
    formula or letter after the last "answer is" or "answer:"; the last number. None if the text has none of these. Thinking
    is skipped (`answer_of`).
    """
    text = answer_of(text)
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    hashes = after_hashes(text)
    if hashes is not None:
        return hashes
    tags = _ANSWER_TAGS.findall(text)
    return tags[-1] if tags else _announced(text) or _last_number(text)


def answer_cue(text: str) -> tuple[int, int] | None:
    """Return the characters [start, end) that announce the `final_answer` of a text and end directly before it: `####`, the
    beginning of a box, `<answer>` or "the answer is"; None if nothing announces it."""
    answer = final_answer(text)
    if answer is None:
        return None
    begin = len(text) - len(answer_of(text))
    for cue in _CUES:
        places = []
        for match in cue.finditer(text, begin):
            # The words that announce an answer may include its beginning: a bracket, or the A of a choice.
            earliest = match.end(1) if cue.groups else match.end()
            place = text.find(answer, earliest, match.end() + len(answer))
            if place >= 0:
                places.append((match.start(), place))
        if places:
            return places[-1]
    return None


def answers_match(a: str | None, b: str | None) -> bool:
    """Whether two answers are the same.

    Numbers are compared by `number_of`, which ignores units (`18 dollars` equals `18 cents`); other texts are
    compared without regard to letter case, spaces, and LaTeX or Markdown around them. A missing or empty answer matches
    nothing.
    """
    if a is None or b is None:
        return False
    left, right = _comparable(a), _comparable(b)
    return left == right != ""


def _comparable(answer: str) -> Fraction | str:
    number = number_of(answer)
    if number is not None:
        return number
    return _SPACES.sub("", _bare(answer)).casefold().strip(".")


def after_hashes(text: str) -> str | None:
    """Return the rest of the line after the first `####` that an answer follows, as GSM8K's own extractor does, or None.

    If more text follows the line, it may be a heading: then it counts only if it is a number, with or without "answer is".
    """
    end = len(text.rstrip())
    for hashes in _HASHES.finditer(text):
        line = hashes[1].strip()
        if line and hashes.end() >= end:
            return line
        if _HEADED.match(fold(line)) and number_of(line) is not None:
            return line
    return None


def _announced(text: str) -> str | None:
    """The formula, or the number, after the last "answer is" or "answer:" that one of them follows."""
    for lead_in in reversed(list(_LEAD_IN.finditer(text))):
        line = text[lead_in.end() :].partition("\n")[0]
        # A formula or the letter of a choice is the complete line: the 2 of "2x" is not its answer.
        formula = text[lead_in.end(1) :].partition("\n")[0].strip(_AROUND)
        if _FORMULA.fullmatch(formula) and number_of(formula) is None:
            return formula
        folded = fold(line)
        number = NUMBER.match(folded)
        if number is None:
            continue
        rest = folded[number.end() :]
        # "The answer is 12 + 5 = 17": the result comes last.
        if _CALCULATION.match(rest):
            return _last_number(line)
        # "Answer:" may also head a solution, whose first number is not the answer if a list or further numbers follow.
        heads_list = "\n" in lead_in[0] and _LIST_ITEM.match(rest)
        heads_solution = lead_in[1] in ":=" and (heads_list or re.search(r"\d", rest))
        if not heads_solution:
            return line[: number.end()].strip()
    return None


def _last_number(text: str) -> str | None:
    for line in reversed(text.split("\n")):
        numbers = list(NUMBER.finditer(fold(line)))
        if numbers:
            return line[numbers[-1].start() : numbers[-1].end()].strip()
    return None
