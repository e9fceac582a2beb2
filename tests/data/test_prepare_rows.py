"""From a raw row to steps: formats, what is dropped, joined and kept; the expected texts are typed out, or in the docs."""

import json
import re
from pathlib import Path

import pytest

from stepjepa.data import prepare_rows
from stepjepa.data.options import PrepareOptions
from stepjepa.data.prepare import prepare
from stepjepa.data.prepare_rows import Converter, RawExample, RawFormat, read_example, recognise
from stepjepa.data.steps import make_splitter
from stepjepa.errors import DataError, RowError

GSM8K = {"question": "How many?", "answer": "He had 48/2 = <<48/2=24>>24.\nIn all 48+24 = $<<48+24=72>>72.\n#### 72"}
TEACHER = {
    "question": "How many?",
    "answer": "He had 24.\n#### 72",
    "ground_truth": 72,
    "deepseek_response": "<think>\nLet me see.\n</think>\n\nFirst, he had twenty-four of them.\n\n"
    "Then there are \\boxed{72} in all.",
}
TAUGHT = ["First, he had twenty-four of them.", "Then there are \\boxed{72} in all."]
NAMED = {"problem": "How many?", "solution": {"text": "One and one make two.\nSo the answer must be 2."}, "gold": 2.5}
NAMES = {"question_column": "problem", "response_column": "solution.text", "ground_truth_column": "gold"}
LONG = "A sentence that is long enough."


@pytest.mark.parametrize(
    ("row", "changes", "truth", "steps"),
    [
        ({**GSM8K, "answer": "a\r\nb\r\n#### 72\r\n", "ground_truth": "7"}, {}, "7", ["a", "b\n\\boxed{72}"]),
        (TEACHER, {"keep_thinking": True, "min_step_length": 1}, "72", ["Let me see.", *TAUGHT]),
        *(({**TEACHER, "ground_truth": nothing}, {}, None, TAUGHT) for nothing in (None, float("nan"), "", "  ")),
        (NAMED, NAMES, "2.5", ["One and one make two.", "So the answer must be 2."]),
    ],
)
def test_formats(row, changes, truth, steps):
    options = PrepareOptions(**changes)
    form = recognise([row], options, "a file")
    example = read_example(row, form, options)
    assert (example.question, example.ground_truth) == ("How many?", truth)
    assert Converter(form, options).steps_of(example)[1] == steps


@pytest.mark.parametrize(
    ("raw", "changes", "name"),
    [
        ([GSM8K, 3, {"id": 1}, GSM8K], {}, "gsm8k"),
        ([{"question": "a", "answer": "b\n#### 1\nc\n#### 2"}], {}, "columns"),  # the first is the answer
        ([{"question": "a", "answer": "#### Step 1\nx\n#### Step 2\n\\boxed{1}"}], {}, "columns"),
        ([TEACHER], {"format": "gsm8k"}, "gsm8k"),
    ],
)
def test_recognised(raw, changes, name):
    assert recognise(raw, PrepareOptions(**changes), "a file").name == name


def test_not_recognised():
    with pytest.raises(DataError, match=r"not recognised \(columns found: id, text\); name the columns with --questio"):
        recognise([{"id": 1, "text": "a"}], PrepareOptions(), "a file")
    with pytest.raises(DataError, match=r"'deepsek' \(found: question, answer\)"):
        recognise([GSM8K], PrepareOptions(response_column="deepsek"), "a file")


@pytest.mark.parametrize(
    ("response", "row", "reason", "words"),
    [
        (None, {"question": " \n", "answer": "#### 1"}, "empty_text", "the question is empty"),
        (None, {"question": "q", "answer": "x\n####"}, "no_final_answer", "it ends in 'x\\n####'"),
        ("r", {"question": "q", "r": None}, "no_answer", "column 'r' is null"),
        ("r", {"question": "q"}, "no_answer", "column 'r' is missing (columns found: question)"),
    ],
)
def test_rows_that_are_refused(response, row, reason, words):
    with pytest.raises(RowError) as caught:
        read_example(row, RawFormat("gsm8k", None, response), PrepareOptions())
    assert caught.value.reason == reason and words in str(caught.value)


