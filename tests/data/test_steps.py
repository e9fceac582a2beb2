"""Step splitters: expected steps are typed by hand; what `auto` and a data set's splitter decide."""

import pytest

from stepjepa.data import steps as splitters
from stepjepa.data.steps import choose_splitter, join_steps, make_splitter, spans_of_steps
from stepjepa.errors import ConfigError, DataError


def cut(name, text, separator="\n\n"):
    """The steps of a text; that they cover it is checked on the way."""
    spans = make_splitter(name, separator).spans(text)
    steps = [text[start:end] for start, end in spans]
    assert "".join(steps) == text and all(step.strip() for step in steps)
    return steps


@pytest.mark.parametrize(
    "steps",
    [
        ["One.\n\n", "Two.\n\n", "Three."],
        ["\n\nOne.\n\n", "Two."],
        ["\n \n\t\nOne.\n\n\n\n", "Two.\n\n\n"],
        ["One.\r\n\r\n", "Two.\r\nstill two\r\n\r\n\r\n", "Three.\r\n"],
        ["One. \n  \t \n", "  Two."],
        ["e\u0301.\n\n", "\u0301\U0001f600\n\n", "\u200b"],
    ],
)
def test_blank_lines(steps):
    assert cut("separator", "".join(steps)) == steps


@pytest.mark.parametrize(
    ("name", "separator", "steps"),
    [
        ("separator", "\n", ["One\n", "Two\n\n", "Three"]),
        ("separator", "\\t", ["One\t\t", "Two"]),
        ("separator", "##", ["One ##\n\n", "Two####", "Three## ##\n", "Four"]),
        ("regex", r"^Step \d+", ["Step 1 a\n", "Step 2 b"]),
        ("regex", r"(?=^\d:)", ["1: a\n", "2: b\n", "3: c"]),
        ("auto", "<S>", ["1. a<S>", "2. b\n3. c"]),
    ],
)
def test_separators_and_patterns(name, separator, steps):
    assert cut(name, "".join(steps), separator) == steps


