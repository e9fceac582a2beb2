"""From a response to steps: what is dropped, joined and kept; and that training finds the same steps again."""

import pytest

from stepjepa.data.prepare import PrepareOptions
from stepjepa.data.prepare.formats import RawExample, RawFormat
from stepjepa.data.prepare.rows import Converter, fit_lengths, response_parts
from stepjepa.data.steps import make_splitter
from stepjepa.errors import RowError

LONG = "A sentence that is long enough."


def found(response, format="teacher", final=None, **changes):
    """Steps, and how many pieces were too short."""
    converter = Converter(RawFormat(format), PrepareOptions(**changes), False)
    return converter.steps_of(RawExample("q", "a", None, response, final))


def steps_of(response, format="teacher", final=None, **changes):
    steps, _ = found(response, format, final, **changes)
    joined = "\n\n".join(steps)
    assert [joined[start:end].strip() for start, end in make_splitter("separator").spans(joined)] == steps
    return steps


@pytest.mark.parametrize(
    ("response", "steps"),
    [
        (
            "**Step 1:** Halve the number of clips.\n\n**Step 2:** Add both of them:\n\n\\[ 48+24 = 72 \\]",
            ["**Step 1:** Halve the number of clips.", "**Step 2:** Add both of them:\n\\[ 48+24 = 72 \\]"],
        ),
        (
            "Step 1: Halve the number of clips.\nStep 2: Add both of the numbers.",
            ["Step 1: Halve the number of clips.", "Step 2: Add both of the numbers."],
        ),
        (
            "1. **Clips in April:**\n   There were 48 clips.\n\n2. **Clips in May:**\n   Half as many.\n\n",
            ["1. **Clips in April:**\n   There were 48 clips.", "2. **Clips in May:**\n   Half as many."],
        ),
        (
            "First, I note that she sold 48 clips.\n\n\n \nIn May, she sold half as many.\r\n",
            ["First, I note that she sold 48 clips.", "In May, she sold half as many."],
        ),
        (
            f"{LONG}\n\n```python\na = 1\n\nb = 2\n```\n\n{LONG}",
            [LONG, "```python\na = 1\n\nb = 2\n```", LONG],
        ),
        (f"{LONG}\n\n```\n{LONG}\n\n{LONG}", [LONG, f"```\n{LONG}\n\n{LONG}"]),  # a fence that never closes
        (LONG, [LONG]),
    ],
)
def test_responses(response, steps):
    assert steps_of(response) == steps


def test_a_chosen_splitter():
    text = f"{LONG}\n{LONG} | {LONG}\n\n{LONG}"
    assert steps_of(text, step_splitter="lines") == [LONG, f"{LONG} | {LONG}", LONG]
    assert steps_of(text, step_splitter="separator", step_separator="|") == [f"{LONG}\n{LONG} |", f"{LONG}\n{LONG}"]


def test_the_final_answer_ends_the_last_step():
    assert steps_of(f"{LONG}\n\n{LONG}", final="1,200") == [LONG, f"{LONG}\n\\boxed{{1,200}}"]
    assert steps_of(f"{LONG}\n\n{LONG}", final="7", final_answer="keep") == [LONG, f"{LONG}\n#### 7"]
    assert steps_of("", "gsm8k", final="7") == ["\\boxed{7}"]
    assert steps_of("5*3=15\n15+1=16", "gsm8k", final="16") == ["5*3=15", "15+1=16\n\\boxed{16}"]


