"""Warnings of the format check: each on a file that calls for it and on one that does not."""

import pytest

from stepjepa.data.signs import cuts_inside
from stepjepa.inspect.check import DataWarning, text_warnings, warning_lines
from support.checks import check_format

STEPS = "First we add two.\n\nThen we stop here."
SYSTEM = {"role": "system", "content": "Be brief."}


def chat(question, answer, *before):
    return {
        "messages": [*before, {"role": "user", "content": question}, {"role": "assistant", "content": answer}],
    }


def rows(*answers, system=True):
    before = (SYSTEM,) if system else ()
    return [chat(f"question {number}", answer, *before) for number, answer in enumerate(answers)]


def found(source, *, steps=True, **options):
    return {caution.name: caution for caution in text_warnings(check_format(source, **options), steps)}


def test_nothing_to_warn_of():
    assert found(rows(STEPS, STEPS, STEPS)) == {}
    assert warning_lines([]) == ["Warnings: none"]


def test_one_step():
    warned = found(rows("one", "two", "three", STEPS))["one_step"]
    assert (warned.count, warned.total) == (3, 4)
    assert warned.text == "3 of 4 rows (75.0 %) have one step with splitter 'separator'"
    assert "for step_jepa, separate the steps" in warned.advice
    lines = found(rows("we add\nwe stop", "we add\nwe stop", STEPS))["one_step"]
    assert "use --step_splitter lines, which finds two or more in 3" in lines.advice
    assert "leave out --step_separator" in found(rows(STEPS), separator="XX")["one_step"].advice
    assert "one_step" not in found(rows("one", "two", STEPS, STEPS))
    assert "one_step" not in found(rows("one", "two"), steps=False)


def test_steps_of_one_word():
    warned = found(rows("Add.\n\nThen stop.", STEPS))["one_word_steps"]
    assert (warned.count, warned.total) == (1, 4)
    assert "1 of 4 steps (25.0 %) are one word (first: row 0)" in warned.text
    # One of twenty is no more than a twentieth; answers of one step have no views.
    assert "one_word_steps" not in found(rows("Add.\n\nThen stop.", *[STEPS] * 9))
    assert "one_word_steps" not in found(rows("Add.", STEPS))


def test_long_steps():
    long = "word " * 400  # 2,000 characters
    warned = found(rows(f"{long}x\n\n{STEPS}", STEPS))["long_steps"]
    assert (warned.count, warned.total) == (1, 5)
    assert "the longest has 2,003 (row 0)" in warned.text
    assert "long_steps" not in found(rows(f"{long[:-2]}\n\n{STEPS}", STEPS))


@pytest.mark.parametrize(
    "line", ["#### 72", r"\boxed{72}", r"$\boxed{72}$.", r"**\boxed{7 apples}**", r"\[\boxed{x}\]", "  #### 1,000\n"]
)
def test_an_answer_line_of_its_own(line):
    warned = found(rows(f"{STEPS}\n\n{line}", f"We add two.\n\n{line}", STEPS))["answer_line"]
    assert (warned.count, warned.total) == (2, 3)
    assert "--step_pairs first predicts it in 1 of them" in warned.advice


@pytest.mark.parametrize(
    "line", [r"So it is \boxed{72}.", "#### Final answer: 72", "The answer is 72.", r"\boxed{72} is right", "###### 7"]
)
def test_no_answer_line(line):
    assert "answer_line" not in found(rows(f"{STEPS}\n\n{line}"))
    assert "answer_line" not in found(rows(line))


def test_the_separator_inside_blocks():
    code, maths = "Code:\n\n```\na\n\nb\n```\n\nDone.", "Maths:\n\n$$\na\n\nb\n$$\n\nDone."
    thoughts = "<think>one\n\ntwo</think>\n\nIt is three.\n\nDone."
    warned = found(rows(code, maths, thoughts, STEPS))
    blocks, thinking = warned["cut_in_blocks"], warned["cut_in_thoughts"]
    assert (blocks.count, thinking.count) == (2, 1)
    assert "\\n\\n is inside code, display maths or a table (first: row 0)" in blocks.text
    assert "a plain split, as in the published code, would cut there" in blocks.advice
    assert "a thinking block (first: row 2)" in thinking.text
    assert not {"cut_in_blocks", "cut_in_thoughts"} & set(found(rows("Code:\n\n```\na\nb\n```\n\nDone.", STEPS)))


