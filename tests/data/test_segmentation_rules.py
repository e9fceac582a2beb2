"""Rules that hold for every splitter and any text, on texts made by a seeded generator."""

from __future__ import annotations

import random
import re

import pytest

from stepjepa.data.steps import STYLES, Text, make_splitter

ALL = {name: make_splitter(name, r"^\W*\w" if name == "regex" else "\n\n") for name in STYLES}
BLOCKS = {
    "thinking": "<think>a\n\nb. C.\n\n1. x\n2. y\n### z\n\nFirst, a</think>",
    "fence": "```py\na\n\n1. b\n2. c\n\nStep 1: d\n```",
    "tildes": "~~~\na\n\n```\n# b\n# c\n~~~",
    "dollars": "$$\na\n\n= b. C\n$$",
    "brackets": "\\[\na\n\n2. b\n\\]",
    "environment": "\\begin{align*}\na\n\n2. b\n\\end{align*}",
    "table": "| a | b |\n|---|---|\n| 1. c | d. E |",
}
PIECES = [
    "1. ", "2. ", "\n1. a", "\n2. b", "\n3) c", "Step 1: ", "\nStep 2: ", "**", "# ", "\n### ", "> ", "a) ", "II. ",
    "(3) ", "word", ". ", "x = 4", "\n", "\n\n", "\r\n", "\r", " ", "\t", "\u00a0", "\u2028", "\0",
    "\u7b2c\u4e00\u6b65", "\uff11\uff0e", "e\u0301", "\u05d0", "\U0001f44d", "```", "~~~", "$$", "$", "\\[", "\\]",
    "\\begin{x}", "\\end{x}", "<think>", "</think>", "First, ", "\n\nThen, ", "\n\nFinally, ", "**Answer:** 5",
    "#### 5", "|", "\n|---|", "- ", "---", "\x1c", "\x85", "1\ufe0f\u20e3",
]  # fmt: skip


def check(splitter, text):
    """Spans cover the text in order, and none is blank."""
    spans = splitter.spans(text)
    if not text.strip():
        assert spans == [], repr(text)
        return spans
    assert spans[0][0] == 0 and spans[-1][1] == len(text), repr(text)
    assert all(left[1] == right[0] for left, right in zip(spans[:-1], spans[1:], strict=True)), repr(text)
    assert all(text[start:end].strip() for start, end in spans), repr(text)
    return spans


@pytest.mark.parametrize("name", STYLES)
def test_any_text_is_covered_in_order(name):
    numbers = random.Random(name)
    for round_ in range(3000):
        if round_ % 3:
            text = "".join(numbers.choices(PIECES, k=numbers.randrange(30)))
        else:
            planes = [(0, 0x80), (0, 0x3000), (0x3000, 0xE000), (0xD800, 0x10000), (0x10000, 0x110000)]
            text = "".join(chr(numbers.randrange(*numbers.choice(planes))) for _ in range(numbers.randrange(40)))
        spans = check(ALL[name], text)
        assert ALL[name].spans("".join(text[start:end] for start, end in spans)) == spans


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_nothing_cuts_inside_a_block(name, end):
    numbers = random.Random(name)
    for _ in range(400):
        text, blocks = "", []
        for number in range(1, numbers.randrange(2, 7)):
            text += numbers.choice(
                ["", f"{number}. Look. ", f"Step {number}: see\n", "## Part\n", "First, so\n", "- a\n"]
            )
            text += "" if not text or text.endswith("\n") else numbers.choice(["\n", "\n\n", "\n   "])
            block = numbers.choice(list(BLOCKS.values()))
            blocks.append((len(text), len(text) + len(block)))
            text += block + numbers.choice(["\n", "\n\n", "\n\nThen, it ends. Or not?\n\n"])
        windows = [(start + text[:start].count("\n"), stop + text[:stop].count("\n")) for start, stop in blocks]
        text, blocks = (text.replace("\n", end), windows) if end == "\r\n" else (text, blocks)
        cuts = [start for start, _ in check(ALL[name], text)]
        assert not [cut for cut in cuts for start, stop in blocks if start < cut < stop], repr(text)