@pytest.mark.parametrize(
    ("pieces", "joined", "dropped"),
    [
        ([LONG, "Short.", LONG], [f"{LONG}\nShort.", LONG], [LONG, LONG]),
        (["Short.", LONG], [f"Short.\n{LONG}"], [LONG]),
        ([LONG, "**Total:**", LONG], [LONG, f"**Total:**\n{LONG}"], [LONG, LONG]),
        ([LONG, "## Step 2", "x = 1", LONG], [LONG, f"## Step 2\nx = 1\n{LONG}"], [LONG, LONG]),
        ([LONG, "---", LONG], [LONG, f"---\n{LONG}"], [LONG, LONG]),
        ([LONG, "\\boxed{72}"], [f"{LONG}\n\\boxed{{72}}"], [f"{LONG}\n\\boxed{{72}}"]),
        ([LONG, "So:", "\\boxed{72}"], [f"{LONG}\nSo:\n\\boxed{{72}}"], [f"{LONG}\n\\boxed{{72}}"]),
        (["a", "b"], ["a\nb"], []),
        (["#### 7"], ["#### 7"], ["#### 7"]),
        ([], [], []),
    ],
)
def test_pieces_that_are_too_short(pieces, joined, dropped):
    assert fit_lengths(pieces, 21, drop=False) == joined
    assert fit_lengths(pieces, 21, drop=True) == dropped
    assert fit_lengths(pieces, 1, drop=True) == pieces


def test_pieces_that_are_too_short_are_counted():
    steps, short = found(f"Short.\n\n{LONG}\n\nToo.\n\n{LONG}")
    assert short == 2 and len(steps) == 2
    assert found("a\n\nb", drop_short=True) == ([], 2)
    assert found("1+1=2\n2+1=3", "gsm8k", "3")[1] == 0


def test_wide_characters_count_for_four_letters():
    """Two short Chinese sentences are two steps; of Cyrillic, every letter is one."""
    text = "\u5c0648\u9664\u4ee52\u5f9724\u3002\n\n\u518d\u52a0\u4e0a\u539f\u6765\u7684\u6570\u3002"
    assert len(steps_of(text)) == 2
    assert fit_lengths(["\u0448" * 20, "\u0448" * 21], 21, drop=True) == ["\u0448" * 21]
    assert fit_lengths(["\u6570" * 5, "\u6570" * 6], 21, drop=True) == ["\u6570" * 6]


def test_the_published_length():
    text = "x" * 20 + "\n\n" + "y" * 21 + "\n\n" + "z" * 21
    assert steps_of(text, drop_short=True) == ["y" * 21, "z" * 21]  # 20 characters or fewer are dropped
    assert steps_of(text, "columns", min_step_length=20) == text.split("\n\n")


@pytest.mark.parametrize(
    ("text", "dropped", "kept"),
    [
        ("a <b> c", ["a <b> c"], ["a <b> c"]),
        ("<think>\nhm\n\nso\n</think>\n\nanswer", ["answer"], ["hm\n\nso", "answer"]),
        ("hm\n</think>\nanswer", ["answer"], ["hm", "answer"]),  # opened in the prompt
        ("<think>a</think>b<think>c</think>d", ["b\n\nd"], ["a", "b", "c", "d"]),
        ("[THINK]a[/THINK]b<thinking>c</thinking>", ["b"], ["a", "b", "c"]),
        ("<think>a</think>b</think>c", ["bc"], ["a", "bc"]),
        ("<think>a</think>\n```\n<think>\n```", ["```\n<think>\n```"], ["a", "```\n<think>\n```"]),
        ("b<think>never closed", ["b"], ["b", "never closed"]),
    ],
)
def test_thinking(text, dropped, kept):
    assert response_parts(text, False) == dropped
    assert response_parts(text, True) == kept


@pytest.mark.parametrize("text", ["<think>", "<think>a</think> \n", "<think>a", "a</think>"])
def test_nothing_but_thinking(text):
    with pytest.raises(RowError) as caught:
        response_parts(text, False)
    assert caught.value.reason == "only_thinking"


def test_thoughts_have_steps_of_their_own_kind():
    response = f"<think>{LONG}\n\n{LONG}</think>1. One thing after another.\n2. Another thing after it."
    assert steps_of(response, keep_thinking=True) == [
        LONG,
        LONG,
        "1. One thing after another.",
        "2. Another thing after it.",
    ]
