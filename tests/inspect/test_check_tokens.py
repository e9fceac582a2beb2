"""What a model will see of a data set, counted by hand with a tokenizer whose tokens are words."""

import json
from weakref import WeakSet

import pytest

from stepjepa.data.encode import encode_dataset
from stepjepa.data.template import ChatRenderer
from stepjepa.errors import DataError
from stepjepa.inspect.check import check, reader
from stepjepa.utils.parallel import twice
from support.checks import ROWS, tokens_of, warned, words
from support.encoding import settings_of
from support.rows import step_rows


def test_counts_by_hand():
    found = tokens_of(ROWS)
    data, cut = found.data, found.truncation
    assert (data.rows_read, data.rows_kept, data.examples, data.pairs) == (3, 3, 3, 2)
    assert data.examples_without_pairs == {"fewer_than_two_steps": 1}
    assert (data.tokens, data.labelled_tokens) == (34, 7 + 3 + 4)
    assert data.token_length == {"min": 8, "p50": 13, "p90": 13, "p99": 13, "max": 13}
    assert (cut.answers_cut, cut.rows_without_room, cut.tokens, cut.tokens_lost) == (0, 0, 34, 0)
    assert cut.holds == {"100": 13, "99": 13, "95": 13}
    assert found.sampled == 3
    assert found.segments == {
        "template and markup": 5 + 5 + 7,
        "system": 2,
        "user": 2 + 1 + 1,
        "assistant": 6 + 2 + 3,
        "predictor tokens": 4,
        "copies of targets": 1 + 2,
    }


@pytest.mark.slow
def test_chunks_and_processes_count_the_same(tmp_path, monkeypatch):
    file, options = tmp_path / "rows.jsonl", {"objective": "step_jepa", "step_splitter": "separator", "show": 3}
    file.write_text("\n".join(json.dumps(row) for row in [*step_rows(9), 3, *ROWS, 4, *step_rows(2)]))
    whole = check(str(file), "micro", max_length=20, **options)
    monkeypatch.setattr(reader, "CHUNK_ROWS", 2)
    for model, processes in (("micro", 1), ("micro", 2), (None, 1), (None, 2)):
        found = check(str(file), model, num_proc=processes, **options, **({"max_length": 20} if model else {}))
        assert found.texts == whole.texts and (model is None or found.to_dict() == whole.to_dict())
    assert (whole.tokens.data.rows_read, whole.texts.rows_skipped.total()) == (16, 2) and whole.texts.repeats.rows
    found = tokens_of([*ROWS, 3, *ROWS], max_length=8)
    assert (found.data.rows_read, found.data.rows_kept, found.truncation.tokens, found.sampled) == (7, 4, 68, 4)
    assert found.data.rows_skipped == {"no_room_for_answer": 2, "not_an_object": 1}


def test_what_both_have_had_is_let_go():
    alive = WeakSet()
    both = twice(alive.add(one) or one for one in ((lambda: 0) for _ in range(99)))
    assert max(len(alive) for _ in zip(*both, strict=False)) < 5


def test_steps_that_a_column_holds():
    rows = [
        {"question": "how", "answer": "one two three", "steps": ["one", "two three"]},
        {"question": "how", "steps": ["one", "two"]},
    ]
    found = tokens_of(rows, step_splitter="list")
    assert found.data.pairs == 2
    assert (found.segments["assistant"], found.segments["copies of targets"]) == (5, 3)


def test_truncation():
    found = tokens_of(ROWS, max_length=10)
    cut = found.truncation
    assert (cut.answers_cut, cut.rows_without_room, cut.tokens, cut.tokens_lost) == (2, 0, 34, 3 + 3)
    assert cut.holds == {"100": 13, "99": 13, "95": 13}
    assert found.data.pairs_dropped == {"pair_truncated": 1}
    warning = warned(found)["truncated"]
    assert (warning.count, warning.total) == (2, 3)
    assert "raise --max_length to 13, or take them out" in warning.advice
    found = tokens_of(ROWS, max_length=8)  # the third row's answer begins at token 9
    cut = found.truncation
    assert (cut.answers_cut, cut.rows_without_room, cut.tokens, cut.tokens_lost) == (1, 1, 34, 5 + 13)
    assert found.data.first_skipped["no_room_for_answer"].startswith("list row 2: the prompt has 9 tokens")
    assert "truncated" not in warned(tokens_of(ROWS, max_length=13))


