"""What each of the splitters decides: `auto` and its styles, patterns, sentences, steps that a column holds."""

from __future__ import annotations

import pickle

import pytest

from stepjepa.data.steps import (
    SPLITTERS,
    STYLES,
    choose_splitter,
    join_steps,
    make_splitter,
    spans_of_steps,
    splitters,
    style_and_spans,
)
from stepjepa.errors import ConfigError, DataError


def steps_of(splitter, text):
    return [text[start:end] for start, end in splitter.spans(text)]


def chosen(answers, separator="\n\n"):
    return choose_splitter([(answer, None) for answer in answers], separator)


@pytest.mark.parametrize(
    ("text", "style"),
    [
        ("1. a\n\n2. b", "numbered"),
        ("First, a.\n\nNext, b.\n\nFinally, c.", "connectives"),
        ("## A\n\na\n\n## B\n\nb", "headings"),
        ("**A**\n\na\n\n**B**\n\nb", "headings"),
        ("Ab.\n\nBc.", "separator"),
        ("Ab.\nBc.", "lines"),
        ("Ab. Bc. Cd.", "separator"),
        ("Ab.\nBc.\n\n#### 5", "lines"),
        ("Ab.\n\nBc.\n#### 5", "lines"),
        ("Ab.\n\nBc.\n\n#### 5", "separator"),
        ("Solve it:\n\n2x = 4\nx = 2", "lines"),
        ("<think>\nA.\n\nB.\n</think>\n\nCd.\nDe.", "lines"),
        (f"{'word ' * 12}and\nmore", "separator"),
    ],
)
def test_auto_says_what_it_takes(text, style):
    assert style_and_spans(text) == (style, make_splitter(style).spans(text))


def test_auto_with_a_separator():
    assert make_splitter("auto", "<S>").spans("1. a<S>2. b\n3. c") == [(0, 7), (7, 16)]
    assert make_splitter("auto", "\\n\\n") == make_splitter("auto")


def test_splitters_can_be_compared_and_pickled():
    for name in STYLES:
        splitter = make_splitter(name, "^a" if name == "regex" else "\n\n")
        assert pickle.loads(pickle.dumps(splitter)) == splitter
        assert name == "regex" or make_splitter(name) == splitter


def test_a_data_set_gets_the_style_of_most_answers():
    numbered, lines, blank = "1. a\n\n2. b\n\nSo c.", "a\nb\n#### 5", "a\n\nb"
    assert chosen([numbered] * 3 + [blank]) == "separator"  # whose blank lines serve every answer
    assert chosen([numbered.replace("\n\n", "\n")] * 3 + [blank]) == "numbered"
    assert chosen([numbered] * 3) == chosen(["x"] * 3 + [numbered]) == "separator"  # a tie
    assert chosen([lines] * 3 + [blank]) == "lines"
    assert chosen([blank] * 3 + [lines]) == "separator"
    assert chosen(["First, a.\n\nThen, b."] * 2) == "separator"
    assert chosen(["a<S>b"] * 2, "<S>") == chosen(["a", "b"]) == chosen([]) == "separator"
    assert set(SPLITTERS) == {"separator", "lines", "numbered"}


def test_known_numbers_of_steps_decide():
    numbered = "1. a\n\nb\n\n2. c"
    assert choose_splitter([(numbered, 2)] * 3) == "numbered"
    assert choose_splitter([(numbered, 3)] * 3) == "separator"
    assert choose_splitter([(numbered, 2), ("1. a\n\n2. b", 2), ("a\n\nb", 2)]) == "separator"  # as often as numbered
    assert choose_splitter([(numbered, 99)] * 3) == "separator"  # a number of something else: a tie


@pytest.mark.parametrize(
    ("pattern", "steps"),
    [
        (r"^Step \d+", ["Step 1 a\n", "Step 2 b"]),
        (r"(?=^\d:)", ["1: a\n", "2: b\n", "3: c"]),
        (r"(?P<end>;)\s", ["a;", " b;", " c"]),
        (r"\n(?P<start>So|Now) ", ["a\n", "So b\n", "Now c"]),
        (r"(?P<end>\.)$|(?P<start>Q)", ["a.", "\nb ", "Q c"]),
    ],
)
def test_regex(pattern, steps):
    text = "".join(steps)
    assert steps_of(make_splitter("regex", pattern), text) == steps


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("", "needs a pattern"),
        ("\\n\\n", "needs a pattern"),
        ("(a", "broken"),
        ("a{2", None),
        ("x*", "matches an empty text"),
        ("^", "matches an empty text"),
    ],
)
def test_patterns_are_looked_at(pattern, message):
    if message is None:
        assert make_splitter("regex", pattern)
        return
    with pytest.raises(ConfigError, match=message):
        make_splitter("regex", pattern)


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
    with pytest.raises(DataError, match="step 2 of 2 does not stand in the answer behind step 1: 'a'"):
        spans_of_steps("a b", ["b", "a"])
    assert join_steps(["a", " ", "b\n", "c"]) == "a\n\nb\n\n\nc" and join_steps([]) == ""


def test_sentences_on_lines():
    text = "The sum is\nsmall. x = 3\nHence 4\n- a\n- b\n\nAnd so on"
    assert steps_of(make_splitter("sentence"), text) == [
        "The sum is\nsmall. x = 3\n",
        "Hence 4\n",
        "- a\n",
        "- b\n\n",
        "And so on",
    ]


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        # A label or a heading ends the last item even where other items have paragraphs.
        ("numbered", ["Step 1: Do x.\n\nBecause of y.\n\n", "Step 2: Do z.\n\n", "In conclusion, done."]),
        ("numbered", ["### Step 1\nA\n", "### Step 2\nB\n", "### Final Answer\nC"]),
        ("numbered", ["1. a\n", "2. b\n\n", "So c.\n\n", "Part two:\n\n1. d\n", "2. e"]),
        ("numbered", ["(1) x = 3\n(2) y = 4\n\nBy (1) and (2), x + y = 7."]),
        ("numbered", ["(1) x is 3.\n", "(2) By (1), x + 4 is 7."]),
        ("connectives", ["First, we have a.\n", "Then b.\n", "Finally c.\n\n", "The answer is 5."]),
        ("headings", ["# T\n\n## A\n\na\n\n", "## B\n\nb\n\n", "**Answer:** 5"]),
        ("sentence", ["At the point P. ", "Then J. K. Rowling, e.g. on p. 5, says so. ", "U.S. Army."]),
    ],
)
def test_decisions(name, steps):
    assert steps_of(make_splitter(name), "".join(steps)) == steps


def test_a_data_set_of_several_styles_is_left_to_each_answer():
    styles = ["1. a\n   - b\n2. c", "x\n\ny", "a short line\nanother one"]
    assert chosen(styles * 3 + ["x"]) == "auto"
    assert chosen(styles[:1] * 7 + styles[1:]) == "numbered"
