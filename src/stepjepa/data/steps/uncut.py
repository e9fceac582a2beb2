"""What all step splitters share: the stretches of a text that are never cut, and spans from cuts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

CharSpan = tuple[int, int]

# Whatever opens or closes a block. A fence opens at the start of a line, or after the sign of a quote or a list item.
_TOKEN = re.compile(
    r"(?P<think><think(?:ing)?>|\[THINK\])"
    r"|(?P<thought></think(?:ing)?>|\[/THINK\])"
    r"|^[ \t>]*(?P<item>(?:[-*+]|\d{1,3}[.)])[ \t]+)?(?P<fence>`{3,}|~{3,})(?=(?P<info>[^\n]*))"
    r"|(?P<dollars>\$\$)"
    r"|(?P<open>\\\[)|(?P<close>\\\])"
    r"|\\begin\{(?P<begin>[A-Za-z]+\*?)\}|\\end\{(?P<end>[A-Za-z]+\*?)\}",
    re.MULTILINE,
)
_SIGNS = ("think", "THINK]", "```", "~~~", "$$", "\\[", "\\begin{")  # a text without any of them has no block
_CLOSED_BY = {"think": "thought", "dollars": "dollars", "open": "close"}
_TABLE_RULE = re.compile(r"^[ \t>]*(?=[|:-])\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?)?[ \t]*$", re.MULTILINE)

_PLAIN = {
    **dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000\ufeff", " "),
    **dict.fromkeys("\u2028\u2029\x85", "\n"),
    **{chr(code + 0xFEE0): chr(code) for code in (*range(0x41, 0x5B), *range(0x61, 0x7B))},
    **dict(zip("（）［］【】：＃＊－＞．", "()[][]:#*->、", strict=True)),
}
_WIDE_SIGNS = re.compile(f"[{''.join(map(re.escape, _PLAIN))}]")


def line_feeds(text: str) -> str:
    """`text`, of the same length, with a line feed for every line end; a carriage return before one becomes a space."""
    return text.replace("\r\n", " \n").replace("\r", "\n") if "\r" in text else text


def flat(text: str) -> str:
    """`text`, of the same length, with plain forms of what is written in many ways: `line_feeds`, a space for every kind of
    space, ASCII brackets and colons for full-width ones. A full-width stop becomes the ideographic comma, which marks
    numbers as well and needs no space after it either.
    """
    text = line_feeds(text)
    return text if text.isascii() else _WIDE_SIGNS.sub(lambda sign: _PLAIN[sign[0]], text)


class Uncut:
    """The stretches of a text that are never cut: `position in Uncut(text)` is whether a cut there would be inside one.

    They are thinking blocks (one that does not close runs to the end, one that did not open starts with the text), code
    fences (one that does not close runs to the end), display maths and tables.

    Attributes:
        spans: all of them.
        thoughts: the thinking blocks among them.
    """

    def __init__(self, text: str, more: Sequence[CharSpan] = ()):
        text = line_feeds(text)
        blocks = list(_blocks(text)) if any(sign in text for sign in _SIGNS) else []
        self.thoughts = [(start, end) for kind, start, end in blocks if kind == "think"]
        self.spans = [(start, end) for _, start, end in blocks]
        if more or ("|" in text and "-" in text):
            self.spans = sorted([*self.spans, *_tables(text), *more])
        self._starts = [start for start, _ in self.spans]
        self._reach = list(accumulate((end for _, end in self.spans), max))

    def __contains__(self, position: int) -> bool:
        before = bisect_left(self._starts, position)
        return before > 0 and position < self._reach[before - 1]


def _blocks(text: str) -> Iterator[tuple[str, int, int]]:
    """Kind, start and end of the blocks, in order; what is inside a block opens no other."""
    tokens = list(_TOKEN.finditer(text))
    kinds = [str(token.lastgroup) if token["fence"] is None else "fence" for token in tokens]
    # The last token of each kind tells at once that an opening one has no closing one.
    last = {(kind, token["end"]): at for at, (kind, token) in enumerate(zip(kinds, tokens, strict=True))}
    at = 0
    if "thought" in kinds and "think" not in kinds[: kinds.index("thought")]:
        at = kinds.index("thought") + 1  # the prompt, or nobody, opened the block
        yield "think", 0, tokens[at - 1].end()
    while at < len(tokens):
        kind, token = kinds[at], tokens[at]
        start, close = token.start(), None
        if kind == "fence":
            start = token.start("fence")
            if "~" in token["fence"] or "`" not in token["info"]:
                close = next((n for n in range(at + 1, len(tokens)) if _closes(tokens[n], token)), len(tokens))
        elif kind == "begin":
            if last.get(("end", token["begin"]), -1) > at:
                close = _environment_end(tokens, at, last["end", token["begin"]])
        elif last.get((_CLOSED_BY.get(kind, ""), None), -1) > at:
            close = kinds.index(_CLOSED_BY[kind], at + 1)
        elif kind == "think":
            close = len(tokens)
        if close is not None:
            end = len(text)
            if close < len(tokens):
                end = tokens[close].end() + (len(tokens[close]["info"]) if kind == "fence" else 0)
            yield kind, start, end
            at = close
        at += 1


def _closes(token: re.Match[str], fence: re.Match[str]) -> bool:
    """Whether a token closes an opened fence: at least as long, and nothing else on its line."""
    same = token["fence"] is not None and token["item"] is None and token["fence"].startswith(fence["fence"])
    return same and not token["info"].rstrip(" \t").strip("`~")


def _environment_end(tokens: list[re.Match[str]], at: int, last: int) -> int:
    """The token that ends the LaTeX environment opened at `at`, environments of the same name inside it counted."""
    name, depth = tokens[at]["begin"], 0
    for number in range(at, last):
        depth += (tokens[number]["begin"] == name) - (tokens[number]["end"] == name)
        if not depth:
            return number
    return last


def _tables(text: str) -> Iterator[CharSpan]:
    """Markdown tables: a line with a bar, the rule below it, and the lines with bars that follow."""
    reached = 0
    for rule in _TABLE_RULE.finditer(text):
        start = text.rfind("\n", 0, max(rule.start() - 1, 0)) + 1
        end = rule.end()
        if rule.start() <= reached or "|" not in text[start : rule.start()]:
            continue
        while end < len(text):
            stop = text.find("\n", end + 1)
            stop = stop if stop >= 0 else len(text)
            if "|" not in text[end + 1 : stop]:
                break
            end = stop
        reached = end
        yield start, end


def spans_from_cuts(text: str, cuts: Iterable[int], uncut: Uncut | None = None) -> list[CharSpan]:
    """Spans between the given cut positions.

    Cuts inside a thinking block, a code fence, display maths or a table are dropped. A piece of white space alone joins
    the step before it (the first one: the next step), so that every step has something to say.

    Args:
        uncut: `Uncut(text)`, where the caller has it already.
    """
    kept = sorted({cut for cut in cuts if 0 < cut < len(text)})
    if kept:
        uncut = uncut or Uncut(text)
        kept = [cut for cut in kept if cut not in uncut]
    spans: list[CharSpan] = []
    start = piece = 0
    for end in [*kept, len(text)]:
        if end > piece and not text[piece:end].isspace():
            spans.append((start, end))
            start = end
        elif spans:
            spans[-1] = (spans[-1][0], end)
            start = end
        piece = end
    return spans
