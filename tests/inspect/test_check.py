"""`check`: counts, verdicts and warnings of a data set, counted by hand with a tokenizer whose tokens are words."""

import json

import pytest

from stepjepa.data.encode import encode_dataset
from stepjepa.data.template import ChatRenderer
from stepjepa.errors import DataError
from stepjepa.inspect import statistics
from stepjepa.inspect.check import check, text_warnings, warning_lines
from support.checks import ROWS, check_format, tokens_of, warned, words
from support.encoding import settings_of
from support.rows import step_rows, write
from support.tool_rows import ONE, TWO_CALLS, call, row

BLANK, LINES = "one\n\ntwo\n\nthree", "one\ntwo\nthree"


def rows(*answers):
    return [{"question": f"question {number}", "answer": answer} for number, answer in enumerate(answers)]


def test_everything_is_counted():
    chat = [{"role": role, "content": text} for role, text in (("system", "s"), ("user", "u"), ("assistant", BLANK))]
    two_answers = chat[1:] + [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a\n\nb"}]
    source = [
        {"messages": chat},
        {"messages": two_answers},
        *rows("one", LINES),
        {"messages": [{"role": "bot", "content": "x"}]},
        {"messages": [{"role": "robot", "content": "x"}]},
        ["no object"],
    ]
    report = check_format(source)
    assert (report.rows_read, report.rows_usable) == (7, 4)
    assert report.rows_skipped == {"unknown_role": 2, "not_an_object": 1}
    assert report.first_skipped["unknown_role"].startswith("list row 4: message 1 has role 'bot'")
    assert report.role_orders["system, user, assistant"] == 1
    assert report.step_counts == {3: 2, 1: 2}
    assert (report.pairs_first, report.pairs_all) == (3, 5)
    texts = ["  System: s", "  User: u", r"  Assistant: one\n\ntwo\n\nthree"]
    assert report.sample == ["", "list row 0 (3 steps)", *texts]


def test_calls_and_results_are_counted():
    report = check_format([row(TWO_CALLS), row(ONE[:2]), row([ONE[0], call(weight=0)])])
    assert report.role_orders == {
        "user, tool call, tool result, tool call, tool result, assistant": 1,
        "user, tool call": 1,
    }
    assert report.step_counts == {2: 1, 0: 1} and report.rows_skipped == {"switched_off": 1} and report.unread == {}
    assert '"city": "Oslo"' in report.sample[3]


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ([BLANK, BLANK, "one"], "ready for step_jepa: 2 of 3 rows have two or more steps"),
        (
            [BLANK, *["one"] * 10],
            "not for step_jepa: only 1 of 11 rows have two or more steps (found by --step_splitter",
        ),
    ],
)
def test_verdict(answers, verdict):
    report = check_format(rows(*answers))
    assert report.verdict.startswith(verdict)
    assert report.to_dict()["ready_for_step_jepa"] == verdict.startswith("ready")


def test_plain_text_is_no_chat_and_no_error():
    source = [{"text": "One and\ntwo."}, {"text": " "}, {"input_ids": [5, 6, 7]}, {"text": 3}, {"input_ids": [-1]}]
    report = check_format([*source, {"question": "q", "answer": BLANK}, {"text": "Three."}])
    assert (report.plain_text, report.rows_read, report.rows_usable) == (True, 7, 4)
    assert (report.streams, report.chats) == (3, 1)
    assert report.rows_skipped == {"nothing_to_learn": 1, "content_not_text": 1, "unknown_token": 1}
    assert report.verdict.startswith("plain text: train with --objective regular or split")
    lines = report.lines()
    assert "  Plain text: 3 rows" in lines and r"  Text: One and\ntwo." in lines
    assert not any("steps" in line for line in lines)
    assert json.loads(json.dumps(report.to_dict()))["ready_for_step_jepa"] is False
    report = check_format([*rows(BLANK), {"text": "One."}])  # among chats it is skipped
    assert (report.plain_text, report.rows_skipped) == (False, {"no_known_columns": 1})


