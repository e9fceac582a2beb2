"""The forms in which data sets hold chats; those of public data sets are in test_public_rows.py."""

import pytest

from stepjepa.data.chat import row_to_messages
from stepjepa.data.options import PairColumns
from stepjepa.errors import RowError

STEPS = "Two pairs make four shoes.\n\nFour shoes and one are \\boxed{5}."
CHAT = [{"role": "user", "content": "How many shoes?"}, {"role": "assistant", "content": STEPS}]
SHARED = [{"from": "human", "value": "How many shoes?"}, {"from": "gpt", "value": STEPS}]


def test_contexts_and_mixed_rows():
    chat = [{"role": "system", "content": "Be brief."}, *CHAT]
    answered = {"prompt": "How many shoes?", "response": STEPS}
    assert row_to_messages(answered, "Be brief.") == chat == row_to_messages({"messages": chat}, "Longer.")
    parts = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in CHAT]
    assert row_to_messages({"messages": parts}) == CHAT == row_to_messages({"prompt": CHAT[:1], "completion": CHAT[1:]})
    mixed = dict.fromkeys(("question", "answer", "conversations", "completion")) | {"prompt": "a", "response": "b"}
    assert [turn["content"] for turn in row_to_messages(mixed)] == ["a", "b"]
    # What a table makes of messages of several kinds, and of none of their tools.
    filled = [{"role": None, "content": None, "tool_calls": None, **one} for one in SHARED]
    assert row_to_messages({"messages": filled, "images": [], "image": None}) == CHAT


@pytest.mark.parametrize(
    ("row", "reason", "words"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "content_not_text", "parts of type 'text'"),
        ({"image": "cat.png", "conversations": SHARED}, "not_text_alone", "column 'image' belongs to the chat"),
        ({"conversations": []}, "no_messages", "'conversations' is not a non-empty list"),
        ({"a": {"b": 1, "c": 2}, "d": 3}, "no_known_columns", "columns found: a.b, a.c, d; expected messages, conv"),
        ({"messages": "hello"}, "no_messages", "not a non-empty list"),
        ({"messages": ["hello"]}, "no_messages", "message 1 is not an object with 'role' and 'content'"),
        ({"messages": [{**CHAT[1], "content": [{"type": "text"}]}]}, "content_not_text", "has content of type list"),
        ({"messages": "[" * 100_000}, "no_messages", "not a non-empty list"),
        ({"a\n\x1b[2J": 1, "b" * 999: 2}, "no_known_columns", r"found: a \x1b[2J, " + "b" * 306 + " ... " + "b" * 158),
    ],
)
def test_rows_that_are_refused_by_name(row, reason, words):
    with pytest.raises(RowError) as caught:
        row_to_messages(row)
    assert caught.value.reason == reason and words in str(caught.value)


def test_nested_columns():
    row = {"task": {"text": "How many shoes?"}, "by": {"pupil": {"text": STEPS}}, "by.pupil": {"text": "x"}}
    assert row_to_messages(row, None, PairColumns("task.text", "by.pupil.text")) == CHAT
    with pytest.raises(RowError, match=r"no column 'task.txt' \(columns found: task.text, "):
        row_to_messages(row, None, PairColumns("task.txt", "by.pupil.text"))