def test_the_separator_is_the_one_that_is_used():
    source = rows("Code:\n```\na\nb\n```\nDone.")
    warned = found(source, splitter="lines")["cut_in_blocks"]
    assert warned.text.startswith("in 1 of 1 row (100.0 %) \\n is inside")
    assert "published" not in warned.advice
    assert "cut_in_blocks" not in found(source)
    assert "cut_in_blocks" in found(rows("a|`x`|b ```\nc|d\n```|e"), separator="|")


def test_cuts_inside():
    assert cuts_inside("one\n\ntwo", "\n\n") == (False, False)
    assert cuts_inside("```\na\n\nb\n```", "\n\n") == (False, True)
    assert cuts_inside("<think>a\n\nb</think>c", "\n\n") == (True, False)
    assert cuts_inside("<think>a</think>\n\n```\nb\n```", "\n\n") == (False, False)


def test_no_system_message():
    warned = found(rows(STEPS, STEPS, system=False))["no_system_prompt"]
    assert warned.text == "no row of 2 has a system message"
    assert found(rows(STEPS, STEPS, system=False), system_prompt="Be brief.") == {}


def test_a_system_message_in_some_rows():
    source = [*rows(STEPS), chat("q", STEPS), chat("r", STEPS, {"role": "system", "content": " "})]
    warned = found(source)
    assert "no_system_prompt" not in warned
    assert warned["mixed_system_prompt"].count == 2
    assert warned["mixed_system_prompt"].text.endswith("(first without: row 1)")


def test_empty_answers():
    warned = found([*rows(STEPS, " \n"), chat("q", STEPS, SYSTEM)])["empty_answers"]
    assert (warned.count, warned.total) == (1, 3)
    assert "(first: row 1)" in warned.text


def test_duplicate_questions():
    source = [
        chat(q, a, SYSTEM) for q, a in (("How  many?", STEPS), ("x", STEPS), ("how MANY?", STEPS), ("x", "y\n\nz"))
    ]
    warned = found(source)["duplicate_questions"]
    assert (warned.count, warned.total) == (2, 4)
    assert warned.text == (
        "2 of 4 rows (50.0 %) repeat the question of an earlier one, 1 of them with the same answer "
        "(first: row 0 and row 2)"
    )
    assert "several answers" in warned.advice
    assert found(source[:3])["duplicate_questions"].advice.startswith("remove them")
    assert "duplicate_questions" not in found(source[:2])
    # What is asked is all that the user says; without a user nothing is asked.
    turns = [{"role": "user", "content": "more"}, {"role": "assistant", "content": STEPS}]
    longer = {"messages": [*source[1]["messages"], *turns]}
    alone = {"messages": [SYSTEM, {"role": "assistant", "content": STEPS}]}
    assert "duplicate_questions" not in found([source[1], longer, alone, alone])


def test_duplicate_texts():
    source = [{"text": "One and two."}, {"text": "one AND two."}, {"input_ids": [1, 2]}, {"input_ids": [1, 2]}]
    warned = found(source)
    assert set(warned) == {"duplicate_texts"}
    assert (warned["duplicate_texts"].count, warned["duplicate_texts"].total) == (2, 4)
    assert found(source[1:3]) == {}


def test_questions_of_the_evaluation_file():
    train = rows(STEPS, STEPS, STEPS)
    held_out = [{"question": "QUESTION 2 ", "answer": "x"}, {"question": "another", "answer": "x"}, 3]
    warned = found(train, eval_file=held_out)["eval_in_train"]
    assert (warned.count, warned.total) == (1, 2)
    assert warned.text == (
        "1 of 2 rows (50.0 %) of list ask what a row of the training file asks (first: list row 0 and list row 2)"
    )
    assert found(train, eval_file=held_out[1:]) == {}
    named = [{"q": "one", "a": "x"}]
    assert "eval_in_train" in found(named, eval_file=[{"q": "One", "a": "y"}], source_column="q", target_column="a")
    texts = [{"text": "One and two."}]
    assert "eval_in_train" in found(texts, eval_file=[{"text": "one and two."}])


def test_warnings_in_words():
    lines = warning_lines([DataWarning("a", 1, 2, "what was " + "found " * 30, "do this")], width=40)
    assert lines[:2] == ["Warnings: 1", "  1. What was found found found found"]
    assert all(len(line) <= 40 for line in lines)
    assert all(line.startswith("     ") for line in lines[2:])
    assert lines[-1] == "     Do this."


def test_hostile_places(tmp_path):
    file = tmp_path / "a\x1b[31m.jsonl"
    file.write_text('{"question": "q", "answer": ""}\n' * 2)
    lines = warning_lines(text_warnings(check_format(file, eval_file=file)))
    assert all(character.isprintable() for line in lines for character in line)