def test_nothing_from_the_file_can_steer_a_terminal(tmp_path):
    hostile = "\x1b[31mred\x1b]0;title\x07 [bold]b[/bold] \u202egnp \u2028 \U0001f600\tcode"
    file = write(tmp_path / "a\x1b[31m{0}.jsonl", [*rows(hostile), *rows(hostile), {hostile + "\ud800": 1}])
    report = check(file, "micro", eval_file=file)
    assert {warning.name for warning in report.warnings} >= {"duplicate_questions", "eval_in_train"}
    text = str(report)
    assert all(character == "\n" or character.isprintable() for character in text)
    assert r"\x1b[31mred\x1b]0;title\x07 [bold]b[/bold] \u202egnp" in text and "\U0001f600" in text
    json.dumps(report.to_dict()).encode()


def test_what_cannot_be_used():
    with pytest.raises(DataError, match="list: the file or data set is empty"):
        check_format(rows("x"), eval_file=[])
    with pytest.raises(DataError, match="none of 1 rows can be used; skip.*first: list row 0: .*columns found: a"):
        check_format(rows("x"), eval_file=[{"a": 1}])


# Warnings, each on a file that calls for it and on one that does not

STEPS = "First we add two.\n\nThen we stop here."
SYSTEM = {"role": "system", "content": "Be brief."}
NAMED = {"source_column": "q", "target_column": "a"}


