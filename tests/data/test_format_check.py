"""The format check: counts, verdicts, samples, and text from hostile files."""

import json
from dataclasses import asdict

import pytest

from stepjepa.data.format_check import check_format, escaped, printable
from stepjepa.errors import ConfigError, DataError

BLANK, LINES, NUMBERED = "one\n\ntwo\n\nthree", "one\ntwo\nthree", "Step 1: one\nStep 2: two"


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
    assert report.message_counts == {3: 1, 4: 1, 2: 2}
    assert report.role_orders["system, user, assistant"] == 1
    assert report.step_counts == {3: 2, 1: 2}
    assert (report.pairs_first, report.pairs_all) == (3, 5)
    assert report.other_splitters == {"numbered": 0, "lines": 3}
    assert report.rows_with_question == 4
    assert [sample.place for sample in report.samples] == ["list row 0", "list row 1"]
    assert asdict(report.samples[0]) == {
        "place": "list row 0",
        "roles": ("system", "user", "assistant"),
        "user": "u",
        "answer": BLANK,
        "steps": 3,
        "separators": 2,
    }


@pytest.mark.parametrize(
    ("answers", "options", "verdict"),
    [
        ([BLANK] * 3, {}, "ready for step_jepa: 3 of 3 rows have two or more steps"),
        (
            [BLANK] * 2 + ["one"],
            {},
            "ready for step_jepa: 2 of 3 rows have two or more steps; the other 1 would train as plain language modelling",
        ),
        (
            [LINES] * 2,
            {},
            "no row has two steps with splitter 'separator'; with 'lines' 2 of 2 have: use --step_splitter lines",
        ),
        (
            [LINES] * 3 + [BLANK],
            {},
            "only 1 of 4 rows have two steps with splitter 'separator'; with 'lines' 4 of 4 have: "
            "use --step_splitter lines",
        ),
        # Both others find the steps; the one that knows more about them is named.
        (
            [NUMBERED] * 2,
            {},
            "no row has two steps with splitter 'separator'; with 'numbered' 2 of 2 have: use --step_splitter numbered",
        ),
        (
            [BLANK] * 2,
            {"separator": "XX"},
            "no row has two steps with splitter 'separator' (XX); with a blank line as separator 2 of 2 have: "
            "leave out --step_separator",
        ),
        (
            ["one", ""],
            {},
            "not for step_jepa: no row has two steps with any splitter; give --step_separator or another --objective",
        ),
        ([LINES], {"splitter": "lines"}, "ready for step_jepa: 1 of 1 rows have two or more steps"),
    ],
)
def test_verdict(answers, options, verdict):
    report = check_format(rows(*answers), **options)
    assert report.verdict == verdict
    assert f"Verdict: {verdict}" in report.lines()
    assert report.to_dict()["ready_for_step_jepa"] == verdict.startswith("ready")


def test_a_question_must_stand_before_a_filled_answer():
    def chat(*turns):
        return {"messages": [{"role": role, "content": text} for role, text in turns]}

    source = [
        chat(("assistant", "a"), ("user", "u")),
        chat(("user", "u"), ("assistant", " ")),
        chat(("user", " "), ("assistant", "a")),
        chat(("assistant", "a"), ("user", "u"), ("assistant", "a")),
    ]
    assert check_format(source).rows_with_question == 1


def test_windows_line_ends_are_separators():
    report = check_format(rows("one\r\n\r\ntwo\r\n\r\nthree"))
    assert report.samples[0].steps == 3
    assert report.samples[0].separators == 2
    assert not any("\r" in line for line in report.lines())


def test_separators_that_make_no_step_are_explained():
    report = check_format(rows("one\n\n```\na\n\nb\n```\n\ntwo"))
    assert (report.samples[0].steps, report.samples[0].separators) == (3, 3)
    assert any("in code" in line for line in report.lines())


def test_samples_are_cut_at_400_characters():
    report = check_format(rows("x" * 401, "y" * 400), show=2)
    assert [len(sample.answer) for sample in report.samples] == [403, 400]
    assert report.samples[0].answer.endswith("x...")
    assert check_format(rows("x"), show=0).samples == []


def test_the_record_is_plain_json():
    record = json.loads(json.dumps(check_format([*rows(BLANK, "one"), 7]).to_dict()))
    assert record["step_counts"] == {"1": 1, "3": 1}
    assert record["message_counts"] == {"2": 2}
    assert record["rows_skipped"] == {"not_an_object": 1}
    assert record["samples"][0]["roles"] == ["user", "assistant"]
    assert record["rows_with_steps"] == 1


def test_nothing_from_the_file_can_steer_a_terminal():
    hostile = "\x1b[31mred\x1b]0;title\x07 [bold]b[/bold] \u202egnp \u2028 \U0001f600\tcode"
    source = [*rows(hostile), {hostile + "\ud800": 1}]
    report = check_format(source)
    text = "\n".join(report.lines())
    assert all(character == "\n" or character.isprintable() for character in text)
    assert r"\x1b[31mred\x1b]0;title\x07 [bold]b[/bold] \u202egnp" in text
    assert r"\ud800" in text
    assert "\U0001f600" in text
    json.dumps(report.to_dict()).encode()


def test_printable_and_escaped():
    assert printable("a\nb\r\x1b") == "a\nb\\r\\x1b"
    assert escaped("a\nb\t") == "a\\nb\\t"
    assert escaped("\u00e9\u65e5\U0001f600") == "\u00e9\u65e5\U0001f600"


def test_errors():
    with pytest.raises(DataError, match="empty"):
        check_format([])
    with pytest.raises(DataError, match=r"none of 2 rows can be used; 1: .*unknown role.*; 1: .*no object"):
        check_format([{"messages": [{"role": "bot", "content": ""}]}, 3])
    with pytest.raises(DataError, match=r"list row 1: .*--strict_data"):
        check_format([*rows("x"), 3], strict=True)
    with pytest.raises(ConfigError, match="known splitters"):
        check_format(rows("x"), "line")
    with pytest.raises(ConfigError, match="show is -1"):
        check_format(rows("x"), show=-1)


def test_broken_json_names_the_line(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps(rows("x")[0]) + "\n\n{broken\n")
    with pytest.raises(DataError, match=r"data.jsonl line 3: broken JSON"):
        check_format(file)


def test_published_data(shared_dir):
    report = check_format(shared_dir / "data" / "gsm8k_train.jsonl")
    assert report.verdict.endswith("with 'lines' 7,473 of 7,473 have: use --step_splitter lines")
    report = check_format(shared_dir / "data" / "gsm8k_train.jsonl", "lines")
    assert report.verdict == "ready for step_jepa: 7,473 of 7,473 rows have two or more steps"
    report = check_format(shared_dir / "data" / "nl_rx_synth_train.jsonl")
    assert report.verdict.startswith("not for step_jepa")
    assert report.rows_with_question == report.rows_usable == 8000
