"""From rows to questions and to solutions, and which system message they get."""

import json
from collections import Counter

import pytest

from stepjepa.data.report import DataReport
from stepjepa.data.sources import PairColumns, RowSource
from stepjepa.data.tokens import Prompter
from stepjepa.errors import DataError
from stepjepa.evaluation.metrics import make_metric
from stepjepa.evaluation.questions import SystemPrompt, choose_system_prompt, read_questions
from stepjepa.evaluation.score import drop_unusable
from support.tokenizers import byte_bpe_tokenizer, fresh

OWN = SystemPrompt(None, True, "")
SOLVE = {"system_prompts": Counter({"Solve.": 9})}


def chat(*turns):
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def read(rows, system=OWN, **more):
    return read_questions(RowSource(rows), system, **more)


def test_the_prompt_is_all_before_the_last_answer():
    """The last answer of a chat is evaluated; what follows is left out, and earlier answers are in the prompt."""
    turns = [("system", "S"), ("user", "1"), ("assistant", "one"), ("user", "2"), ("assistant", "two")]
    (first,) = read([chat(*turns)]).questions
    assert [m["content"] for m in first.prompt] == ["S", "1", "one", "2"] and first.text == "2"
    assert first.ground_truth == "two" and first.chat[-1]["content"] == "two"
    (second,) = read([chat(*turns, ("user", "3"))]).questions
    assert second.prompt == first.prompt and second.chat == first.chat
    (third,) = read([chat(("user", "1"), ("assistant", "draft"), ("assistant", "final"))]).questions
    assert [m["content"] for m in third.prompt] == ["1", "draft"] and third.ground_truth == "final"
    assert third.text == "1"


def test_all_kinds_of_rows():
    rows = [
        {"question": "q0", "answer": "a0 #### 3"},
        {"prompt": "q1", "completion": "a1", "ground_truth": 7},
        {"text": "q2", "code": "a2", "ground_truth": None},
        {"messages": json.dumps(chat(("user", "q3"), ("assistant", "a3"))["messages"])},
    ]
    found = read(rows).questions
    assert [one.text for one in found] == ["q0", "q1", "q2", "q3"]
    assert [one.ground_truth for one in found] == ["a0 #### 3", "7", "a2", "a3"]
    assert found[3].row["messages"][-1] == {"role": "assistant", "content": "a3"}, "metrics read it as a list"
    rows = [{"ctx": "The sky is", "ends": ["red", "blue"], "label": 1, "answer": "no"}]
    (one,) = read(rows, columns=PairColumns("ctx", "ends", "label")).questions
    assert (one.text, one.ground_truth, one.row["answer"], one.row["label"]) == ("The sky is", "blue", "blue", 1)


def test_every_row_is_counted():
    rows = [
        chat(("user", "a"), ("assistant", "b")),
        chat(("user", "a")),
        chat(("assistant", "b")),
        {"other": 1},
        chat(("system", "S"), ("user", "c"), ("assistant", "d")),
    ]
    found = read(rows)
    assert (found.rows_read, [one.index for one in found.questions]) == (5, [0, 4])
    assert found.rows_skipped == {"no_assistant_message": 1, "no_user_message": 1, "no_known_columns": 1}
    assert len(read(rows, limit=1).questions) == 1 and read(rows, limit=2).rows_read == 2
    with pytest.raises(DataError, match="none of 2 rows can be evaluated on; skipped.*first: list row 0"):
        drop_unusable(read(rows[2:4]), [], None)
    prints = {read([rows[0]], system).fingerprint() for system in (OWN, SystemPrompt("S", False, ""))}
    prints |= {read(more).fingerprint() for more in ([rows[0]] * 2, [{**rows[0], "ground_truth": "b"}])}
    assert len(prints) == 4 and read([dict(rows[0])]).fingerprint() in prints


def test_system_messages():
    rows = [chat(("system", "own"), ("user", "a"), ("assistant", "b")), chat(("user", "a"), ("assistant", "b"))]
    for system, expected in (
        (OWN, ["own", None]),
        (SystemPrompt("S", True, ""), ["own", "S"]),
        (SystemPrompt("S", False, ""), ["S", "S"]),
        (SystemPrompt("", False, ""), ["", ""]),
        (SystemPrompt(None, False, ""), [None, None]),
    ):
        for one, text in zip(read(rows, system).questions, expected, strict=True):
            first = [] if text is None else [{"role": "system", "content": text}]
            assert one.prompt == [*first, {"role": "user", "content": "a"}]
            assert one.chat == [*one.prompt, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("asked", "use", "known", "expected"),
    [
        ("as_trained", False, SOLVE, ("Solve.", False, "'Solve.', as in training, not the file's own")),
        ("as_trained", False, {"without_system_prompt": 9}, (None, False, "none, as in training")),
        ("as_trained", False, {**SOLVE, "without_system_prompt": 1}, ("Solve.", True, "used several")),
        ("as_trained", False, {**SOLVE, "other_system_prompts": 100}, ("Solve.", True, "used several")),
        ("as_trained", False, {}, (None, True, "run has no record of its training")),
        ("as_trained", True, SOLVE, (None, True, "--use_test_prompts")),
        (None, False, SOLVE, (None, False, "none (--system_prompt)")),
    ],
)
def test_the_choice_of_a_system_message(asked, use, known, expected):
    text, keep, words = choose_system_prompt(asked, use, DataReport("", **known), "run")
    assert (text, keep) == expected[:2] and expected[2] in words


def test_rows_that_the_template_refuses_are_counted():
    tokenizer = fresh(byte_bpe_tokenizer())
    tokenizer.chat_template = (
        "{% for m in messages %}{% if 'bad' in m['content'] %}{{ raise_exception('no bad words') }}{% endif %}"
        "{{ m['content'] }}{% endfor %}"
    )
    rows = [chat(("user", text), ("assistant", "b")) for text in ("good", "bad", "", "fine")]
    found = read(rows)
    drop_unusable(found, [make_metric("exact")], Prompter(tokenizer))
    assert [one.text for one in found.questions] == ["good", "fine"]
    assert found.rows_skipped == {"template_refused": 1, "empty_prompt": 1}
    assert "no bad words" in found.first_skipped["template_refused"]
