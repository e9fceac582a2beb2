"""``stepjepa inspect`` with several examples, several K, and files to write."""

import json

import pytest

from stepjepa.cli.main import main
from stepjepa.data.types import Example
from stepjepa.inspect.html import LIMIT
from support.drawings import cells
from support.pages import read_page

STEPS = {"question": "How many?", "answer": "First one.\n\nThen two.\n\nSo three."}
ONE = {"question": "How many?", "answer": "Three."}
WRONG = {"messages": []}
HOSTILE = {
    "messages": [
        {
            "role": "user",
            "content": "</script><script>alert(1)</script>\u202e\x00\ud83d\ude00 \u05e9\u05dc\u05d5\u05dd",
        },
        {"role": "assistant", "content": "\x1b[31m<!--\n\n\u0000two</title>"},
    ]
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (STEPS, ONE, WRONG, HOSTILE, STEPS)))
    return str(path)


@pytest.fixture
def inspect(capsys, monkeypatch, file):
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*options, status=0, width=100, file=file):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["inspect", file, "--model_name", "tiny", *map(str, options)]) == status
        out, err = capsys.readouterr()
        assert (err == "") == (status == 0)
        return err if status else out

    return call


def test_several_examples(inspect):
    out = inspect("--step_jepa", "--rows_packed", "3")
    said = " ".join(out.split())
    assert "packing: 3 examples in " in said
    assert "row 2 is passed over: " in said and "'messages' is not a non-empty list" in said
    assert "row 1: no pair: the answer has fewer than two steps" in said
    assert cells(out, "0 target 1") == "Then·two.↵↵ «target 1»"
    assert cells(out, "1 trunk: step 1") == "Three."
    assert "example 2, pair 1" in said  # row 3 is the batch's third example
    assert "packed row 2 of 2" in inspect("--step_jepa", "--rows_packed", "2", "--max_row_length", "30")
    said = " ".join(inspect("--step_jepa", "--row", "3", "--rows_packed", "9").split())
    assert "2 examples are shown: there are no more after row 3" in said
    assert "is passed over" not in said


def test_draws_of_later_rows_are_training_s(inspect):
    """Row 4's draw does not depend on where the picture begins."""
    alone = inspect("--step_jepa", "--step_pairs", "random", "--row", "4", "--seed", "3")
    together = inspect("--step_jepa", "--step_pairs", "random", "--row", "3", "--rows_packed", "2", "--seed", "3")
    assert cells(alone, "target 1") == cells(together, "1 target 1")


def test_several_predictors(inspect):
    out = inspect("--step_jepa", "--predictors", "0", "2", "2", width=140)
    assert "step_jepa, K = 0, 2, packed" in " ".join(out.split())
    assert any(line.startswith("K = 0") and "K = 2" in line for line in out.splitlines())
    assert "K = 2: packing: 1 example" in out
    assert out.count("predictor token") == 1
    assert inspect("--step_jepa", "--predictors", "2") == inspect("--step_jepa", "--predictors=2")
    assert "predictors is -1" in inspect("--step_jepa", "--predictors", "1", "-1", status=2)
    assert "a whole number" in inspect("--step_jepa", "--predictors", "two", status=2)
    assert "--predictors has no effect with objective regular" in inspect(
        "--objective", "regular", "--predictors", "1", "2"
    )


def test_a_page_and_a_picture(inspect, tmp_path):
    page, png = tmp_path / "new" / "page.html", tmp_path / "row.png"
    out = inspect("--step_jepa", "--html", page, "--png", png)
    assert f"written: {png}" in out and f"written: {page} (0.0" in out and "packed, two_pass, inline" in out
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    before = page.read_bytes()
    for name, file in (("html", page), ("png", png)):
        err = inspect("--step_jepa", f"--{name}", file, status=2)
        assert f"--{name} {file}: exists; choose another name, or --overwrite" in err
    assert page.read_bytes() == before
    inspect("--step_jepa", "--html", page, "--overwrite")
    assert page.read_bytes() == before  # the same row is the same page


