"""Rows as public data sets hold them, and in other forms: what is read, refused, and reported as not read."""

import json
from pathlib import Path

import pytest

import stepjepa
from stepjepa.cli.main import main
from stepjepa.data.chat import row_to_messages
from stepjepa.data.columns import left_over
from stepjepa.data.encode import encode_dataset
from stepjepa.data.options import PairColumns, PrepareOptions
from stepjepa.data.prepare_rows import read_example, recognise
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.template import ChatRenderer
from stepjepa.errors import RowError
from stepjepa.evaluation.questions import SystemPrompt, read_questions
from support.encoding import labelled, settings_of
from support.rows import lines
from support.templates import CHATML
from support.tokenizers import byte_bpe_tokenizer, fresh

Q, A = "How many legs do three cats have in all?", "Three cats have\n\n3 * 4 = \\boxed{12}"
S = "You are a patient teacher."
LONG = "A second way to see it is to count the legs of each cat one by one."
USER, ANSWER, SYSTEM = (
    {"role": role, "content": text} for role, text in (("user", Q), ("assistant", A), ("system", S))
)
CHAT = [USER, ANSWER]
SHARED = [{"from": "human", "value": Q}, {"from": "gpt", "value": A}]
# Rows of public data sets by name: the row, its chat, what a warning names.
ROWS = {one["name"]: one for one in lines(Path(__file__).parent / "public_rows.jsonl")}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_read_and_what_is_not(name):
    row = ROWS[name]["row"]
    messages = row_to_messages(row)
    assert messages == ROWS[name]["chat"]
    assert sorted(left_over(row, messages, {"steps"})) == ROWS[name]["texts"]


@pytest.mark.parametrize("name", [name for name in ROWS if len(ROWS[name]["chat"]) < 4])
def test_prepare_reads_the_same(name):
    """`prepare` takes the question with its context and the system message from the same columns."""
    row, chat = ROWS[name]["row"], ROWS[name]["chat"]
    options = PrepareOptions()
    example = read_example(row, recognise([row], options, "rows"), options)
    assert example.question == chat[-2]["content"]
    assert example.system == (S if chat[0] == SYSTEM else None)


def test_contexts_and_mixed_rows():
    chat = [SYSTEM, *CHAT]
    assert row_to_messages({"prompt": Q, "response": A}, S) == chat == row_to_messages({"messages": chat}, "Longer.")
    parts = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in CHAT]
    assert row_to_messages({"messages": parts}) == CHAT == row_to_messages({"prompt": CHAT[:1], "completion": CHAT[1:]})
    mixed = dict.fromkeys(("question", "answer", "conversations", "completion")) | {"prompt": Q, "response": A}
    assert row_to_messages(mixed) == CHAT
    # What a table makes of messages of several kinds, and of none of their tools.
    filled = [{"role": None, "content": None, "tool_calls": None, **one} for one in SHARED]
    assert row_to_messages({"messages": filled, "images": [], "image": None}) == CHAT


def test_nested_columns_and_columns_of_choices():
    row = {"task": {"text": Q}, "by": {"pupil": {"text": A}}, "by.pupil": {"text": "x"}}
    assert row_to_messages(row, None, PairColumns("task.text", "by.pupil.text")) == CHAT
    with pytest.raises(RowError, match=r"no column 'task.txt' \(columns found: task.text, "):
        row_to_messages(row, None, PairColumns("task.txt", "by.pupil.text"))
    row, columns = {"ctx": Q, "endings": ["Eleven.", A], "label": "1"}, PairColumns("ctx", "endings", "label")
    assert row_to_messages(row, None, columns) == CHAT
    for label in ("2", "-1", "x", [1]):
        with pytest.raises(RowError) as caught:
            row_to_messages({**row, "label": label}, None, columns)
        assert caught.value.reason == "no_such_choice"
    # ARC: an object of texts and labels, and a label.
    row, columns = (
        {"question": Q, "choices": {"text": [A, "No."], "label": ["1", "2"]}},
        ("question", "choices", "answerKey"),
    )
    assert row_to_messages({**row, "answerKey": "1"}, None, PairColumns(*columns)) == CHAT
    row["choices"] = ["No.", A]
    assert row_to_messages({**row, "answerKey": "B"}, None, PairColumns(*columns)) == CHAT