def chat(question, answer, *before):
    return {"messages": [*before, {"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def found(source, *, steps=True, **options):
    return {warning.name: warning for warning in text_warnings(check_format(source, **options), steps)}


TURNS = [{"role": "user", "content": "more"}, {"role": "assistant", "content": STEPS}]
ASKED = [chat("How  many?", STEPS, SYSTEM), chat("x", STEPS, SYSTEM), chat("how MANY?", STEPS), chat("x", "y\n\nz")]
TEXTS = [{"text": "One and two."}, {"text": "one AND two."}, {"input_ids": [1, 2]}, {"input_ids": [1, 2]}]
TRAIN = rows(STEPS, STEPS, STEPS)
HELD_OUT = [{"question": "QUESTION 2 ", "answer": "x"}, {"question": "another", "answer": "x"}, 3]

# warning, rows, options, (count, total) or None where there is none, words of text and advice
CASES = [
    ("one_step", rows("one", "two", "three", STEPS), {}, (3, 4), ["3 of 4 rows (75.0 %)", "another --step_splitter"]),
    ("one_step", rows(STEPS), {"separator": "XX"}, (1, 1), ["or --step_separator"]),
    ("one_step", rows("one", "two", STEPS, STEPS), {}, None, []),
    ("one_step", rows("one", "two"), {"steps": False}, None, []),
    ("duplicate_questions", ASKED, {}, (2, 4), ["(first: list row 0 and list row 2)", "keeps the first"]),
    # What is asked is all that the user says; without a user nothing is asked.
    ("duplicate_questions", [ASKED[1], {"messages": [*ASKED[1]["messages"], *TURNS]}], {}, None, []),
    ("duplicate_questions", [{"messages": [SYSTEM, TURNS[1]]}] * 2, {}, None, []),
    ("duplicate_texts", TEXTS, {}, (2, 4), ["(first: list row 0 and list row 1)"]),
    ("eval_in_train", TRAIN, {"eval_file": HELD_OUT}, (1, 2), ["(first: list row 0 and list row 2)"]),
    ("eval_in_train", [{"q": "one", "a": "x"}], {"eval_file": [{"q": "One", "a": "y"}], **NAMED}, (1, 1), []),
    ("eval_in_train", TEXTS[:1], {"eval_file": TEXTS[1:2]}, (1, 1), []),
]


@pytest.mark.parametrize(("name", "source", "options", "counts", "words"), CASES)
def test_warning_of_texts(name, source, options, counts, words):
    warning = found(source, **options).get(name)
    assert (warning and (warning.count, warning.total)) == counts
    assert all(one in f"{warning.text} {warning.advice}" for one in words)


def test_no_warning_of_texts():
    assert found(TRAIN) == {} == found(TRAIN, eval_file=HELD_OUT[1:])
    assert set(found(TEXTS)) == {"duplicate_texts"}
    assert warning_lines([]) == ["Warnings: none"]


# What a model will see


def test_counts_by_hand():
    found = tokens_of(ROWS)
    data = found.data
    assert (data.rows_read, data.rows_kept, data.examples, data.pairs) == (3, 3, 3, 2)
    assert data.examples_without_pairs == {"fewer_than_two_steps": 1}
    assert (data.tokens, data.labelled_tokens) == (34, 7 + 3 + 4)
    assert data.token_length == {"min": 8, "p50": 13, "p90": 13, "p99": 13, "max": 13}
    assert (data.answers_truncated, data.rows_skipped.total(), found.longest) == (0, 0, 13)


@pytest.mark.slow
def test_chunks_and_processes_count_the_same(tmp_path, monkeypatch):
    file, options = tmp_path / "rows.jsonl", {"objective": "step_jepa", "step_splitter": "separator"}
    file.write_text("\n".join(json.dumps(row) for row in [*step_rows(9), 3, *ROWS, 4, *step_rows(2)]))
    whole = check(str(file), "micro", max_length=20, **options)
    monkeypatch.setattr(statistics, "CHUNK_ROWS", 2)
    found = check(str(file), "micro", max_length=20, num_proc=2, **options)
    assert found.texts == whole.texts and found.to_dict() == whole.to_dict()
    assert (whole.tokens.data.rows_read, whole.texts.rows_skipped.total()) == (16, 2) and whole.texts.repeats
    found = tokens_of([*ROWS, 3, *ROWS], max_length=8)
    assert (found.data.rows_read, found.data.rows_kept, found.longest) == (7, 4, 13)
    assert found.data.rows_skipped == {"no_room_for_answer": 2, "not_an_object": 1}


def test_truncation():
    report = tokens_of(ROWS, max_length=10)
    assert (report.data.answers_truncated, report.longest, report.data.tokens) == (2, 13, 34 - 3 - 3)
    warning = warned(report)["truncated"]
    assert (warning.count, warning.total) == (2, 3)
    assert "raise --max_length to 13, or remove them" in warning.advice
    report = tokens_of(ROWS, max_length=8)  # the third row's answer begins at token 9
    assert (report.data.answers_truncated, report.longest, report.data.tokens) == (1, 13, 34 - 5 - 13)
    assert "truncated" not in warned(tokens_of(ROWS, max_length=13))


def test_the_report_is_that_of_training():
    tokenizer = words()
    cases = [(ROWS, {"predictors": 2, "forward": forward}) for forward in ("auto", "two_pass", "inline")]
    texts = [{"text": "one two three four"}, {"text": ""}, {"input_ids": [7, 8, 9]}, ROWS[1]]
    cases.append((texts, {"objective": "split", "predictors": 0, "max_length": 3, "labels": "assistant"}))
    planned = [{**row, "plan": plan} for row, plan in zip(ROWS, ("one", None, "two"), strict=True)]
    options = {"objective": "llm_jepa", "jepa_target_column": "plan", "readout": "mean", "predictors": 0}
    for rows, given in [*cases, (planned, options)]:
        _, data = encode_dataset(rows, tokenizer, ChatRenderer(tokenizer), settings_of(**given))
        found = tokens_of(rows, **given).data
        assert {**found.to_dict(), "fingerprint": ""} == {**data.to_dict(), "fingerprint": ""}
    assert data.pairs == 2 and data.examples_without_pairs == {"no_target_text": 1}


BARE = "{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}"


def test_warnings_of_tokens():
    assert "no pair for step_jepa in 1 example" in warned(tokens_of([ROWS[1]]))["no_pairs"].text
    endless = warned(tokens_of(ROWS, tokenizer=words(BARE, eos_token=None)))
    assert "nothing ends an answer" in endless["no_end_of_turn"].text
    # With the bare template an EOS is appended.
    for options in ({"labels": "all"}, {"objective": "regular"}, {"tokenizer": words(BARE)}):
        assert warned(tokens_of(ROWS, **options)) == {}