@pytest.mark.parametrize(
    "block",
    [
        "<think>\nA.\n\nB.\n</think>",
        "<tool_call>\n{'a': 1}\n\n{'b': 2}\n</tool_call>",
        "```python\na = 1\n\nb = 2\n```",
        "   ~~~~\na\n~~~\n\nb\n~~~~",
        "$$\nx = 1\n\n+ 2\n$$",
        "\\[\nx\n\n= 1\n\\]",
        "\\begin{align*}\nx &= 1\n\n\\\\ y &= 2\n\\end{align*}",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_blocks_are_never_cut(block, end):
    steps = ["Before.\n\n", f"{block}\n\n", "Between.\n\n", f"{block}\n\n", "After."]
    steps = [step.replace("\n", end) for step in steps]
    assert cut("separator", "".join(steps)) == steps
    alone = block.replace("\n", end)
    assert cut("lines", alone) == [alone]
    assert cut("lines", f"a{end}{alone}{end}b") == [f"a{end}", f"{alone}{end}", "b"]
    # The indentation of a fence goes with the separator's white space.
    indent = " " * (len(alone) - len(alone.lstrip()))
    steps = [f"a ##{end}{indent}", f"{alone.lstrip()}{end}##", "b"]
    assert cut("separator", "".join(steps), "##") == steps


def test_blocks_that_do_not_close_or_did_not_open():
    assert cut("separator", "A.\n\n```\nx\n\ny") == ["A.\n\n", "```\nx\n\ny"]
    assert cut("separator", "A.\n\n<think>x\n\ny") == ["A.\n\n", "<think>x\n\ny"]
    assert cut("separator", "x\n\ny</think>\n\nA.\n\nB.") == ["x\n\ny</think>\n\n", "A.\n\n", "B."]
    # The mark at the end of OpenThoughts' answers is no step.
    assert cut("separator", "A.\n\nB.\n\n<|end_of_solution|>") == ["A.\n\n", "B.\n\n<|end_of_solution|>"]
    assert cut("separator", "It costs $$ now.\n\nB.") == ["It costs $$ now.\n\n", "B."]


@pytest.mark.parametrize(
    "steps",
    [
        ["Step 1: a\n\nmore\n\n", "Step 2: b\n", "step 3 - c"],
        ["1. a\n", "2. b\n\n", "10. c"],
        ["### Step 1\na\n\n", "### Step 2 Finish\nb"],
        ["\n\nStep 1. a\n", "Step 2. b\n\n", "So it is 4."],
        ["1. a\n   1. x\n   2. y\n", "2. b\n\t1. z\n"],
        ["Step 1: a\n1. x\n2. y\n", "Step 2: b\n1. z\n"],
        ["1. There are\n3.5 apples\n12.\n2020. a year\n", "2. b\n3:30 is late\n3, too"],
    ],
)
def test_numbered(steps):
    assert cut("numbered", "".join(steps)) == steps


def test_a_data_set_gets_the_style_of_most_answers():
    numbered, lines, blank = "1. a\n\n2. b\n\nSo c.", "a\nb\n#### 5", "a\n\nb"
    assert choose_splitter([numbered] * 3 + [blank]) == "separator"  # whose blank lines serve every answer
    assert choose_splitter([numbered.replace("\n\n", "\n")] * 3 + [blank]) == "numbered"
    assert choose_splitter([numbered] * 3) == choose_splitter(["x"] * 3 + [numbered]) == "separator"  # a tie
    assert choose_splitter([lines] * 3 + [blank]) == "lines"
    assert choose_splitter([blank] * 3 + [lines]) == "separator"
    assert choose_splitter(["First, a.\n\nThen, b."] * 2) == "separator"
    assert choose_splitter(["a<S>b"] * 2, "<S>") == choose_splitter(["a", "b"]) == choose_splitter([]) == "separator"
    styles = ["1. a\n   - b\n2. c", "x\n\ny", "a short line\nanother one"]
    assert choose_splitter(styles * 3 + ["x"]) == "auto"  # several styles are left to each answer
    assert choose_splitter(styles[:1] * 7 + styles[1:]) == "numbered"


@pytest.mark.parametrize(
    ("name", "separator", "message"),
    [
        ("paragraphs", "x", "known splitters: separator, numbered, lines"),
        ("regex", "\n\n", "needs a pattern"),
        ("regex", "(a", "broken"),
        ("regex", "x*", "matches the empty string"),
    ],
)
def test_splitters_that_are_refused(name, separator, message):
    with pytest.raises(ConfigError, match=message):
        make_splitter(name, separator)


def test_a_pattern_that_never_ends_is_stopped(monkeypatch):
    monkeypatch.setattr(splitters, "PATTERN_SECONDS", 0.2)
    with pytest.raises(ConfigError, match=r"takes more than 0.2 seconds for an answer of 61 characters"):
        make_splitter("regex", r"(?:a|a|b)+(?:a|aa)+$c").spans("a" * 60 + "d")


def test_steps_of_a_column():
    text = "Intro. Add 3 and  4.\n\nHalve it. Halve it.\nDone."
    spans = spans_of_steps(text, ["Add 3 and 4.", " Halve it.", "Halve it.\n", "", "Done."])
    assert [text[start:end] for start, end in spans] == [
        "Intro. Add 3 and  4.\n\n",
        "Halve it. ",
        "Halve it.\n",
        "Done.",
    ]
    inside = "<think>a\n\nb</think>"
    assert spans_of_steps(inside, ["<think>a", "b</think>"]) == [(0, 10), (10, 19)]
    assert spans_of_steps("a", []) == [(0, 1)] and spans_of_steps(" ", []) == []
    with pytest.raises(DataError, match="step 2 of 2 is not in the answer after step 1: 'a'"):
        spans_of_steps("a b", ["b", "a"])
    assert join_steps(["a", " ", "b\n", "c"]) == "a\n\nb\n\n\nc" and join_steps([]) == ""