MARKERS = {
    "dot": lambda n: f"{n}. ",
    "bracket": lambda n: f"{n}) ",
    "brackets": lambda n: f"({n}) ",
    "step": lambda n: f"Step {n}: ",
    "bold": lambda n: f"**Step {n}:** ",
    "bold number": lambda n: f"**{n}.** ",
    "heading": lambda n: f"### Step {n}: Title\n",
    "number heading": lambda n: f"## {n}. Title\n\n",
    "letter": lambda n: f"{'abcdefgh'[n - 1]}) ",
    "roman": lambda n: f"{'I II III IV V VI VII VIII'.split()[n - 1]}. ",
    "wide": lambda n: f"{chr(0xFF10 + n)}\uff0e",
    "circled": lambda n: chr(0x245F + n),
    "chinese": lambda n: f"\u7b2c{'一二三四五六七八'[n - 1]}步：",
    "german": lambda n: f"{n}. Schritt: ",
}
BODIES = [
    "Add 3 and 4.", "We get\n$$\nx\n\n= 4\n$$", "Do:\n   - this\n   - that", "Write\n\n```\n1. a\n\n2. b\n```",
    "3.14 is enough.", "1.5 kg", "Look:\n\n| a | b |\n|---|---|\n| 1 | 2 |", "Note\n   1. this\n   2. that",
    "In\n2024. was it.", "So\n\n\\[\n2. x\n\\]\n\nwhere x is 3.",
]  # fmt: skip


@pytest.mark.parametrize("marker", MARKERS)
def test_numbered_steps_come_back(marker):
    numbers = random.Random(marker)
    for _ in range(150):
        bodies = [body for body in BODIES if marker != "wide" or not body[0].isdigit()]
        steps = [MARKERS[marker](number + 1) + numbers.choice(bodies) for number in range(numbers.randrange(2, 9))]
        if numbers.random() < 0.4:
            steps[0] = (
                numbers.choice(["We go on as follows.\n\n", "Given: a = 3\n", "<think>1. x\n2. y</think>\n\n"])
                + steps[0]
            )
        tail = numbers.choice(
            ["", "", "Therefore, the answer is 5.", "#### 5", "**Final Answer:** 5", "### Answer\n\n5"]
        )
        steps += [tail] if tail else []
        gap = "\n" if numbers.random() < 0.5 and not tail else "\n\n"
        for text in (gap.join(steps), gap.join(steps).replace("\n", "\r\n")):
            spans = check(ALL["numbered"], text)
            assert [text[start:end].replace("\r\n", "\n").rstrip("\n") for start, end in spans] == steps
            assert ALL["auto"].spans(text) == spans


def slow_uncut(text):
    """The blocks as one expression says it, without tables and fences behind list signs."""
    pattern = (
        r"<think>.*?(?:</think>|\Z)"
        r"|^[ \t]*(?P<fence>`{3,}(?=[^`\n]*$)|~{3,}).*?(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)"
        r"|\$\$.*?\$\$|\\\[.*?\\\]|\\begin\{(?P<env>[a-z]+\*?)\}.*?\\end\{(?P=env)\}"
    )
    matches = re.finditer(pattern, text, re.DOTALL | re.MULTILINE)
    return [(max(match.start(), match.start("fence")), match.end()) for match in matches]


def test_blocks_are_those_of_the_slow_expression():
    pieces = [
        "<think>", "</think>", "```", "````", "~~~", "```py", "$$", "\\[", "\\]", "\\begin{x}", "\\end{x}", "\\end{y}",
        "\n", "\n\n", " ", "a", "b\n", "\n```\n", "\n~~~\n",
    ]  # fmt: skip
    numbers = random.Random(0)
    compared = 0
    for _ in range(20000):
        text = "".join(numbers.choices(pieces, k=numbers.randrange(1, 14)))
        orphan = text.find("</think>") >= 0 and "<think>" not in text.partition("</think>")[0]
        if not orphan:
            assert Text(text).blocks == slow_uncut(text), repr(text)
            compared += len(slow_uncut(text)) > 1
    assert compared > 1000
