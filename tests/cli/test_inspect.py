"""``stepjepa inspect`` through the entry point, with a tokenizer trained on the file."""

import json
import re

import pytest

from stepjepa.cli.main import main
from support.drawings import cells

STEPS = {"question": "How many?", "answer": "First one.\n\nThen two.\n\nSo three.", "plan": "Count."}
ONE = {"question": "How many?", "answer": "Three."}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (STEPS, ONE)))
    return str(path)


@pytest.fixture
def inspect(capsys, monkeypatch, file):
    """The output of the command with its options, or its message where it fails."""
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*options, status=0, width=100, file=file):
        monkeypatch.setenv("COLUMNS", str(width))
        words = [word for option in options for word in str(option).split(" ")]
        assert main(["inspect", file, "--model_name", "tiny", *words]) == status
        out, err = capsys.readouterr()
        assert (err == "") == (status == 0)
        assert not status or (err.startswith("stepjepa inspect: error: ") and err.count("\n") == 1)
        return err if status else out

    return call


PLAIN = "(plain language modelling): "
COLUMN = "--readout mean --jepa_target_column plan"
WHOLE = "First·one.↵↵Then·two.↵↵So·three."
# Options; then what is drawn, as "section|its tokens", and what is said.
DRAWN = [
    (
        "--step_jepa",
        "trunk: user|How·many?",
        "trunk: step 1|First·one.↵↵ «end of source 1»",
        "2 of predictors",
        "; 1 pair ",
    ),
    ("--step_jepa", "trunk: step 3|So·three.", "trunk: end of turn|<end>", "target 1|Then·two.↵↵ «target 1»"),
    ("--step_jepa --step_pairs all --predictors 1", "branch 2|<predictor_1> «source 2»", "; 2 pairs "),
    ("--step_jepa --predictor_order descending", "branch 1|<predictor_2><predictor_1> «source 1»"),
    # As `stepjepa train` without an objective.
    ("--max_length 2048", "trunk: user|How·many? «end of source 1; source 1»", f"target 1|{WHOLE} «target 1»"),
    (COLUMN, "trunk: user|How·many? «end of source 1; source 1»", "target 1|Count. «target 1»"),
    (f"{COLUMN} --row 1", f"without a pair {PLAIN}no text in the column of the target views (first: "),
    ("--step_jepa --row 1", "trunk: step 1|Three.", f"{PLAIN}the answer has fewer than two steps", "pairs: none"),
    ("--step_jepa --max_length 14", f"{PLAIN}the views were cut at max_length", "1 answer cut at max_length"),
    ("--step_jepa --forward two_pass", "in training, every segment is a separate row"),
    ("--step_jepa --forward inline", "(isolated in place)"),
    ("--target_encoder ema", "target_encoder ema encodes them in a separate pass"),
    ("--objective semantic_tube --tube_times 2", "2 pairs, sampled for epoch 0 with seed 42"),
    ("--objective next_latent", "pair 1 state: ", "next state: "),
    ("--step_jepa --jepa_ratio 0.000001", "this row is trained on without its pairs"),
    ("--step_pairs all", "--step_pairs has no effect with objective llm_jepa"),
]


@pytest.mark.parametrize("case", DRAWN, ids=lambda case: case[0])
def test_a_row(inspect, case):
    options, *expected = case
    out = inspect(options)
    words = " ".join(out.split())
    for one in expected:
        section, drawn, tokens = one.partition("|")
        assert cells(out, section) == tokens if drawn else one in words, one


def test_the_seed_decides_what_is_sampled(inspect):
    drawn = {cells(inspect("--step_jepa --step_pairs random --seed", seed), "target 1") for seed in range(8)}
    assert drawn == {"Then·two.↵↵ «target 1»", "So·three. «target 1»"}
    tubes = [inspect("--objective semantic_tube --seed", seed) for seed in (1, 2)]
    assert tubes[0] != tubes[1] and "branch" not in tubes[0]


def test_labels(inspect):
    length = int(" ".join(inspect("--objective regular").split()).split(" tokens:")[0].split()[-1])
    assert f"LM loss on {length - 1} tokens: 1-{length - 1}\n" in inspect("--labels all")
    assert f"-{length - 2}\n" in inspect("--labels reference")  # not on the end of turn


def test_plain_text(inspect, tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "One and two are three."}\n{"text": ""}\n{"input_ids": [5, 6, 7, 8, 9]}\n')
    out = inspect("--objective split", file=str(texts))
    assert cells(out, "trunk: text").replace(" «end of source 1»", "") == "One·and·two·are·three.<end>"
    out = inspect("--objective split --max_length 3", file=str(texts))
    assert re.search(r"[2-9] examples: texts are cut into blocks of max_length", " ".join(out.split()))
    assert "regular" in inspect("--regular --row 2", file=str(texts))
    assert "'text' is empty; training skips this row" in inspect("--regular --row 1", file=str(texts), status=2)
    err = inspect("--step_jepa", file=str(texts), status=2)
    assert "step_jepa needs chats" in err and "skips" not in err
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text(json.dumps(STEPS) + '\n{"text": "One and two are three."}\n')
    assert "training skips this row" in inspect("--regular --row 1", file=str(mixed), status=2)


def test_a_page_and_a_picture(inspect, tmp_path):
    page, png = tmp_path / "new" / "page.html", tmp_path / "row.png"
    out = inspect("--step_jepa --html", page, "--png", png)
    assert f"written: {png}" in out and f"written: {page}" in out
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    before = page.read_bytes()
    for name, file in (("html", page), ("png", png)):
        err = inspect("--step_jepa", f"--{name}", file, status=2)
        assert f"{file}: the file exists; choose another name, or give --overwrite" in err
    assert page.read_bytes() == before
    inspect("--step_jepa --overwrite --html", page)
    assert page.read_bytes() == before  # the same row is the same page
