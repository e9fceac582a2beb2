"""Each raw format becomes question, answer, ground truth and steps; the expected texts are typed out."""

import pytest

from stepjepa.data.prepare import PrepareOptions
from stepjepa.data.prepare.formats import MAX_TEXT, RawFormat, read_example, recognise
from stepjepa.data.prepare.rows import Converter
from stepjepa.errors import ConfigError, DataError, RowError

GSM8K = {"question": "How many?", "answer": "He had 48/2 = <<48/2=24>>24.\nIn all 48+24 = $<<48+24=72>>72.\n#### 72"}
SOCRATIC = {
    "question": "How many?",
    "answer": "How many in May? ** He had 48/2 = <<48/2=24>>24.\nIn all 48+24 = <<48+24=72>>72.\n#### 72",
}
BARS = "How many?||<<48/2=24>> <<48+24=72>> #### 72"
TEACHER = {
    "question": "How many?",
    "answer": "He had 24.\n#### 72",
    "ground_truth": 72,
    "deepseek_response": "<think>\nLet me see.\n</think>\n\nFirst, he had twenty-four of them.\n\n"
    "Then there are \\boxed{72} in all.",
}


def prepared(row, **changes):
    """Question, answer, ground truth and steps of a row, its format recognised."""
    options = PrepareOptions(**changes)
    form = recognise([row], options, "a file")
    example = read_example(row, form, options)
    return (
        example.question,
        example.answer,
        example.ground_truth,
        Converter(form, options, False).steps_of(example)[0],
    )


def test_gsm8k():
    assert prepared(GSM8K) == (
        "How many?",
        GSM8K["answer"],
        "72",
        ["He had 48/2 = 24.", "In all 48+24 = $72.\n\\boxed{72}"],
    )
    assert prepared(GSM8K, calculator_marks="keep", final_answer="keep")[3] == [
        "He had 48/2 = <<48/2=24>>24.",
        "In all 48+24 = $<<48+24=72>>72.\n#### 72",
    ]
    windows = {**GSM8K, "answer": GSM8K["answer"].replace("\n", "\r\n") + "\r\n"}
    assert prepared(windows) == prepared(GSM8K)
    assert prepared({**GSM8K, "ground_truth": "7"})[2] == "7"


def test_gsm8k_socratic():
    assert prepared(SOCRATIC)[2:] == (
        "72",
        ["How many in May?\nHe had 48/2 = 24.", "In all 48+24 = 72.\n\\boxed{72}"],
    )


def test_implicit_cot():
    assert prepared(BARS) == (
        "How many?",
        "<<48/2=24>> <<48+24=72>> #### 72",
        "72",
        ["48/2=24", "48+24=72\n\\boxed{72}"],
    )
    assert prepared(BARS, calculator_marks="keep")[3][0] == "<<48/2=24>>"
    words = "How many?||He had half of 4.5, so 4.5/2 = <<4.5/2=2.25>>2.25 of them. In all 6.75! #### 6.75"
    assert prepared(words)[3] == ["He had half of 4.5, so 4.5/2 = 2.25 of them.", "In all 6.75!\n\\boxed{6.75}"]


def test_teacher():
    steps = ["First, he had twenty-four of them.", "Then there are \\boxed{72} in all."]
    assert prepared(TEACHER) == ("How many?", TEACHER["answer"], "72", steps)
    assert prepared(TEACHER, keep_thinking=True, min_step_length=1)[3] == ["Let me see.", *steps]
    other = {"question": "How many?", "qwen_response": TEACHER["deepseek_response"]}
    assert prepared(other) == ("How many?", TEACHER["deepseek_response"], None, steps)


def test_named_columns():
    row = {
        "problem": "How many?",
        "text": "One and one make two.\nSo the answer is surely 2.",
        "gold": 2.5,
        "source": "x",
    }
    assert prepared(row, question_column="problem", response_column="text", ground_truth_column="gold") == (
        "How many?",
        row["text"],
        "2.5",
        ["One and one make two.", "So the answer is surely 2."],
    )
    row = {"problem": "How many?", "list": ["Take one.", "  ", "Add one.\r\n\r\nGet 2."]}
    assert prepared(row, question_column="problem", response_column="list", step_splitter="list")[3] == [
        "Take one.",
        "Add one.\nGet 2.",
    ]


