"""The parts of an answer's text: thinking, code, display maths and tables, which are never cut; and its paragraphs.

Only `answer_of` decides which part of a text is the answer: the part after the last closing mark of thinking.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The marks that open and close thinking in Qwen 3, R1 and most others; Magistral; Seed-OSS; Kimi-VL; Command A; Gemma 4;
# OpenThoughts; gpt-oss; Muse. The last two name the channel or the recipient of each message in its header. A mark after a
# backtick or a quotation mark is only a quotation.
_THINKING = (
    r"(?<![`\"'])(?:<(?:seed:)?think(?:ing)?>|<thought>|\[THINK\]|◁think▷|<\|START_THINKING\|>|<\|channel>thought"
    r"|<\|begin_of_thought\|>|<\|channel\|>(?:analysis|commentary)[^<\n]{0,80}<\|message\|>|[ ]?to=self<\|message\|>)"
)
_THOUGHT = (
    r"(?<![`\"'])(?:</(?:seed:)?think(?:ing)?>|</thought>|\[/THINK\]|◁/think▷|<\|END_THINKING\|>|<channel\|>"
    r"|<\|end_of_thought\|>(?:\s*<\|begin_of_solution\|>)?"
    r"|<\|channel\|>final[^<\n]{0,80}<\|message\|>|[ ]?to=user<\|message\|>)"
)
MARK = re.compile(f"{_THINKING}|{_THOUGHT}")
_OPENED = re.compile(rf"{_THINKING}\s*\Z")
# The most tokens at the end of a prompt that may form a mark.
_LONGEST_MARK = 16
# Parts of the marks that some tokenizers have as special tokens, which decoding would skip.
_MARK_TOKENS = frozenset(
    "<think> </think> [THINK] [/THINK] ◁think▷ ◁/think▷ <|START_THINKING|> <|END_THINKING|> <|channel> <channel|> "
    "<|channel|> <|message|>".split()
)
# Everything that opens or closes a block. A fence opens at the start of a line, perhaps after the sign of a quote or a list
# item.
_TOKEN = re.compile(
    rf"(?P<think>{_THINKING})|(?P<thought>{_THOUGHT})"
    r"|^[ \t>]*(?P<item>(?:[-*+]|\d{1,3}[.)])[ \t]+)?(?P<fence>`{3,}|~{3,})(?=(?P<info>[^\n]*))"
    r"|(?P<call><tool_call>)|(?P<called></tool_call>)"
    r"|(?P<dollars>\$\$)"
    r"|(?P<open>\\\[)|(?P<close>\\\])"
    r"|\\begin\{(?P<begin>[A-Za-z]+\*?)\}|\\end\{(?P<end>[A-Za-z]+\*?)\}",
    re.MULTILINE,
)
# A cheap test: a text without any of these strings has no blocks except tables.
_SIGNS = (
    "think THINK thought> thought|> channel message|> <tool_call> ``` ~~~ $$ \\[ \\begin{".split()
)
_CLOSED_BY = {
    "think": "thought",
    "call": "called",
    "dollars": "dollars",
    "open": "close",
    "begin": "end",
}
# A piece of a text that is no step of its own: white space, or the mark that ends OpenThoughts' answers.
_NO_STEP = re.compile(r"\s*(?:<\|end_of_solution\|>\s*)?")
# The rule under a table's header: |---|:--:|
_TABLE_RULE = re.compile(
    r"^[ \t>]*(?=[|:-])\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?)?[ \t]*$", re.MULTILINE
)


class UncutBlock(NamedTuple):
    """A block that is never cut: its kind (``think``, ``call``, ``fence``, ``table`` or a kind of maths) and characters."""

    kind: str
    span: CharSpan


def answer_of(text: str) -> str:
    """Return the text after the last thinking block; empty if that block never ends, the complete text if there is no
    block."""
    if not has_thinking(text):
        return text
    ends = [end for _, end in text_of(text).thoughts]
    return text[max(ends, default=0) :]


def has_thinking(text: str) -> bool:
    """Whether a text has marks of thinking. Marks in Python code, in its strings and comments, do not count."""
    if MARK.search(text) is None:
        return False
    # A mark at the start is never code, although [THINK] parses as a list.
    return MARK.match(text.lstrip()) is not None or not is_python(text)


def is_python(text: str) -> bool:
    """Whether a text is Python whose white space matters."""
    if "\n" not in text:
        return False
    try:
        with warnings.catch_warnings():
            # An invalid escape such as "\d" in a string is a SyntaxWarning.
            warnings.simplefilter("ignore")
            # An answer may be the body of a function, all of it indented.
            ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return re.search(r"\n[ \t]+\S", text) is not None


def marked_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str | None:
    """Decode token ids, and keep only those special tokens that mark thinking; None if no token marks it."""
    # Id of a special token -> whether it marks thinking.
    marks = {
        number: token.content in _MARK_TOKENS
        for number, token in tokenizer.added_tokens_decoder.items()
        if token.special
    }
    if not any(marks.get(number) for number in ids):
        return None
    kept = [number for number in ids if marks.get(number, True)]
    return str(
        tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    )


def opened_in(tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int]) -> str:
    """Return the mark that opens thinking at the end of a prompt, so that the answer starts inside it; else an empty
    string."""
    end = list(prompt[-_LONGEST_MARK:])
    mark = _OPENED.search(str(tokenizer.decode(end, skip_special_tokens=False)))
    return mark[0] if mark else ""


def _blocks(text: str) -> Iterator[UncutBlock]:
    """All blocks except tables, in order. Marks inside a block do not open another one."""
    if not any(map(text.__contains__, _SIGNS)):
        return
    tokens = list(_TOKEN.finditer(text))
    kinds = [str(token.lastgroup) if token["fence"] is None else "fence" for token in tokens]
    at = 0
    # The end of the last thinking block.
    thought = 0
    # If the prompt opened thinking, the text starts inside it, and a fence in it does not belong to the answer.
    if "thought" in kinds and "think" not in kinds[: kinds.index("thought")]:
        at = kinds.index("thought")
    while at < len(tokens):
        kind = kinds[at]
        token = tokens[at]
        start = token.start()
        # Unclosed thinking and an unclosed fence run to the end of the text; an unclosed maths delimiter is ordinary text.
        close = len(tokens) if kind in ("think", "fence") else None
        later = range(at + 1, len(tokens))
        if kind == "fence":
            start = token.start("fence")
            close = next((n for n in later if _closes(tokens[n], token)), close)
            # A line such as ```code``` is inline code, not a fence.
            if "`" in token["fence"] and "`" in token["info"]:
                close = None
        elif kind in _CLOSED_BY:
            end_of = (_CLOSED_BY[kind], token["begin"])
            close = next((n for n in later if (kinds[n], tokens[n]["end"]) == end_of), close)
        if close is not None:
            end = len(text)
            if close < len(tokens):
                end = tokens[close].end() + (len(tokens[close]["info"]) if kind == "fence" else 0)
            yield UncutBlock(kind, (start, end))
            thought = end if kind == "think" else thought
            at = close
        elif kind == "thought":
            # The end of thinking that no mark in the text opened.
            yield UncutBlock("think", (thought, token.end()))
            thought = token.end()
        at += 1


def _closes(token: re.Match[str], fence: re.Match[str]) -> bool:
    """Whether a token closes a fence: it is at least as long, and alone on its line."""
    same = (
        token["fence"] is not None
        and token["item"] is None
        and token["fence"].startswith(fence["fence"])
    )
    return same and not token["info"].rstrip(" \t").strip("`~")


def _tables(text: str) -> Iterator[UncutBlock]:
    """Markdown tables: a line with a bar, the rule below it, and the lines with bars that follow."""
    reached = 0
    for rule in _TABLE_RULE.finditer(text):
        # A table starts with the line above its rule.
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
        yield UncutBlock("table", (start, end))


# Code, whose white space must not change. Prose that is mistaken for code loses nothing.

# A line that occurs only in code: it opens a function, a class or a block, imports a module, queries a table, follows
# Python's prompt, or opens a rule of a makefile.
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
# A line that begins or ends with characters of code.
_LINE = re.compile(r"[ \t]*(?:[})\]].*|</?\w.*>|//.*|.*[;{}\\])[ \t]*")


def holds_code(text: str) -> bool:
    """Whether a text has code outside of fences: Python, a line that occurs only in code, or mostly lines that look like
    code."""
    if is_python(text):
        return True
    # The text without its blocks. Blocks may overlap (a table in thinking), so `reached` never decreases.
    outside: list[str] = []
    reached = 0
    for start, end in text_of(text).blocks:
        outside.append(text[reached:start])
        reached = max(reached, end)
    bare = "".join([*outside, text[reached:]])
    if _OPENER.search(bare):
        return True
    lines = [line for line in bare.split("\n") if line.strip()]
    return len(lines) > 1 and 2 * sum(_LINE.fullmatch(line) is not None for line in lines) > len(
        lines
    )


# Paragraphs, for the step splitters

CharSpan = tuple[int, int]

# The start of a paragraph: blank lines, or a heading.
_PARAGRAPH = re.compile(r"\n(?:(?:[^\S\n]*\n)+|(?=#{1,6}[ \t]))")
# The first characters of a paragraph, which show its kind. Every part is optional, so this pattern always matches.
_OPENING = re.compile(
    r"""(?P<lead>[ \t]*)(?:
      (?P<heading>\#{1,3}(?!\#)|\#{4,6}(?!\#|[ \t]*(?!\d{1,2}[.)][ \t])[-+$\d(\\]))(?=[ \t]|\*|[^\W\d_])
    # A rule; maths, code, a table, a quote, an item of a list.
    | (?P<block>(?:-[ \t]*){3,}(?:\n|\Z)|(?:\*[ \t]*){3,}(?:\n|\Z)|(?:_[ \t]*){3,}(?:\n|\Z)
      |\$\$|\\\[|\\begin\{|```|~~~|\||>|[-*+\u2022][ \t]|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]+)[.)][ \t])
    )?""",
    re.VERBOSE,
)
# Characters with a plain form of the same length; see `Text.flat`.
_PLAIN = {
    **dict.fromkeys(
        "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000\ufeff",
        " ",
    ),
    **dict.fromkeys("\u2028\u2029\x85", "\n"),
    **dict(zip("（）［］【】：＃＊－＞．", "()[][]:#*->、", strict=True)),
}
_FLAT = str.maketrans(_PLAIN)


class Paragraph(NamedTuple):
    """Lines after a blank line, or from a heading on.

    Attributes:
        start, end: the characters of its lines, and of the blank lines after it.
        width: columns of white space before it.
        level: level of a heading, else 0.
        prose: whether it is prose: it is not a heading, rule, block or list item, and does not begin with a lower-case
            letter, which would continue the paragraph before.
    """

    start: int
    end: int
    width: int
    level: int
    prose: bool


class Text:
    """A text and its structure for the splitters, each part computed on first use."""

    def __init__(self, text: str):
        self.text = text
        # Every line ends in a line feed. "\r\n" becomes a space and a line feed, so that positions stay valid in `text`.
        self.lines = text.replace("\r\n", " \n").replace("\r", "\n")

    @cached_property
    def flat(self) -> str:
        """`lines`, of the same length, with plain forms of its characters: a space for every kind of space, ASCII brackets
        and colons for full-width ones. A full-width stop becomes the ideographic comma, which also follows numbers and
        needs no space after it either."""
        return self.lines if self.lines.isascii() else self.lines.translate(_FLAT)

    @cached_property
    def _blocks(self) -> list[UncutBlock]:
        return [*_blocks(self.lines), *_tables(self.lines)]

    @property
    def thoughts(self) -> list[CharSpan]:
        """The thinking blocks."""
        return [block.span for block in self._blocks if block.kind == "think"]

    @cached_property
    def blocks(self) -> list[CharSpan]:
        """All blocks that are never cut, in order of their starts: thinking (an unclosed block runs to the end, an unopened
        block starts with the text), code fences (an unclosed fence runs to the end), display maths and tables."""
        return sorted(block.span for block in self._blocks)

    @cached_property
    def _reach(self) -> tuple[list[int], list[int]]:
        """The starts of the blocks, and, for each block, the largest end so far, since blocks may overlap."""
        starts = [start for start, _ in self.blocks]
        return starts, list(accumulate((end for _, end in self.blocks), max))

    def in_block(self, position: int) -> bool:
        """Whether a cut before a character would be inside a block."""
        starts, reach = self._reach
        before = bisect_left(starts, position)
        return before > 0 and position < reach[before - 1]

    @cached_property
    def paragraphs(self) -> list[Paragraph]:
        """All paragraphs except the first."""
        flat = self.flat
        starts = [match.end() for match in _PARAGRAPH.finditer(flat)]
        starts = [start for start in starts if start < len(flat) and not self.in_block(start)]
        paragraphs: list[Paragraph] = []
        for start, end in pairwise([*starts, len(flat)]):
            match = _OPENING.match(flat, start)
            assert match is not None
            heading = match["heading"]
            block = match["block"]
            begins = flat[match.end() : match.end() + 1]
            prose = heading is None and block is None and not begins.islower()
            width = len(match["lead"].expandtabs(4))
            paragraphs.append(Paragraph(start, end, width, len(heading or ""), prose))
        return paragraphs

    def between(self, start: int, end: int) -> list[Paragraph]:
        """Return the paragraphs that start in [start, end)."""
        return [paragraph for paragraph in self.paragraphs if start <= paragraph.start < end]

    def cut(self, cuts: Iterable[int]) -> list[CharSpan]:
        """Return the spans between cut positions, which cover the text; [] for a blank text.

        Cuts inside a block are dropped. A piece without text (`_NO_STEP`) joins the step before it, or, at the start of
        the text, the step after it, so that no step is blank.
        """
        text = self.text
        kept = sorted(cut for cut in set(cuts) if 0 < cut < len(text) and not self.in_block(cut))
        spans: list[CharSpan] = []
        piece = 0
        for end in [*kept, len(text)]:
            if not _NO_STEP.fullmatch(text, piece, end):
                spans.append((piece if spans else 0, end))
            elif spans:
                spans[-1] = (spans[-1][0], end)
            piece = end
        return spans


# Cached, since a splitter, its caller and `answer_of` use the same text one after the other.
text_of = lru_cache(maxsize=4)(Text)
