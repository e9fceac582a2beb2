r"""Finding the final answer in a text and comparing two of them.

Plain string rules for numeric answers: what `\boxed{}` problems and GSM8K need. Nothing is evaluated, so
"1/2" and "0.5" differ here; symbolic equality is what the `math` extra is for.
"""

import re

__all__ = ["answers_match", "final_answer", "last_boxed", "normalise_number"]

_BOXED = re.compile(r"\\boxed\s*\{")
_HASHES = re.compile(r"####[ \t]*(\S[^\n]*)")
# A minus is a sign only where no digit, letter or closing bracket stands before it ("5-3" is a difference).
_NUMBER = re.compile(
    r"""
    (?:(?<![\w)\]])[-\u2212])?              # sign
    [$\u20ac\u00a3\u00a5]?                  # currency
    (?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)        # 1,234 or 1234
    (?:\.\d+)?                              # decimals
    (?:/\d+)?                               # a plain fraction
    """,
    re.VERBOSE,
)
_PLAIN = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_MARKS = ("\\$", "\\%", "$", "%", "\u20ac", "\u00a3", "\u00a5")
_THIN_SPACES = ("{,}", "\\,", "\\!", "\\;", "\\ ", "~")


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}`, stripped; None without one.

    Braces may nest and escaped braces do not count. A box that never closes, as a truncated answer leaves it,
    is passed over.
    """
    for match in reversed(list(_BOXED.finditer(text))):
        end = _closing_brace(text, match.end())
        if end is not None:
            return text[match.end() : end].strip()
    return None


def final_answer(text: str) -> str | None:
    r"""The answer of a text: the last `\boxed{}`, else what follows the last `####`, else the last number.

    Returns:
        The answer as written (see `normalise_number`), or None when the text holds none of the three.
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    hashes = _HASHES.findall(text)
    if hashes:
        return hashes[-1].strip()
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def normalise_number(text: str) -> str:
    r"""One spelling for one number.

    Taken away: surrounding space and `$` delimiters, currency and percent signs, thousands separators, a plus
    sign, leading zeros, zeros behind the decimals, a final period. Anything that is then no plain decimal
    number, fractions such as `1/2` and `\frac{1}{2}` among it, is returned without those marks and otherwise
    as it is.

    >>> normalise_number("$1,234.50.")
    '1234.5'
    """
    bare = text.strip().replace("\u2212", "-")
    for mark in _THIN_SPACES:
        bare = bare.replace(mark, "," if mark == "{,}" else "")
    for mark in _MARKS:
        bare = bare.replace(mark, "")
    bare = bare.strip().removesuffix(".").strip()
    if _GROUPED.fullmatch(bare):
        bare = bare.replace(",", "")
    match = _PLAIN.fullmatch(bare.replace(" ", "") if re.fullmatch(r"[+-]\s*[\d.]+", bare) else bare)
    if match is None or not (match[2] or match[3]):
        return bare
    whole = match[2].lstrip("0") or "0"
    decimals = (match[3] or "").rstrip("0")
    number = f"{whole}.{decimals}" if decimals else whole
    return f"-{number}" if match[1] == "-" and number != "0" else number


def answers_match(a: str | None, b: str | None) -> bool:
    """Whether two answers are the same after `normalise_number`; a missing answer matches nothing."""
    if a is None or b is None:
        return False
    return normalise_number(a) == normalise_number(b)


def _closing_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the one before `start`."""
    depth, place = 1, start
    while place < len(text):
        if text[place] == "\\":
            place += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
        place += 1
    return None