@pytest.mark.parametrize(
    ("rows", "changes", "format", "columns"),
    [
        ([GSM8K], {}, "gsm8k", ("question", "answer", "answer", "ground_truth")),
        ([SOCRATIC], {}, "gsm8k_socratic", ("question", "answer", "answer", "ground_truth")),
        ([TEACHER], {}, "teacher", ("question", "answer", "deepseek_response", "ground_truth")),
        ([BARS, "x"], {}, "implicit_cot", ("", "", "", "ground_truth")),
        ([{"prompt": "a", "completion": "b"}], {}, "columns", ("prompt", "completion", "completion", "ground_truth")),
        ([GSM8K, 3, {"id": 1}, GSM8K, SOCRATIC], {}, "gsm8k", ("question", "answer", "answer", "ground_truth")),
        ([{**TEACHER, "deepseek_response": None}, TEACHER, TEACHER], {}, "teacher", None),
        ([{"question": "a", "answer": "#### Step 1\nx\n#### Step 2\n\\boxed{1}"}], {}, "columns", None),
        ([{"q": "a", "r": "b"}], {"question_column": "q", "response_column": "r"}, "columns", None),
        ([TEACHER], {"format": "gsm8k"}, "gsm8k", ("question", "answer", "answer", "ground_truth")),
        ([TEACHER], {"format": "columns"}, "columns", ("question", "answer", "answer", "ground_truth")),
        ([GSM8K], {"format": "teacher"}, "teacher", ("question", "answer", "deepseek_response", "ground_truth")),
    ],
)  # fmt: skip
def test_recognised(rows, changes, format, columns):
    form = recognise(rows, PrepareOptions(**changes), "a file")
    assert form.name == format and columns in (None, form[1:5])
    assert form.why == "as given" if "format" in changes else form.why.startswith("recognised: ")


@pytest.mark.parametrize(
    ("rows", "changes", "words"),
    [
        (
            [{"id": 1, "text": "a"}],
            {},
            "format not recognised (columns found: id, text); name the columns with --question_",
        ),
        ([{"messages": []}], {}, "the rows are chats already ('messages')"),
        (["a", "b"], {}, "the rows are lines of text without '||'"),
        ([[1], [2]], {}, "the rows are JSON of type list"),
        ([GSM8K], {"response_column": "deepsek"}, "'deepsek' (found: question, answer)"),
        (["a"], {"format": "gsm8k"}, "the rows are lines of text"),
    ],
)
def test_not_recognised(rows, changes, words):
    with pytest.raises(DataError) as caught:
        recognise(rows, PrepareOptions(**changes), "a file")
    assert str(caught.value).startswith("a file: ") and words in str(caught.value)


def test_a_splitter_for_rows_that_name_their_steps():
    with pytest.raises(ConfigError, match="rows of format gsm8k_socratic name their steps themselves; leave it out"):
        recognise([SOCRATIC], PrepareOptions(step_splitter="lines"), "a file")


@pytest.mark.parametrize(
    ("format", "row", "reason", "words"),
    [
        ("gsm8k", 3, "not_an_object", "the row is a int"),
        ("gsm8k", {"question": "q"}, "missing_column", "column 'answer' is missing (columns found: question)"),
        ("gsm8k", {"question": None, "answer": "#### 1"}, "missing_column", "column 'question' is null"),
        ("gsm8k", {"question": 3, "answer": "#### 1"}, "not_text", "column 'question' has type int; it must be text"),
        ("gsm8k", {"question": "q", "answer": ["#### 1"]}, "not_text", "column 'answer' has type list"),
        ("gsm8k", {"question": " \n", "answer": "#### 1"}, "empty_text", "column 'question' is empty"),
        ("gsm8k", {"question": "q", "answer": "x\n####"}, "no_final_answer", "it ends in 'x ####'"),
        ("gsm8k", {"question": "q", "answer": "#### 3\ny"}, "no_final_answer", "it ends in '#### 3 y'"),
        ("gsm8k", {"question": "q", "answer": "a" * (MAX_TEXT + 1)}, "text_too_long", "has 1,000,001 characters"),
        ("teacher", {"question": "q", "deepseek_response": {}}, "not_text", "has type dict"),
        ("teacher", {"question": "q", "deepseek_response": "r", "answer": True}, "not_text", "'answer' has type bool"),
        ("teacher", {"question": "q", "deepseek_response": "r", "ground_truth": [1]}, "not_text", "has type list"),
        ("teacher", {"question": "q", "deepseek_response": "r", "ground_truth": 10**5000}, "not_text", "thousands of"),
        ("implicit_cot", "no bars", "no_bars", "no '||'"),
        ("implicit_cot", "q||a b", "no_final_answer", "it ends in 'a b'"),
        ("implicit_cot", "q||a ####  ", "no_final_answer", "does not end in"),
        ("implicit_cot", " ||a #### 1", "empty_question", "nothing stands in front"),
        ("implicit_cot", {"text": "q||a #### 1"}, "not_text", "the row is a dict"),
    ],
)
def test_rows_that_are_refused(format, row, reason, words):
    with pytest.raises(RowError) as caught:
        read_example(
            row,
            RawFormat(format, "question", "answer", "deepseek_response" if format == "teacher" else "answer"),
            PrepareOptions(),
        )
    assert caught.value.reason == reason and words in str(caught.value)


@pytest.mark.parametrize("nothing", [None, float("nan"), "", "  "])
def test_a_missing_ground_truth_is_none(nothing):
    assert prepared({**TEACHER, "ground_truth": nothing})[2] is None