def encode(rows, **options):
    tokenizer, settings = byte_bpe_tokenizer(), settings_of(**{"objective": "regular", **options})
    store, report = encode_dataset(rows, tokenizer, ChatRenderer(tokenizer), settings)
    return [tokenizer, list(store), report]


TURNS = [USER, {"role": "assistant", "content": "Twelve."}, {"role": "user", "content": "And five?"}, ANSWER]
SWITCHES = [{"weight": 0}, {"loss_mask": 0}, *({name: False} for name in ("train", "training", "loss", "trainable"))]


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("labels", ["assistant", "all", "reference"])
def test_a_message_that_is_switched_off_is_context(switch, labels):
    turns = [TURNS[0], {**TURNS[1], **switch}, *TURNS[2:]]
    tokenizer, (example,), report = encode([{"messages": turns}], labels=labels)
    plain = encode([{"messages": TURNS}], labels=labels)[1][0]
    assert example.trunk.tolist() == plain.trunk.tolist()  # it is there, and not labelled
    texts = "".join(labelled(tokenizer, example))
    assert "Twelve." not in texts and A in texts
    assert ("And five?" in texts) == (labels != "assistant")
    assert "Twelve." in "".join(labelled(tokenizer, plain))
    assert report.labelled_tokens < sum(stop - start for start, stop in plain.labels)


def test_a_message_of_the_user_that_is_switched_off():
    tokenizer, (example,), _ = encode([{"messages": [{**USER, "weight": 0}, ANSWER]}], labels="all")
    assert Q not in "".join(labelled(tokenizer, example)) and A in "".join(labelled(tokenizer, example))


def test_context_makes_no_pairs():
    steps = "One.\n\nTwo.\n\nThree."
    turns = [USER, {"role": "assistant", "content": steps, "weight": 0}, *TURNS[2:]]
    for objective in ("step_jepa", "llm_jepa"):
        _, (example,), report = encode([{"messages": turns}], objective=objective)
        (only,) = encode([{"messages": turns[2:]}], objective=objective)[1]
        assert len(example.pairs) == len(only.pairs) == report.pairs > 0
        start = example.labels[0].start
        targets = [example.view_on_trunk(pair.target) for pair in example.pairs]
        assert all(view.start >= start for view in targets)
    for turns, pairs in (([USER, {**ANSWER, "weight": 0}, *TURNS[2:]], 1), ([USER, ANSWER, *TURNS[2:]], 2)):
        assert encode([{"messages": turns}], objective="llm_jepa", views="standalone")[2].pairs == pairs


def test_keys_of_messages_in_every_kind_of_table(tmp_path):
    said = [USER, {**ANSWER, "comment": LONG}]
    rows = (
        {"messages": said},
        {"messages": json.dumps(said)},
        {"messages": {"role": ["user", "assistant"], "content": [Q, A], "comment": [None, LONG]}},
        {"prompt": said[:1], "completion": said[1:]},
    )
    for row in rows:
        assert left_over(row, row_to_messages(row)) == ["key 'comment' of messages"]


@pytest.mark.parametrize(
    ("row", "chat"),
    [
        # TRL: answers in the prompt are context.
        ({"prompt": [USER, ANSWER, USER], "completion": [ANSWER]}, [USER, {**ANSWER, "trained": False}, USER, ANSWER]),
        # TRL's preferences, with the question in the prompt alone, and in the chat too.
        ({"prompt": [*SHARED, SHARED[0]], "completion": [ANSWER]}, [USER, {**ANSWER, "trained": False}, USER, ANSWER]),
        ({"prompt": Q, "chosen": [ANSWER], "rejected": [ANSWER]}, [USER, ANSWER]),
        ({"prompt": Q, "chosen": [USER, ANSWER], "rejected": [USER]}, [USER, ANSWER]),
        ({"prompt": Q, "completion": A, "label": True}, [USER, ANSWER]),
        # DeepScaleR: many solutions are empty.
        ({"problem": Q, "answer": A, "solution": ""}, [USER, ANSWER]),
        # LMSYS-Chat and WildChat.
        ({"conversation": [USER, ANSWER], "language": "English"}, [USER, ANSWER]),
        ({"messages": [{**SYSTEM, "role": "developer"}, USER, ANSWER]}, [SYSTEM, USER, ANSWER]),
    ],
)  # fmt: skip
def test_chats_of_public_data_sets(row, chat):
    assert row_to_messages(row) == chat


