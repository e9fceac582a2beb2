"""Which step splitter the format check advises, and every one that it takes."""

from stepjepa.data.format_check import check_format
from stepjepa.data.steps import STYLES

BLANK, LINES, NUMBERED = "one\n\ntwo\n\nthree", "one\ntwo\nthree", "Step 1: one\nStep 2: two"
PARTS = "## Add\nWe add.\n## Stop\nWe stop."
WORDS = "First, we add.\nIt is easy.\nThen we stop."
SENTENCES = "First one. Then two. So three."


def rows(*answers):
    return [{"question": f"question {number}", "answer": answer} for number, answer in enumerate(answers)]


def verdict(*answers, **options):
    return check_format(rows(*answers), **options).verdict


def test_splitters_that_see_markers_are_advised_before_lines():
    assert verdict(PARTS).endswith("with 'headings' 1 of 1 have: use --step_splitter headings")
    assert verdict(WORDS).endswith("with 'connectives' 1 of 1 have: use --step_splitter connectives")
    # A tenth of what lines find is not enough.
    assert verdict(WORDS, *[LINES] * 9).endswith("with 'lines' 10 of 10 have: use --step_splitter lines")


def test_sentences_are_advised_only_where_nothing_else_is():
    assert verdict(SENTENCES, SENTENCES, "one").endswith("with 'sentence' 2 of 3 have: use --step_splitter sentence")
    assert verdict(SENTENCES, "one").startswith("not for step_jepa")  # not in most rows
    assert check_format(rows(SENTENCES), "sentence").verdict.startswith("ready for step_jepa: 1 of 1")
    # One row in eleven is hardly a way to write steps, two are.
    assert verdict(*[SENTENCES] * 10, LINES).endswith("with 'sentence' 10 of 11 have: use --step_splitter sentence")
    assert "'lines' 2 of 11" in verdict(*[SENTENCES] * 9, LINES, LINES)


def test_steps_in_hardly_any_row():
    report = check_format(rows(BLANK, *["one"] * 10))
    assert report.verdict == (
        "hardly for step_jepa: only 1 of 11 rows have two steps, and no splitter finds them in more; "
        "give --step_separator or another --objective"
    )
    assert report.to_dict()["ready_for_step_jepa"] is False
    assert check_format(rows(BLANK, *["one"] * 9)).verdict.startswith("ready for step_jepa: 1 of 10 rows")


def test_answers_that_are_best_split_one_by_one():
    report = check_format(rows(BLANK, BLANK, BLANK, LINES, NUMBERED, "one"))
    assert (report.rows_with_steps, report.auto_rows, report.by_answer) == (3, 2, 5)
    (line,) = [line for line in report.lines() if "stepjepa prepare" in line]
    assert line.startswith(
        "  2 rows with steps in another style (first: row 3). With the splitter that serves each answer, 5 of 6"
    )
    assert check_format(rows(LINES, LINES)).by_answer is None  # lines find as many
    assert check_format(rows(BLANK, BLANK)).by_answer is None
    report = check_format(rows(*[BLANK] * 100, LINES))
    assert (report.auto_rows, report.by_answer) == (1, None)  # less than one in a hundred


def test_every_splitter_of_training():
    for name in STYLES:
        report = check_format(rows(NUMBERED, BLANK), name, "^Step" if name == "regex" else "\\n\\n")
        assert report.rows_usable == 2
        assert (report.samples[0].separators is not None) == (name in ("separator", "lines"))
    assert "splitter 'regex' (^Step):" in "\n".join(check_format(rows(NUMBERED), "regex", "^Step").lines())


def test_steps_in_a_column():
    source = [
        {"question": "q", "answer": "One.  Two. Three.", "steps": ["One.", "Two.", "Three."]},
        {"question": "q", "steps": ["We add.", "We stop."]},
        {
            "messages": [{"role": "assistant", "content": "a\n\nb"}, {"role": "assistant", "content": "cd"}],
            "steps": ["c", "d"],
        },
        {"question": "q", "answer": "One.", "steps": ["Two."]},
        {"question": "q", "answer": "One."},
    ]
    report = check_format(source, "list")
    assert report.step_counts == {3: 1, 2: 2}
    assert report.rows_skipped == {"steps_not_found": 1, "no_steps": 1}
    assert check_format([{"question": "q", "parts": ["a", "b"]}], "list", steps_column="parts").pairs_all == 1
