"""``stepjepa inspect`` through the entry point, with a tokenizer trained on the file."""

import json
import re
import subprocess
import sys

import pytest

from stepjepa.cli.inspect import InspectOptions
from stepjepa.cli.main import main
from stepjepa.config.option import options_of
from stepjepa.training.options import ExampleOptions
from support.drawings import cells

STEPS = {"question": "How many?", "answer": "First one.\n\nThen two.\n\nSo three."}
ONE = {"question": "How many?", "answer": "Three."}
HOSTILE = {
    "messages": [
        {"role": "system", "content": "[bold]Be\x1b[31m"},
        {"role": "user", "content": "\u202e:smile:\r\n[/]"},
        {"role": "assistant", "content": "\U0001f600 one\x07\r\n\r\ntwo\x1b]0;t\x07"},
    ]
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (STEPS, ONE, HOSTILE, {"messages": []})))
    return str(path)


@pytest.fixture
def inspect(capsys, monkeypatch, file):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*options, status=0, file=file):
        assert main(["inspect", file, "--model_name", "tiny", *options]) == status
        out, err = capsys.readouterr()
        assert (err == "") == (status == 0)
        return err if status else out

    return call


def test_first_pair(inspect, file):
    out = inspect("--step_jepa")
    assert out.startswith(f"row 0 ({file} line 1)") or file in out.splitlines()[0] + out.splitlines()[1]
    assert "2 predictors" in " ".join(out.split())
    assert "1 pair\n" in out
    assert cells(out, "trunk: user") == "How·many?"
    assert cells(out, "trunk: step 1") == "First·one.↵↵ «end of source 1»"
    assert cells(out, "trunk: step 3") == "So·three."
    assert cells(out, "trunk: end of turn") == "<end>"
    assert cells(out, "branch 1") == "<predictor_1><predictor_2> «source 1»"
    assert cells(out, "target 1") == "Then·two.↵↵ «target 1»"
    assert "branch 2" not in out


def test_all_pairs_and_the_order_of_predictors(inspect):
    out = inspect("--step_jepa", "--step_pairs", "all", "--predictors", "1")
    assert "2 pairs\n" in out
    assert cells(out, "branch 2") == "<predictor_1> «source 2»"
    assert cells(out, "target 2") == "So·three. «target 2»"
    out = inspect("--step_jepa", "--predictor_order", "descending")
    assert cells(out, "branch 1") == "<predictor_2><predictor_1> «source 1»"


def test_question_to_answer(inspect):
    out = inspect()  # as `stepjepa train` without an objective
    said = " ".join(out.split())  # where the title breaks depends on the file's name
    assert "llm_jepa, in_context, K = 0, packed" in said
    assert "predictor" not in said.split("segment")[0].split("K = 0")[1]
    assert "branch" not in out.split("segment")[1]
    assert cells(out, "trunk: user") == "How·many? «end of source 1; source 1»"
    assert cells(out, "target 1") == "First·one.↵↵Then·two.↵↵So·three. «target 1»"
    out = inspect("--objective", "llm_jepa", "--last_token", "-1")
    assert cells(out, "target 1").endswith("<end> «target 1»")


def test_a_row_without_a_pair_is_drawn_with_the_reason(inspect):
    out = inspect("--step_jepa", "--row", "1")
    assert "no pair: the answer has fewer than two steps" in out
    assert "pairs: none" in out
    assert cells(out, "trunk: step 1") == "Three."
    assert "no pair: the objective regular makes none" in inspect("--objective", "regular")
    out = inspect("--step_jepa", "--max_length", "14")
    assert "no pair: the views were cut at max_length" in out
    assert "cut at max_length 14" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--step_jepa --horizon 3", "no pair: the horizon reaches beyond"),
        ("--step_jepa --forward two_pass", "every segment is a row of its own"),
        ("--step_jepa --forward inline", "(isolated in its place)"),
        ("--objective split", "targets get no gradient"),
        ("--target_encoder ema", "by the EMA encoder"),
        ("--objective semantic_tube --tube_times 2", "spans are sampled for epoch 0 with seed 42"),
        ("--objective semantic_tube --tube_times 2", "; 2 spans"),
        ("--objective semantic_tube --tube_mode e2e", "; 1 pair of vectors"),
        ("--step_jepa --step_pairs random", "one of 2 pairs, sampled for epoch 0 with seed 42"),
        ("--step_jepa --jepa_ratio 0.000001", "leaves this row out"),
    ],
)
def test_what_is_said_of_a_row(inspect, options, words):
    assert words in " ".join(inspect(*options.split()).split())


