"""The stretches of a text that are one piece: thinking, code fences, display maths and tables.

`answer_of` is the one place that says what of a text is no thinking: what follows the last closing mark.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
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
    lines = text.replace("\r\n", " \n").replace("\r", "\n")
    thoughts = [block.end for block in blocks_of(lines) if block.kind == "think"]
    return text[max(thoughts, default=0) :]


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