def test_the_length_that_holds_a_share_of_the_chats():
    rows = [{"question": "how", "answer": "one " * count + "two"} for count in range(100)]  # 7 to 106 tokens
    found = tokens_of(rows, max_length=50, sample_rows=2)
    assert found.truncation.holds == {"100": 106, "99": 105, "95": 101}
    assert (found.truncation.answers_cut, found.truncation.tokens_lost) == (56, sum(range(1, 57)))
    assert "to 106, or to 105 for 99 % of the rows" in warned(found)["truncated"].advice


def test_a_sample():
    found = tokens_of(ROWS * 10, sample_rows=4)
    assert (found.sampled, found.data.pairs) == (4, 20)
    assert "(the first 4 examples)" in "\n".join(found.lines())


def test_the_rows_are_read_once():
    class Rows(list):
        read = 0

        def __iter__(self):
            for row in super().__iter__():
                Rows.read += 1
                yield row

    rows = Rows(step_rows(1500))
    found = check(rows, "micro", objective="step_jepa")  # whose tokenizer is trained on them
    assert (found.texts.rows_read, found.tokens.data.rows_read) == (1500, 1500)
    assert Rows.read < 3 * 1500  # some are looked at for their splitter


def test_plain_text():
    rows = [
        {"text": "one two three four"},
        {"text": ""},
        {"input_ids": [7, 8, 9]},
        {"question": "how", "answer": "one"},
    ]
    found = tokens_of(rows, "split", max_length=3, labels="assistant")
    # one two three | four <end>; 7 8 9; the chat's first three tokens hold no answer.
    assert (found.data.rows_read, found.data.rows_kept, found.data.examples) == (4, 2, 3)
    assert found.plain_text and found.truncation is None
    assert found.data.rows_skipped == {"nothing_to_learn": 1, "no_room_for_answer": 1}
    assert found.segments == {"plain text": 8}
    lines = found.lines()
    assert any("3 examples: texts are cut into blocks of max_length" in line for line in lines)
    with pytest.raises(DataError, match="needs chats"):
        tokens_of(rows, "step_jepa")


def test_the_record_and_the_lines():
    found = tokens_of([*ROWS, {"question": "how \x1b[31m", "answer": "one"}, 3])
    record = json.loads(json.dumps(found.to_dict()))
    assert record["data"]["rows_skipped"] == {"not_an_object": 1}
    lines = found.lines()
    assert all(character.isprintable() for line in lines for character in line)
    assert lines[1:3] == [
        "  list: 5 rows read, 4 kept, 1 skipped, 2 pairs",
        "    skipped 1: the row is no object with columns (first: list row 4: the row is a int, not an object with columns)",
    ]
    assert "    2 without a pair (plain language modelling): the answer has fewer than two steps" in lines
    assert "  Truncation at max_length 1,024: none; the longest has 13, 99 % fit into 13, 95 % into 13" in lines


def examples(**options):
    settings = settings_of(predictors=2, **options)
    tokenizer = words()
    store, data = encode_dataset(ROWS, tokenizer, ChatRenderer(tokenizer), settings)
    return list(store), data


def test_the_report_is_that_of_training():
    _, data = examples()
    assert {**tokens_of(ROWS).data.to_dict(), "fingerprint": ""} == {**data.to_dict(), "fingerprint": ""}


def test_other_forms():
    two = tokens_of(ROWS, forward="two_pass")
    kinds = ("predictor tokens", "standalone sources", "copies of targets")
    assert [two.segments[kind] for kind in kinds] == [4, 8 + 10, 1 + 2]
    inline = tokens_of(ROWS, forward="inline").segments
    assert [inline.get(kind, 0) for kind in kinds] == [4, 0, 0]
    assert sum(two.segments.values()) - 8 - 10 - 3 == sum(inline.values()) == 34 + 4


BARE = "{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}"
# warning, rows, tokenizer and options, words of its text or None where there is none
CASES = [
    ("no_pairs", [ROWS[1]], {}, "no example of 1 has a pair for step_jepa"),
    ("no_end_of_turn", ROWS, {"tokenizer": words(BARE, eos_token=None)}, "nothing ends an answer"),
    ("no_end_of_turn", ROWS, {"tokenizer": words(BARE)}, None),  # an EOS is appended
]


@pytest.mark.parametrize(("name", "rows", "options", "text"), CASES)
def test_warning(name, rows, options, text):
    warning = warned(tokens_of(rows, **options)).get(name)
    assert (warning is None) == (text is None) and (text is None or text in warning.text)


def test_nothing_to_warn_of():
    for options in ({"labels": "all"}, {"objective": "regular"}):
        assert warned(tokens_of(ROWS, **options)) == {}