def test_notes_that_would_be_wrong(inspect):
    assert "targets get no gradient" not in inspect("--objective", "split", "--target_grad")
    assert "sampled" not in inspect("--objective", "semantic_tube", "--tube_mode", "e2e")


def test_the_seed_decides_what_is_sampled(inspect):
    seeds = range(8)
    shown = {cells(inspect("--step_jepa", "--step_pairs", "random", "--seed", str(seed)), "target 1") for seed in seeds}
    assert shown == {"Then·two.↵↵ «target 1»", "So·three. «target 1»"}
    tubes = [inspect("--objective", "semantic_tube", "--seed", str(seed)) for seed in (1, 2)]
    assert tubes[0] != tubes[1] and "branch" not in tubes[0]


def test_labels(inspect):
    length = int(" ".join(inspect("--objective", "regular").split()).split(" tokens:")[0].split()[-1])
    assert f"LM loss on {length - 1} tokens: 1-{length - 1}\n" in inspect("--labels", "all")
    assert f"-{length - 2}\n" in inspect("--labels", "reference")  # not on the end of turn


def test_options_of_the_chat(inspect, tmp_path):
    assert cells(inspect("--step_jepa", "--system_prompt", "Add."), "trunk: system") == "Add."
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}<<{{ m['role'] }}>>{{ m['content'] }}{% endfor %}")
    out = inspect("--step_jepa", "--chat_template", str(template))
    assert cells(out, "trunk: template") == "<<user>>"
    assert cells(out, "trunk: step 1") == "First·one.↵↵ «end of source 1»"


def test_plain_text(inspect, tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "One and two are three."}\n{"text": ""}\n{"input_ids": [5, 6, 7, 8, 9]}\n')
    out = inspect("--objective", "split", file=str(texts))
    assert cells(out, "trunk: text").replace(" «end of source 1»", "") == "One·and·two·are·three.<end>"
    out = inspect("--objective", "split", "--max_length", "3", file=str(texts))
    assert re.search(r"cut into [2-9] examples of up to 3 tokens; the first is shown", " ".join(out.split()))
    assert "regular" in inspect("--regular", "--row", "2", file=str(texts))
    assert "'text' is empty; training skips this row" in inspect("--regular", "--row", "1", file=str(texts), status=2)
    err = inspect("--step_jepa", file=str(texts), status=2)
    assert "step_jepa needs chats" in err and "skips" not in err
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text(json.dumps(STEPS) + '\n{"text": "One and two are three."}\n')
    assert "training skips this row" in inspect("--regular", "--row", "1", file=str(mixed), status=2)


def test_named_columns(inspect, tmp_path):
    rows = tmp_path / "choices.jsonl"
    rows.write_text('{"sentence": "It is red.", "texts": ["a sky", "a rose"], "right": 1}\n')
    columns = ("--source_column", "sentence", "--target_column", "texts", "--choice_column", "right")
    out = inspect(*columns, file=str(rows))
    assert cells(out, "trunk: user").startswith("It·is·red.")
    assert cells(out, "target 1") == "a·rose «target 1»"
    err = inspect(*columns[:4], file=str(rows), status=2)
    assert "content of type list" in err and "training skips this row" in err


