"""What an answer's text is made of: thinking, code, display maths and tables, which are never cut; and its paragraphs.

`answer_of` is the one place that says what of a text is no thinking: what follows the last closing mark.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What opens and closes thinking: Qwen 3, R1 and most others; Magistral; Seed-OSS; Kimi-VL; Command A; Gemma 4; gpt-oss;
# Muse. A template may open it in the prompt, and the headers of the last two name whom each message is for. A mark after a
# backtick or a quotation mark is what a text is about.
_THINKING = (
    r"(?<![`\"'])(?:<(?:seed:)?think(?:ing)?>|<thought>|\[THINK\]|◁think▷|<\|START_THINKING\|>|<\|channel>thought"
    r"|<\|channel\|>(?:analysis|commentary)[^<\n]{0,80}<\|message\|>|[ ]?to=self<\|message\|>)"
)
_THOUGHT = (
    r"(?<![`\"'])(?:</(?:seed:)?think(?:ing)?>|</thought>|\[/THINK\]|◁/think▷|<\|END_THINKING\|>|<channel\|>"
    r"|<\|channel\|>final[^<\n]{0,80}<\|message\|>|[ ]?to=user<\|message\|>)"
)
MARK = re.compile(f"{_THINKING}|{_THOUGHT}")
_OPENED = re.compile(rf"{_THINKING}\s*\Z")
_LONGEST_MARK = 16  # tokens
# Tokens of the marks, which some tokenizers hold for special ones, and would leave out of a decoded text.
_MARK_TOKENS = frozenset(
    "<think> </think> [THINK] [/THINK] ◁think▷ ◁/think▷ <|START_THINKING|> <|END_THINKING|> <|channel> <channel|> "
    "<|channel|> <|message|>".split()
)
# Whatever opens or closes a block. A fence opens at the start of a line, or after the sign of a quote or a list item.
_TOKEN = re.compile(
    rf"(?P<think>{_THINKING})|(?P<thought>{_THOUGHT})"
    r"|^[ \t>]*(?P<item>(?:[-*+]|\d{1,3}[.)])[ \t]+)?(?P<fence>`{3,}|~{3,})(?=(?P<info>[^\n]*))"
    r"|(?P<dollars>\$\$)"
    r"|(?P<open>\\\[)|(?P<close>\\\])"
    r"|\\begin\{(?P<begin>[A-Za-z]+\*?)\}|\\end\{(?P<end>[A-Za-z]+\*?)\}",
    re.MULTILINE,
)
# A text without any of them has no block but tables.
_SIGNS = ("think", "THINK", "thought>", "channel", "message|>", "```", "~~~", "$$", "\\[", "\\begin{")
_CLOSED_BY = {"think": "thought", "dollars": "dollars", "open": "close", "begin": "end"}
_TABLE_RULE = re.compile(r"^[ \t>]*(?=[|:-])\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?)?[ \t]*$", re.MULTILINE)
# Statements that an equation may be, too.
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)


class UncutBlock(NamedTuple):
    """A stretch that is never cut: its kind (``think``, ``fence``, ``table`` or one of maths), and its characters."""

    kind: str
    start: int
    end: int

    @property
    def span(self) -> tuple[int, int]:
        """Its first character, and the one after its last."""
        return self.start, self.end


def blocks_of(text: str) -> list[UncutBlock]:
    """The blocks of a text whose lines end in line feeds; tables come last."""
    blocks = list(_blocks(text)) if any(map(text.__contains__, _SIGNS)) else []
    if "|" in text and "-" in text:
        blocks += _tables(text)
    return blocks


def answer_of(text: str) -> str:
    """What a text says after its last thinking; empty where thinking does not end, the text itself where there is none."""
    if not has_thinking(text):
        return text
    ends = [end for _, end in text_of(text).thoughts]
    return text[max(ends, default=0) :]


def has_thinking(text: str) -> bool:
    """Whether a text has marks of thinking. Those inside of Python, in its strings and comments, are what it is about."""
    if MARK.search(text) is None:
        return False
    return MARK.match(text.lstrip()) is not None or not is_python(text)  # [THINK] is a list in Python


def is_python(text: str) -> bool:
    """Whether a text is Python that other white space would change."""
    if "\n" not in text:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a string
            statements = ast.parse(textwrap.dedent(text)).body  # the body of a function is indented as a block
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    calls = any(isinstance(one, ast.Expr) and isinstance(one.value, ast.Call) for one in statements)
    indented = re.search(r"\n[ \t]+\S", text) is not None
    return indented or calls or not all(isinstance(one, _SIMPLE) for one in statements)


def marked_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str | None:
    """The text of token ids with the special tokens that mark thinking, and without other ones; None where none marks it."""
    special = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    if not any(special.get(number) in _MARK_TOKENS for number in ids):
        return None
    kept = [number for number in ids if special.get(number) in _MARK_TOKENS or number not in special]
    return str(tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def opened_in(tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int]) -> str:
    """The mark with which a prompt opens thinking at its end, so that the answer starts inside; empty without one."""
    end = list(prompt[-_LONGEST_MARK:])
    mark = _OPENED.search(str(tokenizer.decode(end, skip_special_tokens=False)))
    return mark[0] if mark else ""


def _blocks(text: str) -> Iterator[UncutBlock]:
    """The blocks but for tables, in order; what is inside a block opens no other."""
    tokens = list(_TOKEN.finditer(text))
    kinds = [str(token.lastgroup) if token["fence"] is None else "fence" for token in tokens]
    numbers: dict[tuple[str, str | None], list[int]] = {}  # of tokens by kind, of an environment's end by its name too
    for at, (kind, token) in enumerate(zip(kinds, tokens, strict=True)):
        numbers.setdefault((kind, token["end"]), []).append(at)
    at = 0
    thought = 0  # where thinking has ended last
    if "thought" in kinds and "think" not in kinds[: kinds.index("thought")]:
        at = kinds.index("thought")  # the prompt, or nobody, opened the block: a fence in it is none of the answer's
    while at < len(tokens):
        kind = kinds[at]
        token = tokens[at]
        start = token.start()
        close = None
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
            yield UncutBlock(kind, start, end)
            thought = end if kind == "think" else thought
            at = close
        elif kind == "thought":  # thinking that nothing has opened
            yield UncutBlock("think", thought, token.end())
            thought = token.end()
        at += 1


def _closes(token: re.Match[str], fence: re.Match[str]) -> bool:
    """Whether a token closes an opened fence: at least as long, and nothing else on its line."""
    same = token["fence"] is not None and token["item"] is None and token["fence"].startswith(fence["fence"])
    return same and not token["info"].rstrip(" \t").strip("`~")


def _tables(text: str) -> Iterator[UncutBlock]:
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
        yield UncutBlock("table", start, end)


# Code, whose white space must stay as it is. A text that is taken for code without being any loses nothing.

# A line that only code has: it opens a function, a class or a block, brings in a module, queries a table, is typed at
# Python's prompt, or names a rule of make.
_OPENER = re.compile(
    r"""^[ \t]*(?:
      (?:async[ ])?def[ ]\w+.*|@\w[\w.]*(?:\(.*)?
    | (?:class|interface|struct|enum|namespace|impl|trait)[ ]\w+(?:[^.\n]*|\(.*\).*)[:{(]
    | (?:if|elif|else|for|while|with|try|except|finally|match|case|switch|do)\b.*[:{]
    | (?:export[ ]|default[ ]|async[ ]|pub[ ])*(?:function|fn|func)\b.*
    | (?:public|private|protected|static|const|let|var|final|void|int|char|double|float|bool|auto|unsigned)\b.*[;{=(]
    | (?:for|while|until|if)[ ].*;[ ]*(?:do|then)|>>>[ ].*
    | [\w.$()/%-]+:[^\n]*\n+\t\S.*
    | import[ ][\w.*]+(?:[ ]as[ ]\w+)?(?:,[ ]*\w+)*;?|from[ ][\w.]+[ ]import\b.*
    | \#[ ]*(?:include[ ]*[<"]|define[ ]|ifn?def[ ]|endif\b).*|\#!/.*
    | (?:SELECT|INSERT[ ]INTO|CREATE[ ]TABLE|UPDATE|DELETE[ ]FROM)[ ].*
    )[ \t]*$""",
    re.VERBOSE | re.MULTILINE,
)
# How lines of code end, or begin.
_LINE = re.compile(r"[ \t]*(?:[})\]].*|</?\w.*>|//.*|.*[;{}\\])[ \t]*")


def holds_code(text: str) -> bool:
    """Whether there is code outside of fences: Python, a line that only code has, or half of the lines with its signs."""
    if is_python(text):
        return True
    outside: list[str] = []
    reached = 0
    for block in sorted(blocks_of(text), key=lambda block: block.start):
        outside.append(text[reached : block.start])
        reached = max(reached, block.end)
    bare = "".join([*outside, text[reached:]])
    if _OPENER.search(bare):
        return True
    lines = [line for line in bare.split("\n") if line.strip()]
    return len(lines) > 1 and 2 * sum(_LINE.fullmatch(line) is not None for line in lines) > len(lines)


# Paragraphs, for the step splitters

CharSpan = tuple[int, int]

_PARAGRAPH = re.compile(r"\n(?:(?:[^\S\n]*\n)+|(?=#{1,6}[ \t]))")  # its start: blank lines, or a heading
_OPENING = re.compile(
    r"""(?P<lead>[ \t]*)(?:
      (?P<heading>\#{1,3}(?!\#)|\#{4,6}(?!\#|[ \t]*(?!\d{1,2}[.)][ \t])[-+$\d(\\]))(?=[ \t]|\*|[^\W\d_])
    # A rule; maths, code, a table, a quote, an item of a list.
    | (?P<block>(?:-[ \t]*){3,}(?:\n|\Z)|(?:\*[ \t]*){3,}(?:\n|\Z)|(?:_[ \t]*){3,}(?:\n|\Z)
      |\$\$|\\\[|\\begin\{|```|~~~|\||>|[-*+\u2022][ \t]|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]+)[.)][ \t])
    )?""",
    re.VERBOSE,
)
_PLAIN = {
    **dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000\ufeff", " "),
    **dict.fromkeys("\u2028\u2029\x85", "\n"),
    **dict(zip("（）［］【】：＃＊－＞．", "()[][]:#*->、", strict=True)),
}
_FLAT = str.maketrans(_PLAIN)


class Paragraph(NamedTuple):
    """Lines after a blank one, or from a heading on.

    Attributes:
        start, end: its lines, the blank ones after it included.
        width: columns of white space before it.
        level: of the heading that it is, else 0.
        prose: whether it is one of words: no heading, rule, block, or item of a list, and no small letter first, with which
            the paragraph before goes on.
    """

    start: int
    end: int
    width: int
    level: int
    prose: bool


class Text:
    """A text with what the splitters need of it, each found when it is first asked for."""

    def __init__(self, text: str):
        self.text = text
        # Of the same length, with a line feed for every line end; a carriage return before one is a space.
        self.lines = text.replace("\r\n", " \n").replace("\r", "\n")

    @cached_property
    def flat(self) -> str:
        """`lines`, of the same length, with plain forms of what is written in many ways: a space for every kind of space,
        ASCII brackets and colons for full-width ones. A full-width stop becomes the ideographic comma, which marks numbers
        as well and needs no space after it either."""
        return self.lines if self.lines.isascii() else self.lines.translate(_FLAT)

    @cached_property
    def _blocks(self) -> list[UncutBlock]:
        return blocks_of(self.lines)

    @property
    def thoughts(self) -> list[CharSpan]:
        """The thinking blocks."""
        return [block.span for block in self._blocks if block.kind == "think"]

    @cached_property
    def blocks(self) -> list[CharSpan]:
        """All stretches that are never cut, in order of their starts: thinking (a block that does not close runs to the end,
        one that did not open starts with the text), code fences (one that does not close runs to the end), display maths and
        tables."""
        return sorted(block.span for block in self._blocks)

    @cached_property
    def _reach(self) -> tuple[list[int], list[int]]:
        """Where blocks start, and how far those up to each reach."""
        return [start for start, _ in self.blocks], list(accumulate((end for _, end in self.blocks), max))

    def in_block(self, position: int) -> bool:
        """Whether a cut before a character would be inside a block."""
        starts, reach = self._reach
        before = bisect_left(starts, position)
        return before > 0 and position < reach[before - 1]

    @cached_property
    def paragraphs(self) -> list[Paragraph]:
        """The paragraphs but for the first."""
        flat = self.flat
        starts = [match.end() for match in _PARAGRAPH.finditer(flat)]
        starts = [start for start in starts if start < len(flat) and not self.in_block(start)]
        paragraphs: list[Paragraph] = []
        for start, end in pairwise([*starts, len(flat)]):
            match = _OPENING.match(flat, start)
            assert match is not None  # everything in it is optional
            heading = match["heading"]
            block = match["block"]
            begins = flat[match.end() : match.end() + 1]
            prose = heading is None and block is None and not begins.islower()
            width = len(match["lead"].expandtabs(4))
            paragraphs.append(Paragraph(start, end, width, len(heading or ""), prose))
        return paragraphs

    @cached_property
    def _starts(self) -> list[int]:
        return [paragraph.start for paragraph in self.paragraphs]

    def between(self, start: int, end: int) -> list[Paragraph]:
        """The paragraphs that start in a stretch."""
        return self.paragraphs[bisect_left(self._starts, start) : bisect_left(self._starts, end)]

    def cut(self, cuts: Iterable[int]) -> list[CharSpan]:
        """Spans between the given positions, which cover the text; [] for a blank text.

        Cuts inside a block are dropped. A piece of white space alone joins the step before it (the first one: the next
        step), so that every step has something to say.
        """
        text = self.text
        kept = sorted(cut for cut in set(cuts) if 0 < cut < len(text) and not self.in_block(cut))
        spans: list[CharSpan] = []
        piece = 0
        for end in [*kept, len(text)]:
            if text[piece:end].strip():
                spans.append((piece if spans else 0, end))
            elif spans:
                spans[-1] = (spans[-1][0], end)
            piece = end
        return spans


text_of = lru_cache(maxsize=4)(Text)  # of a text that several ask for, one after the other
