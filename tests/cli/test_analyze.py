"""``stepjepa analyze`` through the entry point, on tiny models that are made here."""

import json
import shutil

import numpy as np
import pytest

from stepjepa.analysis.geometry import measure_states
from stepjepa.analysis.states import FINAL
from stepjepa.cli.main import main
from stepjepa.modeling.extras import predictor_names
from support.models import add_to_vocabulary, tiny_model
from support.rows import step_rows, write
from support.runs import files_of, one_line
from support.states import load_states
from support.tokenizers import fresh

for library in ("scipy", "matplotlib"):
    pytest.importorskip(library)
ROWS = 40


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "rows.jsonl", step_rows(ROWS))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, bpe_tokenizer):
    """`base`, `a` and `b` of one size; `wide`; `kept`, with two predictor tokens."""
    folder = tmp_path_factory.mktemp("runs")
    size = {"vocab_size": len(bpe_tokenizer), "initializer_range": 0.3}

    def save(name, model, tokenizer=bpe_tokenizer):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)

    for seed, name in enumerate(("base", "a", "b")):
        save(name, tiny_model("gpt2", seed=seed, **size))
    save("wide", tiny_model("llama", **{**size, "hidden_size": 48}))
    kept, tokenizer = tiny_model("llama", **size), fresh(bpe_tokenizer)
    tokenizer.add_tokens(predictor_names(2), special_tokens=True)
    add_to_vocabulary(kept, 2, seed=0)
    kept.config.vocab_size = len(tokenizer)
    save("kept", kept, tokenizer)
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Figures are made but not drawn, which takes half a second each; the tutorial's test draws them."""

    def write(figure, path):
        assert figure.axes
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a figure")

    monkeypatch.setattr("stepjepa.analysis.run.save_figure", write)


@pytest.fixture
def analyze(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words, status=0):
        assert main(["analyze", *map(str, words)]) == status
        said = capsys.readouterr()
        return one_line(said.err, "analyze") if status else said.out + said.err

    return call


def test_the_numbers_are_those_of_the_states(analyze, runs, tmp_path):
    """Every number of the file, and of the table, from the saved states; later states are predicted."""
    rows, folder = 150, tmp_path / "new"
    file = write(tmp_path / "many.jsonl", step_rows(rows))
    asked = "--prediction_horizon", 2, "--step_splitter", "separator", "--output_dir", folder
    out = analyze(file, "--models", runs / "base", runs / "a", runs / "b", *asked)
    names = [*(f"states-{name}.safetensors" for name in ("a", "b", "base")), "layers.png", "spectrum.png"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*names, "numbers.json"])
    record = json.loads((folder / "numbers.json").read_text())
    assert (record["file"], record["layer"], record["n"]) == (file, FINAL, rows)
    assert list(record["models"]) == ["base", "a", "b"]
    states = {name: load_states(folder / f"states-{name}.safetensors") for name in ("base", "a", "b")}
    assert states["a"].layers == (0, 1, 2, FINAL) and states["a"].rows.tolist() == list(range(rows))
    found = record["models"]["a"]["layers"]
    for layer in states["a"].layers:
        expected = measure_states(*states["a"].layer(layer))
        got = found[str(layer)]
        assert got["pairs"]["aligned_mean"] == pytest.approx(expected.pairs.aligned_mean)
        assert got["pairs"]["retrieval_at_1"] == expected.pairs.retrieval_at_1
        assert got["source"]["effective_rank"] == pytest.approx(expected.source.effective_rank)
    printed, pairs = [line.split() for line in out.splitlines()], found["-1"]["pairs"]
    row = next(line for line in printed if line[:1] == ["a"])
    assert row[1:4] == [f"{pairs[name]:.4f}" for name in ("aligned_mean", "shuffled_mean", "gap")]
    linear = record["models"]["a"]["prediction"]["1"]["linear"]
    assert next(line for line in printed if line[:2] == ["linear,", "a"])[2] == f"{linear:.3g}" and 0 < linear < 2
    assert row[5] == f"{100 * pairs['retrieval_at_1']:.1f}" and row[-1] == f"{pairs['mrr']:.3f}"


