"""Step splitters: expected steps are typed by hand, and random texts are cut without loss or overlap."""

import pytest

from stepjepa.data.steps import STYLES, StepSplitter, Text, make_splitter
from stepjepa.errors import ConfigError

NAMES = [name for name in STYLES if name != "regex"]


def cut(name, text, **options):
    """The steps of a text; that they cover it is checked on the way."""
    spans = make_splitter(name, **options).spans(text)
    check_cover(text, spans)
    return [text[start:end] for start, end in spans]


def check_cover(text, spans):
    if not text.strip():
        assert spans == []
        return
    assert spans[0][0] == 0 and spans[-1][1] == len(text)
    assert all(left[1] == right[0] for left, right in zip(spans[:-1], spans[1:], strict=True))
    assert all(text[start:end].strip() for start, end in spans)


@pytest.mark.parametrize(
    "steps",
    [
        ["One.\n\n", "Two.\n\n", "Three."],
        ["One.\n\n", "Two.\n\n"],
        ["\n\nOne.\n\n", "Two."],
        ["\n \n\t\nOne.\n\n\n\n", "Two.\n\n\n"],
        ["One.\r\n\r\n", "Two.\r\nstill two\r\n\r\n\r\n", "Three.\r\n"],
        ["One. \n  \t \n", "  Two."],
        ["One.\n\u00a0\n", "Two."],
        ["One.\nstill one"],
        ["Only."],
        ["e\u0301.\n\n", "\u0301\U0001f600\n\n", "\u200b"],
        ["<|eot_id|>\n\n", "</s>"],
    ],
)
def test_blank_lines(steps):
    assert cut("separator", "".join(steps)) == steps


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", " ", "\n\n", "\r\n \r\n"])
def test_a_blank_text_has_no_steps(name, text):
    assert cut(name, text) == []


@pytest.mark.parametrize(
    ("separator", "steps"),
    [
        ("\n", ["One\n", "Two\n\n", "Three"]),
        ("\n\n\n", ["One\n\nstill\n\n\n", "Two"]),
        ("\r\n\r\n", ["One\n\n", "Two\r\n\r\n", "Three"]),
        ("\\n\\n", ["One\n\n", "Two"]),
        ("\\t", ["One\t\t", "Two"]),
        ("##", ["One ##\n\n", "Two####", "Three## ##\n", "Four"]),
        ("##", ["## One"]),
        ("\n---", ["One\n---\n---\n", "Two"]),
        ("---", ["---\n\n---\nOne\n---\n\n", "Two---"]),
        ("  ", ["One  ", "Two   ", "Three four"]),
        (".*", ["a.b.*", "c"]),
        ("</think>", ["<think>a</think>", "b"]),
        ("; ", ["a; ", "b;c"]),
    ],
)
def test_other_separators(separator, steps):
    assert cut("separator", "".join(steps), separator=separator) == steps


def test_an_empty_separator_and_an_unknown_splitter_are_refused():
    with pytest.raises(ConfigError, match="step_separator is empty"):
        StepSplitter("separator", "")
    with pytest.raises(ConfigError, match="known splitters: separator, numbered, lines"):
        make_splitter("paragraphs")


UNCUT = [
    "<think>\nA.\n\nB.\n</think>",
    "```python\na = 1\n\nb = 2\n```",
    "   ~~~~\na\n~~~\n\nb\n~~~~",
    "$$\nx = 1\n\n+ 2\n$$",
    "\\[\nx\n\n= 1\n\\]",
    "\\begin{align*}\nx &= 1\n\n\\\\ y &= 2\n\\end{align*}",
]


@pytest.mark.parametrize("block", UNCUT)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_blocks_are_never_cut(block, end):
    steps = [f"Before.\n\n{block}\n\n", "Between.\n\n", f"{block}\n\n", "After."]
    steps[:1] = ["Before.\n\n", f"{block}\n\n"]
    steps = [step.replace("\n", end) for step in steps]
    assert cut("separator", "".join(steps)) == steps
    alone = block.replace("\n", end)
    assert cut("lines", alone) == [alone]
    assert cut("lines", f"a{end}{alone}{end}b") == [f"a{end}", f"{alone}{end}", "b"]
    # The indentation of a fence goes with the separator's white space.
    indent = " " * (len(alone) - len(alone.lstrip()))
    steps = [f"a ##{end}{indent}", f"{alone.lstrip()}{end}##", "b"]
    assert cut("separator", "".join(steps), separator="##") == steps


def test_blocks_that_do_not_close_or_did_not_open():
    assert cut("separator", "A.\n\n```\nx\n\ny") == ["A.\n\n", "```\nx\n\ny"]
    assert cut("separator", "A.\n\n<think>x\n\ny") == ["A.\n\n", "<think>x\n\ny"]
    assert cut("separator", "x\n\ny</think>\n\nA.\n\nB.") == ["x\n\ny</think>\n\n", "A.\n\n", "B."]
    assert cut("separator", "It costs $$ now.\n\nB.") == ["It costs $$ now.\n\n", "B."]
    assert cut("separator", "A \\[ b\n\nB.") == ["A \\[ b\n\n", "B."]
    assert cut("separator", "```x``` is code\n\nB.\n\n```y```") == ["```x``` is code\n\n", "B.\n\n", "```y```"]


def test_lines():
    assert cut("lines", "a = 1\n\nb = 2\r\n  \r\nc\rd\n#### 3\n") == [
        "a = 1\n\n",
        "b = 2\r\n  \r\n",
        "c\r",
        "d\n",
        "#### 3\n",
    ]


@pytest.mark.parametrize(
    "steps",
    [
        ["Step 1: a\n\nmore\n\n", "Step 2: b\n", "step 3 - c"],
        ["1. a\n", "2. b\n\n", "10. c"],
        ["1) a\n", "2) b"],
        ["**Step 1**\na\n\n", "**Step 2: b**\n", "**Step 3 (last)** c"],
        ["### Step 1\na\n\n", "### Step 2 Finish\nb"],
        ["## 1. Title\r\n1. x\r\n2. y\r\n", "## 2. Title\r\nb"],
        ["**1.** a\n", "**2.** b\n"],
        ["**1. Title**\n1. x\n2. y\n", "**2. Title**\nb"],
        ["Here is how.\n\n1. a\n", "2. b"],
        ["\n\nStep 1. a\n", "Step 2. b\n\n", "So it is 4."],
        ["1. a\n   1. x\n   2. y\n", "2. b\n\t1. z\n"],
        ["Step 1: a\n1. x\n2. y\n", "Step 2: b\n1. z\n"],
        ["Step 1: a\n1. x\n2. y\n"],
        ["  1. a\n     1. x\n", "  2. b"],
        ["1. a\n", "1. b\n", "1. c"],
        ["1. There are\n3.5 apples\n12.\n2020. a year\n", "2. b\n3:30 is late\n3, too"],
        ["1. a\nStep 2 gives 5 and\nStep 2.5 nothing\n", "2. b"],
        ["1. a\n```\n2. no\n```\n", "2. b\n$$\n3. x\n$$\n"],
        ["1. a\n```\nStep 1: x\nStep 2: y\n```\n", "2. b"],
        ["Only 1. one"],
        ["3. alone\n\nand more"],
    ],
)
def test_numbered(steps):
    assert cut("numbered", "".join(steps)) == steps


def test_cuts_out_of_order_and_out_of_range():
    assert Text("ab c").cut([3, 1, 1, 0, 4, 9, -2]) == [(0, 1), (1, 3), (3, 4)]