def test_the_splitter_is_chosen_for_the_file(inspect, tmp_path):
    rows = tmp_path / "lines.jsonl"
    lines = {"question": "How many?", "answer": "One.\nTwo.\nThree."}
    rows.write_text("\n".join(json.dumps(row) for row in (STEPS, lines, lines, lines)))
    out = inspect("--step_jepa", file=str(rows))
    assert "steps: found by --step_splitter lines" in " ".join(out.split())
    assert cells(out, "trunk: step 1") == "First·one.↵↵ «end of source 1»"
    out = inspect("--step_jepa", "--step_splitter", "separator", "--row", "1", file=str(rows))
    assert "no pair: the answer has fewer than two steps" in out and "are found by" not in out


def test_options_that_are_not_read(inspect):
    assert "--step_pairs has no effect with objective llm_jepa" in inspect("--step_pairs", "all")
    out = inspect("--objective", "regular", "--predictors", "2", "--views", "in_context")
    assert "--predictors has no effect with objective regular" in out
    assert "--views has no effect" not in out  # it is what it would be anyway


def test_options_are_those_of_training():
    shared = options_of(ExampleOptions)
    assert {
        name: one for name, one in options_of(InspectOptions).items() if name in shared and name != "predictors"
    } == {name: one for name, one in shared.items() if name != "predictors"}


def test_hostile_text(inspect):
    out = inspect("--step_jepa", "--row", "2")
    assert all(character == "\n" or character.isprintable() for character in out)
    assert cells(out, "trunk: system") == r"[bold]Be\x1b[31m"
    assert cells(out, "trunk: user") == r"\u202e:smile:\r↵[/]"
    assert cells(out, "target 1").startswith(r"two\x1b]0;t\x07")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--row", "4"], "has 4 rows, counted from 0, so the last one is row 3"),
        (["--row", "-1"], "row is -1; it must be a whole number from 0 on"),
        (["--row", "3"], "line 4: 'messages' is not a non-empty list"),
        (["--max_length", "5"], "line 1: the prompt has"),
        (["--predictors", "-1"], "predictors is -1"),
        (["--last_token", "1"], "last_token is 1"),
        (["--step_pairs", "every"], "--step_pairs"),
        (["--lbd", "1"], "unknown flag --lbd"),
        (["--front_pred"], "front_pred puts predictors in front"),
        (["--step_jepa", "--views", "standalone"], "use it with objective llm_jepa"),
        (["--step_jepa", "--forward", "inline", "--step_pairs", "all"], "forward=inline holds one pair"),
        (["--objective", "semantic_tube", "--predictors", "1"], "semantic_tube has no predictor tokens"),
        (["--objective", "semantic_tube", "--tube_mode", "mean", "--tube_times", "2"], "samples no spans"),
        (["--source_column", "question"], "give both"),
        (["--plain", "--chat_template", "x"], "leave one of them out"),
        (["--horizon", "0"], "horizon is 0"),
        (["--chat_template", "no.jinja"], "no.jinja"),
    ],
)
def test_what_cannot_be_drawn(inspect, options, words):
    err = inspect(*options, status=2)
    assert words in err
    assert err.startswith("stepjepa inspect: error: ") and err.count("\n") == 1


def test_files_that_cannot_be_used(tmp_path, capsys):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert main(["inspect", str(empty)]) == 2
    assert "empty" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "none.jsonl")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["inspect", "--row", "2"]) == 2
    assert "stepjepa inspect FILE" in capsys.readouterr().err


def test_help(capsys):
    assert main(["inspect", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--predictor_order {ascending,descending}" in out and "also --step_jepa" in out
    code = (
        "import sys\nfrom stepjepa.cli.main import main\nmain(['inspect', '--help'])\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_published_data(shared_dir, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    file = str(shared_dir / "data" / "gsm8k_test.jsonl")
    assert main(["inspect", file, "--model_name", "tiny", "--step_jepa", "--step_pairs", "all"]) == 0
    out = capsys.readouterr().out
    assert "target 2" in out and "####" in out
    assert "steps: found by --step_splitter lines" in " ".join(out.split())