def test_what_is_said_where(inspect, tmp_path):
    inspect("--step_jepa", "--step_pairs", "all", "--html", tmp_path / "page.html")
    data = read_page(tmp_path / "page.html")
    (variant,) = data["variants"]
    assert "forward=inline holds one pair" in variant["whyNot"]["inline"]
    (note,) = variant["forms"]["two_pass"]["notes"]
    assert note.startswith("forward two_pass: every segment is a row of its own")
    assert variant["forms"]["packed"]["notes"] == []
    assert "row 0 (" in data["title"] and not data["title"].endswith("packed")
    inspect("--step_jepa", "--forward", "two_pass", "--html", tmp_path / "two.html")
    data = read_page(tmp_path / "two.html")
    assert data["variants"][0]["shown"] == "two_pass" and "packed" in data["variants"][0]["forms"]
    inspect("--objective", "regular", "--html", tmp_path / "regular.html")
    assert set(read_page(tmp_path / "regular.html")["variants"][0]["whyNot"]) == {"two_pass", "inline"}


def test_forms_that_are_too_long_are_named(inspect, tmp_path, monkeypatch):
    monkeypatch.setattr("stepjepa.inspect.view.MOST_TOKENS", 30)
    inspect("--step_jepa", "--html", tmp_path / "page.html")
    (variant,) = read_page(tmp_path / "page.html")["variants"]
    assert "--forward two_pass shows it" in variant["whyNot"]["two_pass"] and list(variant["forms"]) == [
        "packed",
        "inline",
    ]


def test_hostile_text(inspect, tmp_path):
    page = tmp_path / "page.html"
    inspect("--step_jepa", "--row", "3", "--html", page)
    text = page.read_text(encoding="ascii")
    assert text.count("<script") == 2 and text.count("</script") == 2
    texts = "".join(read_page(page)["texts"])
    assert r"\u202e" in texts and "\u202e" not in texts and "\U0001f600" in texts and "\x1b" not in texts


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rows_packed", "0"], "rows_packed is 0; it must be a whole number from 1 on"),
        (["--png", "row.jpg"], "must end in .png"),
        (["--html", "page"], "must end in .html or .htm"),
        (["--max_row_length", "0"], "max_row_length is 0"),
    ],
)
def test_what_cannot_be_done(inspect, options, words):
    assert words in inspect("--step_jepa", *options, status=2)


def test_places_that_cannot_be_written(inspect, tmp_path):
    (tmp_path / "folder.html").mkdir()
    assert "is a folder" in inspect("--html", tmp_path / "folder.html", status=2)
    (tmp_path / "file").write_text("kept")
    assert "cannot be written" in inspect("--html", tmp_path / "file" / "page.html", status=2)
    assert (tmp_path / "file").read_text() == "kept"


def test_options_of_the_page_alone(inspect):
    out = inspect("--step_jepa", "--run_model", "--attention_layers", "1", "--overwrite")
    for words in ("--run_model has no effect without --html", "--attention_layers has no effect without --html",
                  "--overwrite has no effect without --png or --html"):  # fmt: skip
        assert words in " ".join(out.split())


def test_a_page_of_a_long_row_is_small(tmp_path, capsys):
    """1,000 tokens, with the attention of a model in all the room that is left."""
    file, page = tmp_path / "long.jsonl", tmp_path / "page.html"
    steps = [f"Step {n} adds {n} and {n + 1} and gives {2 * n + 1}." for n in range(60)]
    file.write_text(json.dumps({"question": "Add all of it.", "answer": "\n\n".join(steps)}))
    words = ["--model_name", "tiny", "--step_jepa", "--step_pairs", "first", "--run_model", "--html", str(page)]
    assert main(["inspect", str(file), *words]) == 0
    row = read_page(page)["variants"][0]["forms"]["packed"]["rows"][0]
    assert len(row["ids"]) > 900 and 1e6 < page.stat().st_size < LIMIT == 3_000_000
    assert 0 < len(row["attention"]["maps"]) < 12
    assert "the means over the heads" in str(read_page(page)["variants"][0])
    capsys.readouterr()


def test_an_example_is_left_alone():
    """`Example` is a tuple of arrays: showing one changes none of them."""
    import numpy as np

    from support.records import row_record

    ids = np.arange(5, dtype=np.int32)
    row = row_record([Example(ids, ((1, 5),))], 0, str, vocabulary=5)
    row.ids[0] = 9
    assert ids.tolist() == [0, 1, 2, 3, 4]
