"""The forms in which data sets hold chats."""

import json

import pytest

import stepjepa
from stepjepa.data.chat import row_to_messages
from stepjepa.data.columns import column_value, listed_columns
from stepjepa.data.options import PairColumns
from stepjepa.errors import RowError

STEPS = "Two pairs make four shoes.\n\nFour shoes and one are \\boxed{5}."
CHAT = [{"role": "user", "content": "How many shoes?"}, {"role": "assistant", "content": STEPS}]
SHARED = [{"from": "human", "value": "How many shoes?"}, {"from": "gpt", "value": STEPS}]
FORMS = {
    "sharegpt": {"id": "a7", "conversations": SHARED},
    "alpaca": {"instruction": "How many shoes?", "input": "", "output": STEPS, "text": "Below is an instruction"},
    "problem": {"problem": "How many shoes?", "solution": STEPS, "answer": "5"},
    "instruction": {"instruction": "How many shoes?", "answer": STEPS},
    "response": {"prompt": "How many shoes?", "response": STEPS},
    "parts": {"messages": [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in CHAT]},
    "trl": {"prompt": CHAT[:1], "completion": CHAT[1:]},
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_the_same_chat(name):
    assert row_to_messages(FORMS[name]) == CHAT


def test_contexts_and_mixed_rows():
    chat = [{"role": "system", "content": "Be brief."}, *CHAT]
    assert row_to_messages(FORMS["response"], "Be brief.") == chat == row_to_messages({"messages": chat}, "Longer.")
    row = {"instruction": "Sum up.", "input": "A shoe.", "output": "Shoe."}
    assert row_to_messages(row)[0]["content"] == "Sum up.\n\nA shoe."
    assert row_to_messages({**row, "instruction": " "})[0]["content"] == "A shoe."
    mixed = dict.fromkeys(("question", "answer", "conversations", "completion")) | {"prompt": "a", "response": "b"}
    assert [turn["content"] for turn in row_to_messages(mixed)] == ["a", "b"]
    both = {**FORMS["problem"], "messages": CHAT[::-1]}
    assert row_to_messages(both) == CHAT[::-1]
    turns = [{"from": "system", "value": "S"}, *SHARED, *SHARED]
    assert [one["role"] for one in row_to_messages({"conversations": turns})] == ["system", *["user", "assistant"] * 2]
    # What a table makes of messages of several kinds, and of none of their tools.
    filled = [{"role": None, "content": None, "tool_calls": None, **one} for one in SHARED]
    assert row_to_messages({"messages": filled, "images": [], "image": None}) == CHAT


@pytest.mark.parametrize(
    ("row", "reason", "words"),
    [
        ({"conversations": [{"from": "observation", "value": "5"}]}, "no_assistant_message", "no answer to learn"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "not_text_alone", "a part of type 'image'"),
        ({"image": "cat.png", "conversations": SHARED}, "not_text_alone", "column 'image' belongs to the chat"),
        ({"conversations": []}, "no_messages", "'conversations' is not a non-empty list"),
        ({"instruction": ["a"], "output": "b"}, "content_not_text", "message 1 (user) has content of type list"),
        ({"a": {"b": 1, "c": 2}, "d": 3}, "no_known_columns", "columns found: a.b, a.c, d; expected messages, conv"),
        ({"chosen": "a"}, "no_known_columns", "two columns named with --source_column and --target_column"),
        (["a"], "not_an_object", "the row has type list"),
        ({"messages": "hello"}, "no_messages", "not a non-empty list"),
        ({"messages": ["hello"]}, "no_messages", "message 1 is not an object with 'role' and 'content'"),
        ({"messages": [{"role": "critic", "content": ""}]}, "unknown_role", "message 1 has role 'critic'"),
        ({"messages": [{**CHAT[1], "content": 7}]}, "content_not_text", "message 1 (assistant) has content of"),
        ({"messages": [{**CHAT[1], "content": [{"type": "text"}]}]}, "content_not_text", "has content of type list"),
        ({"messages": [{**CHAT[1], "content": "a\ud83d b"}]}, "broken_text", "contains the lone surrogate"),
        ({"messages": "[" * 100_000}, "no_messages", "not a non-empty list"),
        ({f"column {n}": 1 for n in range(99)}, "no_known_columns", "column 18, column 19, ...; expected"),
        ({"a\n\x1b[2J": 1, "b" * 99: 2}, "no_known_columns", r"found: a \x1b[2J, " + "b" * 80 + "...; expected"),
    ],
)
def test_rows_that_are_refused_by_name(row, reason, words):
    with pytest.raises(RowError) as caught:
        row_to_messages(row)
    assert caught.value.reason == reason and words in str(caught.value)


def test_nested_columns():
    row = {"task": {"text": "How many shoes?"}, "by": {"pupil": {"text": STEPS}}, "by.pupil": {"text": "x"}}
    assert row_to_messages(row, None, PairColumns("task.text", "by.pupil.text")) == CHAT
    assert column_value({"a.b": 1, "a": {"b": 2}}, "a.b") == 1  # a column with that very name
    assert column_value({"a": {"b": None}}, "a.b", 3) is None and column_value({"a": "b"}, "a.b", 3) == 3
    assert listed_columns({"a": {"b": {"c": 1}}, "d": [{"e": 1}]}) == "a.b, d"
    with pytest.raises(RowError, match=r"no column 'task.txt' \(columns found: task.text, "):
        row_to_messages(row, None, PairColumns("task.txt", "by.pupil.text"))


def test_prepare_chats(tmp_path):
    own = [{"from": "system", "value": "Think."}, *SHARED]
    several = [*SHARED, *SHARED], [*SHARED, {"from": "observation", "value": "5"}]
    rows = [{"conversations": one} for one in (own, SHARED, *several)]
    done = stepjepa.prepare(rows, output_file=str(tmp_path / "out.jsonl"), system_prompt="S")
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    first, second = [json.loads(line)["messages"][0]["content"] for line in lines]
    assert (first, second, done.format) == ("Think.", "S", "columns")
    assert done.rows_skipped == {"several_turns": 2}
    assert "several turns (first: list row 2: the chat is not" in str(done)
