"""The format check: counts, verdicts, samples, and text from hostile files."""

import json

import pytest

from stepjepa.errors import DataError
from stepjepa.inspect.check.texts import RowSample
from support.checks import check_format

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
    report = check_format(source, "separator", show=2)
    assert (report.rows_read, report.rows_usable) == (7, 4)
    assert report.rows_skipped == {"unknown_role": 2, "not_an_object": 1}
    assert report.first_skipped["unknown_role"].startswith("list row 4: message 1 has role 'bot'")
    assert report.role_orders["system, user, assistant"] == 1
    assert report.step_counts == {3: 2, 1: 2}
    assert (report.pairs_first, report.pairs_all) == (3, 5)
    assert report.rows_with_question == 4
    assert [sample.place for sample in report.samples] == ["list row 0", "list row 1"]
    assert report.samples[0] == RowSample(
        "list row 0", ("system", "user", "assistant"), {"User": "u", "Assistant": BLANK}, 3
    )


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        (
            [BLANK] * 2 + ["one"],
            "ready for step_jepa: 2 of 3 rows have two or more steps; the other 1 would train as plain language modelling",
        ),
        (
            [LINES] * 3 + [BLANK],
            "not for step_jepa: only 1 of 4 rows have two steps (found by --step_splitter separator); use --step_splitter "
            "lines: the splitter that auto chooses, lines, finds them in 4",
        ),
        (
            [BLANK, *["one"] * 10],
            "not for step_jepa: only 1 of 11 rows have two steps (found by --step_splitter separator); give "
            "--step_separator, or train with --objective llm_jepa, which needs no steps",
        ),
    ],
)
def test_verdict(answers, verdict):
    report = check_format(rows(*answers))
    assert report.verdict == verdict
    assert f"Verdict: {verdict}" in report.lines()
    assert report.to_dict()["ready_for_step_jepa"] == verdict.startswith("ready")


def test_plain_text_is_no_chat_and_no_error():
    source = [
        {"text": "One and\ntwo."},
        {"text": " "},
        {"input_ids": [5, 6, 7]},
        {"text": 3},
        {"input_ids": [-1]},
        {"question": "q", "answer": BLANK},
        {"text": "Three."},
    ]
    report = check_format(source, show=2)
    assert (report.plain_text, report.rows_read, report.rows_usable) == (True, 7, 4)
    assert (report.streams, report.chats) == ({"Plain text": 2, "Token ids": 1}, 1)
    assert report.rows_skipped == {"nothing_to_learn": 1, "content_not_text": 1, "unknown_token": 1}
    assert [sample.texts["Text"] for sample in report.samples] == ["One and\ntwo.", "5 6 7"]
    assert report.verdict.startswith(
        "plain text: train with --objective regular or split or next_latent or multi_token or future_summary"
    )
    lines = report.lines()
    assert "  Plain text: 2 rows" in lines and "  Token ids: 1 row" in lines
    assert "    two." in lines
    assert not any("steps" in line for line in lines)
    assert json.loads(json.dumps(report.to_dict()))["ready_for_step_jepa"] is False
    report = check_format([*rows(BLANK), {"text": "One."}])  # among chats it is skipped
    assert (report.plain_text, report.rows_skipped) == (False, {"no_known_columns": 1})


def test_named_columns():
    source = [{"sentence": "It is red.", "texts": ["a sky", "a rose"], "right": right} for right in (1, 5)]
    with pytest.raises(DataError, match="columns found: sentence, texts, right.*--source_column and --target_column"):
        check_format(source)
    report = check_format(source, source_column="sentence", target_column="texts", choice_column="right")
    assert (report.rows_usable, report.samples[0].texts) == (1, {"User": "It is red.", "Assistant": "a rose"})
    assert report.rows_skipped == {"no_such_choice": 1}
    # A text column that is named is no plain text.
    assert not check_format([{"text": "a", "more": "b"}], source_column="text", target_column="more").plain_text


def test_nothing_from_the_file_can_steer_a_terminal():
    hostile = "\x1b[31mred\x1b]0;title\x07 [bold]b[/bold] \u202egnp \u2028 \U0001f600\tcode"
    report = check_format([*rows(hostile), {hostile + "\ud800": 1}])
    text = "\n".join(report.lines())
    assert all(character == "\n" or character.isprintable() for character in text)
    assert r"\x1b[31mred\x1b]0;title\x07 [bold]b[/bold] \u202egnp" in text
    assert "\U0001f600" in text
    json.dumps(report.to_dict()).encode()


def test_repeated_questions_of_the_published_data(shared_dir):
    """Against sets of the whole texts."""
    files = (shared_dir / "data" / f"nl_rx_synth_{name}.jsonl" for name in ("train", "test"))
    train, test = ([json.loads(line) for line in file.read_text().splitlines()[:1500]] for file in files)
    report = check_format(train, eval_file=test)
    asked, held_out = (
        [" ".join(row["messages"][1]["content"].lower().split()) for row in rows] for rows in (train, test)
    )
    assert report.repeats.rows == len(asked) - len(set(asked)) > 0
    assert report.leak.found == sum(question in set(asked) for question in held_out) > 0


def test_what_cannot_be_used():
    said = r"none of 2 rows can be used; skipped 1: .*unknown role.*; skipped 1: .*no object"
    with pytest.raises(DataError, match=said):
        check_format([{"messages": [{"role": "bot", "content": ""}]}, 3])
    with pytest.raises(DataError, match=r"list row 1: .*--strict_data"):
        check_format([*rows("x"), 3], strict_data=True)
    with pytest.raises(DataError, match="list: the file or data set is empty"):
        check_format(rows("x"), eval_file=[])
    with pytest.raises(DataError, match="none of 1 rows can be used; skip.*first: list row 0: .*columns found: a"):
        check_format(rows("x"), eval_file=[{"a": 1}])
