"""`prepare` leaves code as it is, in many languages, fenced and not, alone and among prose."""

import pytest

from stepjepa.data.blocks import answer_of, holds_code
from stepjepa.data.options import PrepareOptions
from stepjepa.data.prepare_rows import Converter, RawExample, RawFormat, read_example, recognise
from stepjepa.data.steps import spans_of_steps

PROSE = "The function takes a list of numbers.\n\nIt returns the largest one of them."
STYLES = ("auto", "separator", "lines", "numbered", "sentence")


def prepared(response: str, **options):
    """The prepared answer; training finds its steps in it, one after the other."""
    converter = Converter(RawFormat("columns"), PrepareOptions(**options))
    content, steps = converter.steps_of(RawExample("q", "a", None, response))
    spans = spans_of_steps(content, steps)
    assert [content[start:end].strip() for start, end in spans] == [step.strip() for step in steps]
    assert sum(map(len, steps)) > 0 and all(step in content for step in steps)
    return content


PYTHON = """\
class Stack:
    def __init__(self, *items):
        \'\'\'Holds items.

        1. The last one comes first.
        2. Nothing is copied.\'\'\'
        self.items = list(items)

    # Removes the last one.
    def pop(self):
        return self.items.pop()  # of the list"""


@pytest.mark.parametrize(
    "text",
    [
        PYTHON,
        "#include <stdio.h>\n\nint main(void) {\n  return 0;\n}",
        "SELECT name\n  FROM people\n\n WHERE age > 3;",
        "package main\n\nfunc main() {\n\tprintln(1)\n}",
        "<ul>\n  <li>a</li>\n\n  <li>b</li>\n</ul>",
        "all: a b\n\n\tcc -o a a.c\n\n\tcc -o b b.c",
        ">>> f(1)\n2\n\n>>> f(2)\n    3",
        # About thinking, with its marks.
        "import re\n\ndef strip(t):\n    return re.sub(r'<think>.*?</think>', '', t)\n\nprint(strip('a'))",
        "def f(t):\n    head, _, tail = t.partition('x</think>')\n\n    return tail",
    ],
)
def test_code_of_other_languages_and_about_thinking(text):
    for style in STYLES:
        assert prepared(text, step_splitter=style) == prepared(text, step_splitter=style, keep_thinking=True) == text
    assert answer_of(text) == text


def test_code_among_prose_stays_as_it_is():
    for text in (f"{PROSE}\n\n{PYTHON}", f"{PROSE}\n\n{PYTHON}\n\nDone, it works."):
        assert prepared(text) == text
    indented = "\n".join("    " + line if line else line for line in PYTHON.split("\n"))
    for fenced in (f"```python\n{PYTHON}\n```", f"~~~\n{PYTHON}\n~~~", f"    ```\n{indented}\n    ```"):
        for text in (f"{PROSE}\n\n{fenced}\n\nDone.", fenced, f"1. Write it:\n\n{fenced}\n\n2. Run it now."):
            for style in ("auto", "separator", "lines", "numbered"):
                assert fenced in prepared(text, step_splitter=style)


def test_a_comment_at_the_end_of_code_is_no_final_answer():
    form, code = RawFormat("columns"), "def f(x):\n    return x\n\n#### end of f"
    for options in (PrepareOptions(), PrepareOptions(step_splitter="lines")):
        row = {"question": "q", "answer": code}
        assert Converter(form, options).steps_of(read_example(row, form, options))[0] == code
        # Program-aided answers end like the second.
        for answer in ("Add both.\n#### 72", "def f(x):\n    return x\n#### 72", "So:\n#### Paris"):
            assert read_example({**row, "answer": answer}, form, options).final == answer.split()[-1]
    assert recognise([{"question": "q", "answer": code}] * 3, PrepareOptions(), "rows").name == "columns"


def test_prose_is_no_code():
    loop = "For each box:\n  take one of them.\n\nThen add."
    for text in (PROSE, loop, "x = 3\ny = 4", "If x > 3, then y = 2.\nelse y = 1", "Yes\nNo"):
        assert not holds_code(text)


def test_white_space_inside_a_step_stays():
    text = "1. Take one of the apples.\n\n   - It   is red.\n\n   - It is\tsweet.\n\n2. Add another one to it."
    assert prepared(text, step_splitter="numbered") == text.replace("\n\n   -", "\n   -")
