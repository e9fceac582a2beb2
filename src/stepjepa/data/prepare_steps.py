r"""From a response to its steps: thinking marks, splitting, pieces that are too short, the final answer.

Steps are joined by blank lines in the prepared chat, so no step may hold one: what training's default splitter finds in the
chat are exactly these steps.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from stepjepa.data.chat import RowError
from stepjepa.data.prepare_formats import Example
from stepjepa.data.prepare_options import OWN_STEPS, PUBLISHED_LENGTH, PrepareOptions
from stepjepa.data.splitters_base import Uncut
from stepjepa.data.steps import LISTED, StepSplitter, make_splitter

_THINK_MARK = re.compile(r"</?think(?:ing)?>|\[/?THINK\]")
_JOIN = "\n\n"
_WIDE = 4  # letters that a character of Chinese, Japanese or Korean counts for


class FoundSteps(NamedTuple):
    """Steps, and how many of the pieces that the splitter found are none because they were too short."""

    steps: list[str]
    short: int


class StepFinder:
    """Finds the steps of examples of one format.

    Args:
        format: a format of `PrepareOptions` other than ``auto``.

    Attributes:
        least: what `length` of a step is at least.
    """

    def __init__(self, format: str, options: PrepareOptions):
        named = format in ("gsm8k", *OWN_STEPS) or options.step_splitter == LISTED
        style = options.step_splitter
        if style in ("auto", LISTED):
            style = "lines" if named else "auto"
        self._splitter = make_splitter(style, options.step_separator)
        self._blank_lines = make_splitter("separator")
        least = options.min_step_length
        self.least = (1 if named else PUBLISHED_LENGTH) if least is None else least
        self._drop_short, self._keep_thinking = options.drop_short, options.keep_thinking
        self._boxed = options.final_answer == "boxed"

    def __call__(self, example: Example) -> FoundSteps:
        """The steps, the final answer at the end of the last one.

        Raises:
            RowError: the response is nothing but thoughts.
        """
        pieces: Sequence[str]
        if example.pieces is None:
            parts = response_parts(example.response, self._keep_thinking)
            pieces = [piece for part in parts for piece in _cut(part, self._splitter)]
        else:
            pieces = example.pieces
        pieces = [self._one_paragraph(piece) for piece in pieces if piece.strip()]
        found = len(pieces)
        pieces = fit_lengths(pieces, self.least, self._drop_short)
        short = found - len(pieces)
        if example.final is not None:
            final = f"\\boxed{{{example.final}}}" if self._boxed else f"#### {example.final}"
            pieces = [*pieces[:-1], f"{pieces[-1]}\n{final}"] if pieces else [final]
        # A code fence that never closes, for one, makes one step of all behind it.
        return FoundSteps([step.strip() for step in _cut(_JOIN.join(pieces), self._blank_lines)], short)

    def _one_paragraph(self, piece: str) -> str:
        piece = piece.strip()
        if "\n" not in piece:
            return piece
        return "\n".join(part.strip() for part in _cut(piece, self._blank_lines))


def response_parts(text: str, keep_thinking: bool) -> list[str]:
    """A response without its thinking blocks; with `keep_thinking` what stands inside and between them, without the marks.

    A template may open the block in the prompt, so that the response holds the closing mark alone.

    Raises:
        RowError: nothing is left.
    """
    if not _THINK_MARK.search(text):
        return [text]
    pieces, at = [], 0
    for start, end in Uncut(text).thoughts:
        pieces.append(text[at:start])
        if keep_thinking:
            pieces.append(text[start:end])
        at = end
    pieces.append(text[at:])
    # Marks in a code fence are what the code is about.
    parts = [(piece if "```" in piece else _THINK_MARK.sub("", piece)).strip() for piece in pieces]
    parts = [part for part in parts if part]
    if not keep_thinking and parts:
        parts = [_JOIN.join(parts)]
    if not parts:
        raise RowError("only_thinking", "the response is a thinking block and nothing else; --keep_thinking keeps it")
    return parts


def length(piece: str) -> int:
    """Characters; a wide one (Chinese, Japanese, Korean) says about as much as four letters, and counts as four."""
    if piece.isascii():
        return len(piece)
    return sum(_WIDE if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in piece)


def fit_lengths(pieces: Sequence[str], least: int, drop: bool) -> list[str]:
    """Pieces of a `length` of `least` or more.

    A shorter one joins the piece behind it if it is a heading or the first, else the one before it. With `drop` it is left
    out, unless it holds the final answer.
    """
    fitting: list[str] = []
    lead = ""
    for piece in pieces:
        if lead:
            piece, lead = f"{lead}\n{piece}", ""
        if length(piece) >= least:
            fitting.append(piece)
        elif drop and not _has_answer(piece):
            continue
        elif _is_heading(piece) or not fitting:
            lead = piece
        else:
            fitting[-1] += f"\n{piece}"
    if lead and fitting:
        fitting[-1] += f"\n{lead}"
    elif lead:
        fitting.append(lead)
    return fitting


def _cut(text: str, splitter: StepSplitter) -> list[str]:
    return [text[start:end] for start, end in splitter.spans(text)]


def _has_answer(piece: str) -> bool:
    return "\\boxed" in piece or "####" in piece


def _is_heading(piece: str) -> bool:
    return piece.startswith(("#", "---")) or piece.rstrip("*_ ").endswith(":") or (piece[:2] == piece[-2:] == "**")
