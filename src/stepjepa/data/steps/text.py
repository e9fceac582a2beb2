"""An answer as all step splitters read it: tokenised once into the blocks that are never cut, and cut into spans."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
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
_CLOSED_BY = {"think": "thought", "dollars": "dollars", "open": "close", "begin": "end"}
_TABLE_RULE = re.compile(r"^[ \t>]*(?=[|:-])\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?)?[ \t]*$", re.MULTILINE)

_PLAIN = {
    **dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000\ufeff", " "),
    **dict.fromkeys("\u2028\u2029\x85", "\n"),
    **{chr(code + 0xFEE0): chr(code) for code in (*range(0x41, 0x5B), *range(0x61, 0x7B))},
    **dict(zip("（）［］【】：＃＊－＞．", "()[][]:#*->、", strict=True)),
}
_WIDE_SIGNS = re.compile(f"[{''.join(map(re.escape, _PLAIN))}]")


class Text:
    """A text with what the splitters need of it, each found when it is first asked for.

    ``position in text`` is whether a cut there would be inside a block: a thinking block (one that does not close runs to
    the end, one that did not open starts with the text), a code fence (one that does not close runs to the end), display
    maths or a table.
    """

    def __init__(self, text: str):
        self.text = text

    @cached_property
    def lines(self) -> str:
        """The text, of the same length, with a line feed for every line end; a carriage return before one is a space."""
        text = self.text
        return text.replace("\r\n", " \n").replace("\r", "\n") if "\r" in text else text

    @cached_property
    def flat(self) -> str:
        """`lines`, of the same length, with plain forms of what is written in many ways: a space for every kind of space,
        ASCII brackets and colons for full-width ones. A full-width stop becomes the ideographic comma, which marks numbers
        as well and needs no space after it either."""
        return self.lines if self.text.isascii() else _WIDE_SIGNS.sub(lambda sign: _PLAIN[sign[0]], self.lines)

    @cached_property
    def _named_blocks(self) -> list[tuple[str, int, int]]:
        return list(_blocks(self.lines)) if any(sign in self.text for sign in _SIGNS) else []

    @property
    def thoughts(self) -> list[CharSpan]:
        """The thinking blocks."""
        return [(start, end) for kind, start, end in self._named_blocks if kind == "think"]

    @cached_property
    def blocks(self) -> list[CharSpan]:
        """All stretches that are never cut, in order of their starts."""
        blocks = [(start, end) for _, start, end in self._named_blocks]
        return sorted([*blocks, *_tables(self.lines)]) if "|" in self.text and "-" in self.text else blocks

    @cached_property
    def _reach(self) -> tuple[list[int], list[int]]:
        return [start for start, _ in self.blocks], list(accumulate((end for _, end in self.blocks), max))

    def __contains__(self, position: int) -> bool:
        starts, reach = self._reach
        before = bisect_left(starts, position)
        return before > 0 and position < reach[before - 1]

    def cut(self, cuts: Iterable[int]) -> list[CharSpan]:
        """Spans between the given positions, which cover the text; [] for a blank text.

        Cuts inside a block are dropped. A piece of white space alone joins the step before it (the first one: the next
        step), so that every step has something to say.
        """
        text = self.text
        kept = sorted({cut for cut in cuts if 0 < cut < len(text)})
        if kept and self.blocks:
            kept = [cut for cut in kept if cut not in self]
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


def _blocks(text: str) -> Iterator[tuple[str, int, int]]:
    """Kind, start and end of the blocks, in order; what is inside a block opens no other."""
    tokens = list(_TOKEN.finditer(text))
    kinds = [str(token.lastgroup) if token["fence"] is None else "fence" for token in tokens]
    numbers: dict[
        tuple[str, str | None], list[int]
    ] = {}  # of the tokens by kind, those that end an environment by its name
    for at, (kind, token) in enumerate(zip(kinds, tokens, strict=True)):
        numbers.setdefault((kind, token["end"]), []).append(at)
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
        elif kind in _CLOSED_BY:
            closing = numbers.get((_CLOSED_BY[kind], token["begin"]), [])
            first = bisect_right(closing, at)
            close = closing[first] if first < len(closing) else len(tokens) if kind == "think" else None
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