def found(response, format="teacher", final=None, **changes):
    """Steps, which are those that training finds again."""
    converter = Converter(RawFormat(format), PrepareOptions(**changes))
    joined, steps = converter.steps_of(RawExample("q", "a", None, response, final))
    assert joined == "\n\n".join(steps)
    assert [joined[start:end].strip() for start, end in make_splitter("separator").spans(joined)] == steps
    return steps


TITLES = ["**Step 1:** Halve the number of clips.", "**Step 2:** Add both of them:\n\\[ 48+24 = 72 \\]"]


@pytest.mark.parametrize(
    ("response", "changes", "steps"),
    [
        (f"{TITLES[0]}\n\n**Step 2:** Add both of them:\n\n\\[ 48+24 = 72 \\]", {}, TITLES),
        (f"{LONG}\n\n```\n{LONG}\n\n{LONG}", {}, [LONG, f"```\n{LONG}\n\n{LONG}"]),  # a fence that never closes
        (f"{LONG}\n{LONG} | {LONG}\n\n{LONG}", {"step_splitter": "lines"}, [LONG, f"{LONG} | {LONG}", LONG]),
        (f"{LONG}\n\n{LONG}", {"final": "1,200"}, [LONG, f"{LONG}\n\\boxed{{1,200}}"]),
        ("5*3=15\n15+1=16", {"format": "gsm8k", "final": "16"}, ["5*3=15", "15+1=16\n\\boxed{16}"]),
        (f"{LONG}\n\nShort.\n\n{LONG}", {}, [f"{LONG}\nShort.", LONG]),
        (f"{LONG}\n\nSo:\n\n\\boxed{{72}}", {"drop_short": True}, [f"{LONG}\n\\boxed{{72}}"]),
        ("x" * 20 + "\n\n" + "y" * 21, {"drop_short": True}, ["y" * 21]),  # the published length
        ("x" * 20 + "\n\n" + "y" * 21, {"format": "columns", "min_step_length": 20}, ["x" * 20, "y" * 21]),
        (f"<think>{LONG}\n\n{LONG}</think>1. One thing after another.\n2. Another thing after it.", {"keep_thinking": True},
         [LONG, LONG, "1. One thing after another.", "2. Another thing after it."]),
        ("\u6570" * 6 + "\u3002\n\n" + "\u52a0" * 6, {}, ["\u6570" * 6 + "\u3002", "\u52a0" * 6]),
    ],
)  # fmt: skip
def test_responses(response, changes, steps):
    assert found(response, **changes) == steps


# The page about it

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "prepare.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"\*\*`(\w+)`\*\*(?:(?!\n\*\*`).)*?```json\n(.*?)\n```\n```text\n(.*?)\n```", PAGE, re.DOTALL)


def test_examples_of_the_docs(tmp_path):
    assert [name for name, *_ in EXAMPLES] == ["gsm8k", "teacher"]
    for name, raw, shown in EXAMPLES:
        out = tmp_path / f"{name}.jsonl"
        assert prepare(PrepareOptions(output_file=str(out)), [json.loads(raw)]).format == name
        assert json.loads(out.read_text())["messages"][-1]["content"] == shown


def test_every_option_and_reason_is_in_the_docs():
    named = set(re.findall(r"`(\w+)`", PAGE))
    raised = set(re.findall(r'RowError\(\s*"(\w+)"', Path(prepare_rows.__file__).read_text()))
    assert {*raised, "duplicate", "not_utf8", "broken_json", "broken_csv"} <= named
    assert len(raised) > 7 and set(PrepareOptions.__dataclass_fields__) <= set(re.findall(r"--(\w+)", PAGE))