@pytest.mark.parametrize(
    ("row", "reason", "words"),
    [
        ({"messages": [{**USER, "content": [{"type": "image"}]}, ANSWER]}, "content_not_text", "parts of type 'text'"),
        ({"image": "cat.png", "conversations": SHARED}, "not_text_alone", "column 'image' belongs to the chat"),
        ({"conversations": []}, "no_messages", "'conversations' is not a non-empty list"),
        ({"a": {"b": 1, "c": 2}, "d": 3}, "no_known_columns", "columns found: a.b, a.c, d; expected messages, conv"),
        ({"messages": ["hello"]}, "no_messages", "message 1 is not an object with 'role' and 'content'"),
        ({"messages": "[" * 100_000}, "no_messages", "not a non-empty list"),
        ({"a\n\x1b[2J": 1, "b" * 999: 2}, "no_known_columns", r"found: a \x1b[2J, " + "b" * 306 + " ... " + "b" * 158),
        ({"messages": [USER, {**ANSWER, "weight": 0.5}]}, "unknown_switch", "message 2 (assistant) has weight 0.5; use"),
        ({"messages": [USER, {**ANSWER, "weight": 0}]}, "switched_off", "every answer that could be trained"),
        ({"question": Q, "answers": {"text": [], "answer_start": []}}, "no_answer", "an object without a list 'text'"),
        ({"prompt": Q, "completion": A, "label": False}, "rejected_answer", "only good answers are trained on"),
        ({"question": Q, "answer": A, "chat_template_kwargs": [1]}, "bad_template_kwargs", "must be an object"),
        ({"question": Q, "answer": A, "tools": {"a": 1}}, "bad_template_kwargs", "a list of functions"),
        ({"question": Q, "answer": A, "chat_template_kwargs": {"tokenize": 1}}, "template_refused", "multiple values"),
    ],
)  # fmt: skip
def test_rows_that_are_refused(row, reason, words):
    _, _, report = encode([row, {"messages": CHAT}])
    assert report.rows_skipped == {reason: 1} and words in report.first_skipped[reason]
    json.dumps(report.to_dict())


def test_train_on_last():
    rows = [{"messages": TURNS}, {"messages": [*TURNS, USER]}]
    tokenizer, examples, _ = encode(rows, train_on="last")
    for example in examples:
        assert [text.removesuffix("<|im_end|>") for text in labelled(tokenizer, example)] == [A]
    tokenizer, examples, _ = encode(rows)
    assert [len(example.labels) for example in examples] == [2, 2]
    _, (both, _), report = encode(rows, objective="llm_jepa")
    _, (last, _), alone = encode(rows, objective="llm_jepa", train_on="last")
    assert (len(both.pairs), len(last.pairs)) == (2, 1) and alone.pairs == 2 < report.pairs
    row = {"messages": [*TURNS[:3], {**ANSWER, "weight": 0}]}
    assert encode([row, *rows], train_on="last")[2].rows_skipped == {"switched_off": 1}


def test_drop_longer():
    rows = [{"messages": CHAT}, {"messages": [USER, {**ANSWER, "content": "12 " * 200}]}]
    _, examples, report = encode(rows, max_length=100)
    assert len(examples) == 2 and report.answers_truncated == 1
    # Rows that are left out on request are no fault of the data.
    for strict in (False, True):
        _, examples, report = encode(rows, max_length=100, drop_longer=True, strict_data=strict)
        assert len(examples) == 1 and report.rows_skipped == {"longer_than_max_length": 1}
        assert "skipped 1: longer than max_length, left out by drop_longer" in "\n".join(report.lines())
    assert len(encode([{"text": "a b c " * 200}, {"text": "d e f"}], max_length=100, drop_longer=True)[1]) > 2  # blocks