def test_nothing_is_lost(analyze, file, runs, tmp_path):
    """A second analysis of the same folder is refused; one that fails leaves what was there."""
    out = tmp_path / "o"
    words = [file, "--models", runs / "a", "--layers", -1, "--output_dir", out]
    analyze(*words)
    (out / "own.txt").write_text("mine")
    before = files_of(out)
    assert "already exists; give another folder, or set --overwrite_output_dir to" in analyze(*words, status=2)
    broken = shutil.copytree(runs / "b", tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    words[3:3] = [broken]
    assert f"{broken}: the " in analyze(*words, "--overwrite_output_dir", status=2)
    assert files_of(out) == before
    words[2:4] = [runs / "b"]
    analyze(*words, "--overwrite_output_dir")
    names = set(files_of(out))
    assert {"states-b.safetensors", "spectrum.png", "own.txt"} <= names and "states-a.safetensors" not in names


def test_kept_predictors(analyze, file, runs, tmp_path):
    """The model that has predictors is read at the last of them, the others at the source's last token."""
    out = analyze(file, "--models", runs / "kept", runs / "wide", "--layers", -1, "--output_dir", "o")
    assert "; 2 predictors, no head" in out and "; no predictors, no head" in out
    inputs = json.loads((tmp_path / "o" / "numbers.json").read_text())["inputs"]
    assert [(one["label"], one["predictors"]) for one in inputs] == [("kept", 2), ("wide", 0)]
    states = load_states(tmp_path / "o" / "states-kept.safetensors")
    assert list(states.source.shape) == [1, ROWS, 32]  # models of other widths compare
    analyze(file, "--models", runs / "kept", "--predictors", 0, "--layers", -1, "--output_dir", "p")
    without = load_states(tmp_path / "p" / "states-kept.safetensors")
    assert np.abs(states.source - without.source).max() > 0.1
    np.testing.assert_allclose(states.target, without.target, atol=1e-3)  # rotary positions: two on is the same


def trained_as(folder, source, splitter="", **settings):
    """A copy of a model with the record of a run."""
    shutil.copytree(source, folder)
    (folder / "run.json").write_text(json.dumps({"settings": {"lbd": 1.0, **settings}}))
    if splitter:
        (folder / "data_report.json").write_text(json.dumps({"train": {"steps": {"splitter": splitter}}}))
    return folder


def test_predictors_in_front_of_the_source_are_those_of_the_run(analyze, file, runs, tmp_path):
    own = {"objective": "llm_jepa", "views": "standalone", "front_pred": True, "predictors": 2}
    run = trained_as(tmp_path / "front", runs / "kept", **own)
    assert "; 2 predictors, no head" in analyze(file, "--models", run, "--layers", -1, "--output_dir", "o")
    assert own.items() <= views_in(tmp_path / "o").items()


def views_in(folder):
    return json.loads((folder / "numbers.json").read_text())["views"]


def test_the_views_are_those_of_the_runs_own_training(analyze, file, runs, tmp_path):
    """Of the first model that was trained on pairs; an option that is given wins, and those that go with it."""
    own = {"objective": "step_jepa", "step_pairs": "all", "step_splitter": "auto", "horizon": 2, "max_length": 300}
    regular = trained_as(tmp_path / "regular", runs / "a", objective="regular", max_length=77)
    step = trained_as(tmp_path / "step", runs / "b", "separator", **own)
    words = ["--layers", -1, "--output_dir"]
    out = analyze(file, "--models", regular, step, *words, "own")
    assert f"views    as in the training of {step}, unless given: --objective step_jepa" in out
    assert own.items() <= views_in(tmp_path / "own").items()
    given = analyze(file, "--models", step, "--step_jepa", "--step_pairs", "all", "--horizon", 2, *words, "given")
    assert given.splitlines()[0].split(" of ")[0] == out.splitlines()[0].split(" of ")[0]
    states = [(tmp_path / name / "states-step.safetensors").read_bytes() for name in ("own", "given")]
    assert states[0] == states[1]
    analyze(file, "--models", step, "--objective", "llm_jepa", *words, "other")
    found = views_in(tmp_path / "other")
    assert (found["objective"], found["step_pairs"], found["max_length"]) == ("llm_jepa", "first", 300)
    analyze(file, "--models", regular, *words, "regular_alone")
    found = views_in(tmp_path / "regular_alone")
    assert (found["objective"], found["max_length"]) == ("llm_jepa", 77)
    mine = trained_as(tmp_path / "mine", runs / "a", objective="mine.py:Mine")
    error = analyze(file, "--models", mine, *words, "x", status=2)
    assert "which runs only if you name it; give --objective mine.py:Mine" in error


def test_steps_are_split_as_the_run_settled_it(analyze, runs, tmp_path):
    """step_splitter=auto was settled on the training data, not on the rows that are analyzed."""
    numbered = [{"question": f"Q{n}", "answer": "1. One.\n2. Two.\n\nThree."} for n in range(6)]
    file = write(tmp_path / "numbered.jsonl", numbered)
    own = {"objective": "step_jepa", "step_pairs": "all", "step_splitter": "auto"}
    words = ["--layers", -1, "--output_dir"]
    for splitter, pairs in (("separator", 6), ("numbered", 12)):
        run = trained_as(tmp_path / splitter, runs / "a", splitter, **own)
        assert f"{pairs} pairs of" in analyze(file, "--models", run, *words, f"out-{splitter}")


def test_a_runs_folder_is_no_place_for_an_analysis(analyze, file, runs, tmp_path):
    """Its states would count as files of the model: evaluations of it would be called stale, and never be compared."""
    run = trained_as(tmp_path / "run", runs / "a", objective="regular")
    before = sorted(path.name for path in run.iterdir())
    error = analyze(file, "--models", run, "--layers", -1, "--output_dir", run, status=2)
    assert "contains a run or a model, which an analysis must not change; give another folder, such as" in error
    assert sorted(path.name for path in run.iterdir()) == before
    analyze(file, "--models", run, "--layers", -1, "--output_dir", run / "analysis")
