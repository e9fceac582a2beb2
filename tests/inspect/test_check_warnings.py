"""Warnings of the format check: each on a file that calls for it and on one that does not."""

import pytest

from stepjepa.inspect.check.run import DataWarning, text_warnings, warning_lines
from support.checks import check_format

STEPS = "First we add two.\n\nThen we stop here."
SYSTEM = {"role": "system", "content": "Be brief."}
NAMED = {"source_column": "q", "target_column": "a"}


def chat(question, answer, *before):
    return {"messages": [*before, {"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def rows(*answers, system=True):
    before = (SYSTEM,) if system else ()
    return [chat(f"question {number}", answer, *before) for number, answer in enumerate(answers)]


def repeated(*asked):
    return [chat(question, answer, SYSTEM) for question, answer in asked]


def found(source, *, steps=True, **options):
    return {warning.name: warning for warning in text_warnings(check_format(source, **options), steps)}


TURNS = [{"role": "user", "content": "more"}, {"role": "assistant", "content": STEPS}]
ASKED = (("How  many?", STEPS), ("x", STEPS), ("how MANY?", STEPS), ("x", "y\n\nz"))
TEXTS = [{"text": "One and two."}, {"text": "one AND two."}, {"input_ids": [1, 2]}, {"input_ids": [1, 2]}]
TRAIN = rows(STEPS, STEPS, STEPS)
HELD_OUT = [{"question": "QUESTION 2 ", "answer": "x"}, {"question": "another", "answer": "x"}, 3]

# warning, rows, options, (count, total) or None where there is none, words of text and advice
CASES = [
    (
        *("one_step", rows("one", "two", "three", STEPS), {}, (3, 4)),
        ["3 of 4 rows (75.0 %) have one step (found by --step_splitter separator)", "; give --step_separator, or"],
    ),
    (
        *("one_step", rows("we add\nwe stop", "we add\nwe stop", STEPS), {}, (2, 3)),
        ["use --step_splitter lines: the splitter that auto chooses, lines, finds them in 3"],
    ),
    ("one_step", rows(STEPS), {"separator": "XX"}, (1, 1), ["leave out --step_separator"]),
    ("one_step", rows("one", "two", STEPS, STEPS), {}, None, []),
    ("one_step", rows("one", "two"), {"steps": False}, None, []),
    (
        *("duplicate_questions", repeated(*ASKED), {}, (2, 4)),
        ["2 of 4 rows (50.0 %) repeat the question of an earlier one (first: row 0 and row 2)", "several answers"],
    ),
    ("duplicate_questions", repeated(*ASKED[:3]), {}, (1, 3), ["keeps the first"]),
    ("duplicate_questions", repeated(*ASKED[:2]), {}, None, []),
    # What is asked is all that the user says; without a user nothing is asked.
    (
        *("duplicate_questions", [*repeated(ASKED[1]), {"messages": [*repeated(ASKED[1])[0]["messages"], *TURNS]}]),
        *({}, None, []),
    ),
    ("duplicate_questions", [{"messages": [SYSTEM, TURNS[1]]}] * 2, {}, None, []),
    ("duplicate_texts", TEXTS, {}, (2, 4), ["(first: row 0 and row 1)"]),
    ("duplicate_texts", TEXTS[1:3], {}, None, []),
    (
        *("eval_in_train", TRAIN, {"eval_file": HELD_OUT}, (1, 2)),
        ["1 of 2 rows (50.0 %) of list ask what a row of the training file asks (first: list row 0 and list row 2)"],
    ),
    ("eval_in_train", TRAIN, {"eval_file": HELD_OUT[1:]}, None, []),
    ("eval_in_train", [{"q": "one", "a": "x"}], {"eval_file": [{"q": "One", "a": "y"}], **NAMED}, (1, 1), []),
    ("eval_in_train", TEXTS[:1], {"eval_file": TEXTS[1:2]}, (1, 1), []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "source", "options", "counts", "words"), CASES)
def test_warning(name, source, options, counts, words):
    warning = found(source, **options).get(name)
    assert (warning and (warning.count, warning.total)) == counts
    assert all(one in f"{warning.text} {warning.advice}" for one in words)


def test_nothing_to_warn_of():
    assert found(TRAIN) == {} == found(TRAIN, eval_file=HELD_OUT[1:])
    assert set(found(TEXTS)) == {"duplicate_texts"}
    assert warning_lines([]) == ["Warnings: none"]


def test_steps_that_rows_hold():
    source = [{"question": f"q {n}", "answer": STEPS, "steps": steps} for n, steps in enumerate(([], 5, ["no"]))]
    warned = found(source, splitter="auto")
    assert "1 of 3 rows (33.3 %) hold steps that cannot be taken: the steps" in warned["own_no_steps"].text
    assert "(first: row 1: column 'steps' is no list of texts)" in warned["own_no_steps"].text
    assert "do not stand in its answer (first: row 2" in warned["own_steps_not_found"].text


def test_lines_of_a_warning():
    lines = warning_lines([DataWarning("a", 1, 2, "what was " + "found " * 30, "do this")], width=40)
    assert lines[:2] == ["Warnings: 1", "  1. What was found found found found"]
    assert all(len(line) <= 40 for line in lines) and all(line.startswith("     ") for line in lines[2:])
    assert lines[-1] == "     Do this."


def test_hostile_places(tmp_path):
    file = tmp_path / "a\x1b[31m{0}.jsonl"
    file.write_text('{"question": "q", "answer": ""}\n' * 2)
    lines = warning_lines(text_warnings(check_format(file, eval_file=file)))
    assert all(character.isprintable() for line in lines for character in line)