def test_one_warning_for_each_column_with_the_number_of_rows():
    rows = [{"id": f"r{n}", "question": Q, "answer": A, "hint": LONG, "level": "easy"} for n in range(3)]
    rows += [{"question": Q, "answer": A}, {"prompt": Q, "chosen": A, "rejected": LONG}]
    found = {warning.text: warning.count for warning in stepjepa.check(rows).warnings if warning.name == "unread"}
    of = "the text of column"
    assert found == {f"{of} 'hint' is not read in 3 rows": 3, f"{of} 'rejected' is not read in 1 row": 1}
    _, _, data = encode(rows)
    lines = "\n".join(data.lines())
    assert f"warning: {of} 'hint' is not read in 3 rows: move it into the question or the answer" in lines
    assert lines.count("warning:") == 2
    assert DataReport.from_dict(json.loads(json.dumps(data.to_dict()))).lines() == data.lines()
    # Two columns that are named are a choice.
    named = stepjepa.check(rows[:3], source_column="question", target_column="answer")
    assert "unread" not in {warning.name for warning in named.warnings}
    _, _, data = encode([{"text": f"{LONG} {LONG}", "abstract": LONG, "url": "https://a.org/b"}], objective="split")
    assert data.unread == {"column 'abstract'": 1}


TOOLS = [{"type": "function", "function": {"name": "legs", "description": "Counts legs", "parameters": None}}]
TEMPLATE = "{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}{% if brief %}(short){% endif %}" + CHATML


def test_template_arguments_of_a_row():
    tokenizer = fresh(byte_bpe_tokenizer())
    tokenizer.chat_template = TEMPLATE
    rows = [
        {"messages": CHAT},
        {"messages": CHAT, "tools": TOOLS},
        {"messages": CHAT, "tools": json.dumps(TOOLS), "chat_template_kwargs": {"brief": True}},
        {"messages": CHAT, "chat_template_kwargs": {"brief": False, "unknown_word": 1}},
        {"messages": CHAT},
    ]
    store, report = encode_dataset(rows, tokenizer, ChatRenderer(tokenizer), settings_of("regular"))
    cleaned = [{"type": "function", "function": {"name": "legs", "description": "Counts legs"}}]
    for row, example in zip(rows, store, strict=True):
        kwargs = row.get("chat_template_kwargs", {}) | ({"tools": cleaned} if "tools" in row else {})
        text = tokenizer.apply_chat_template(row["messages"], tokenize=False, **kwargs)
        assert tokenizer.decode(example.trunk) == text
        assert labelled(tokenizer, example) == [f"{A}<|im_end|>"]
    assert report.unread == {"argument 'unknown_word' of the chat template": 1}
    assert encode(rows)[2].unread["argument 'tools' of the chat template"] == 2


def test_an_answer_that_is_switched_off_is_not_what_evaluation_asks_for():
    rows = [{"messages": [*TURNS[:3], {**ANSWER, "weight": 0}]}]
    (question,) = read_questions(RowSource(rows), SystemPrompt(None, True, "")).questions
    assert (question.text, question.chat[-1]["content"]) == (Q, "Twelve.")


@pytest.mark.parametrize(("name", "indent"), [("rows.json", None), ("rows.jsonl", 2)])
def test_a_file_of_one_array(tmp_path, name, indent):
    rows = [{"question": f"{Q} {n}", "solution": f"{LONG}\n\n{LONG}\n\n\\boxed{{12}}"} for n in range(3)]
    (tmp_path / name).write_text("\n" + json.dumps(rows, indent=indent))
    assert stepjepa.check(tmp_path / name).texts.rows_usable == 3
    (tmp_path / "bad.json").write_text(json.dumps([*rows, {"question": Q}]))
    report = " ".join(str(stepjepa.check(tmp_path / "bad.json")).split())  # a long path breaks the line
    assert "bad.json row 3: " in report
    out = tmp_path / "out.jsonl"
    assert main(["prepare", str(tmp_path / name), "--output_file", str(out)]) == 0
    assert len(out.read_text().splitlines()) == 3
