"""Answers in many styles with hand-marked steps (`answers/*.txt`): how many are cut as marked, by `auto` and by name; and
rules that hold for every splitter and any text, on texts made by a seeded generator.

A file holds answers behind lines ``=== title | style``, with `` crlf`` behind the style for Windows line ends. The sign
U+2016 stands where a new step begins, U+237D for a non-breaking space.
"""

import random
import re
from pathlib import Path

import pytest

from stepjepa.data.steps import STYLES, make_splitter

FOLDER = Path(__file__).parent / "answers"
HEAD = re.compile(r"(?P<title>.+) \| (?P<style>\w+)(?P<crlf> crlf)?")


def answers() -> list[tuple[str, str, list[str]]]:
    """(file and title, style, steps) of every marked answer."""
    found = []
    for file in sorted(FOLDER.glob("*.txt")):
        for block in re.split(r"(?m)^=== ", file.read_text(encoding="utf-8"))[1:]:
            line, _, body = block.partition("\n")
            head = HEAD.fullmatch(line)
            assert head, f"{file.name}: {line!r}"
            body = body.strip("\n").replace("\u237d", "\u00a0")
            body = body.replace("\n", "\r\n") if head["crlf"] else body
            found.append((f"{file.stem}: {head['title']}", head["style"], body.split("\u2016")))
    return found


@pytest.mark.parametrize(("auto", "share"), [(False, 0.01), (True, 0.05)])
def test_steps_are_found_as_marked(auto, share):
    """White space around steps does not count; sentences are taken only when they are asked for."""
    marked = [case for case in answers() if not auto or case[1] != "sentence"]
    wrong = []
    for name, style, steps in marked:
        text = "".join(steps)
        spans = make_splitter("auto" if auto else style).spans(text)
        if [text[start:end].strip() for start, end in spans] != [step.strip() for step in steps]:
            wrong.append(f"{name} (found {len(spans)}, marked {len(steps)})")
    assert len(wrong) <= share * len(marked), "\n".join(wrong)


# Rules

ALL = {name: make_splitter(name, r"^\W*\w" if name == "regex" else "\n\n") for name in STYLES}
PIECES = [
    "1. ", "2. ", "\n1. a", "\n2. b", "\n3) c", "Step 1: ", "\nStep 2: ", "**", "# ", "\n### ", "> ", "a) ", "II. ",
    "(3) ", "word", ". ", "x = 4", "\n", "\n\n", "\r\n", "\r", " ", "\t", "\u00a0", "\u2028", "\0",
    "\u7b2c\u4e00\u6b65", "\uff11\uff0e", "e\u0301", "\u05d0", "\U0001f44d", "```", "~~~", "$$", "$", "\\[", "\\]",
    "\\begin{x}", "\\end{x}", "<think>", "</think>", "First, ", "\n\nThen, ", "\n\nFinally, ", "**Answer:** 5",
    "#### 5", "|", "\n|---|", "- ", "---", "\x1c", "\x85", "1\ufe0f\u20e3",
]  # fmt: skip


@pytest.mark.parametrize("name", STYLES)
def test_any_text_is_covered_in_order(name):
    numbers = random.Random(name)
    for _ in range(1500):
        text = "".join(numbers.choices(PIECES, k=numbers.randrange(30)))
        spans = ALL[name].spans(text)
        if not text.strip():
            assert spans == [], repr(text)
            continue
        assert spans[0][0] == 0 and spans[-1][1] == len(text), repr(text)
        assert all(left[1] == right[0] for left, right in zip(spans[:-1], spans[1:], strict=True)), repr(text)
        assert all(text[start:end].strip() for start, end in spans), repr(text)
