"""``stepjepa analyze --energy`` on tiny models that it has trained itself."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa.analysis.models import load_scorer
from stepjepa.analysis.options import EnergyOptions
from stepjepa.cli.main import main
from stepjepa.generation import local
from support.answers import SYSTEM, TEST, TRAIN
from support.rows import lines, write
from support.runs import printed


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`kept`, a run with its predictors and a head; `out`, one without them; `test.jsonl`."""
    folder = tmp_path_factory.mktemp("score")
    train = write(folder / "train.jsonl", TRAIN)
    write(folder / "test.jsonl", TEST)
    words = f"--train_file {train} --batch_size 8 --disable_tqdm true --learning_rate 3e-3 --model_name tiny".split()
    words += ["--step_jepa", "--step_pairs", "all", "--system_prompt", SYSTEM, "--predictor_order", "descending"]
    kept = ["--max_steps", "4", "--keep_predictors", "--predictor_head", "linear", "--save_strategy", "no"]
    assert main(["train", *words, *kept, "--output_dir", str(folder / "kept")]) == 0
    kept_not = ["--max_steps", "1", "--save_strategy", "no", "--output_dir", str(folder / "out")]
    assert main(["train", *words, *kept_not]) == 0
    return folder


@pytest.fixture
def score(home, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(file, *flags, model="kept", status=0):
        given = [str(home / "test.jsonl") if file is None else file] if file != "" else []
        return printed(capsys, ["analyze", "--energy", *given, "--model_name", home / model, *flags], status)

    return run


def test_energies_by_hand(score, home, tmp_path):
    """The pairs of one row against separate passes of transformers through the saved model and head; sums of the others."""
    said = score(None, "--output_file", "energies.jsonl")
    found = lines(tmp_path / "energies.jsonl")
    assert [line["index"] for line in found] == list(range(12)) and "steps of other questions" in said
    words = "energy shuffled relative log-likelihood".split()
    assert all(f" {word}: " in said for word in words) and max(map(len, said.splitlines())) <= 80
    head = load_scorer(EnergyOptions(model_name=str(home / "kept"))).model.jepa.head
    model = AutoModelForCausalLM.from_pretrained(home / "kept").eval()
    tokenizer = AutoTokenizer.from_pretrained(home / "kept")
    predictors = tokenizer.convert_tokens_to_ids(["<|predictor_2|>", "<|predictor_1|>"])

    def state(text, first=0, then=()):
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], *then]
        positions = torch.arange(first, first + len(ids))[None]
        states = model(input_ids=torch.tensor([ids]), position_ids=positions, output_hidden_states=True)
        return states.hidden_states[-1][0, -1], len(ids)

    row, line = max(zip(TEST, found, strict=True), key=lambda pair: pair[1]["num_steps"])
    steps = row["messages"][1]["content"].replace("\n\n", "\n\n\0").split("\0")
    assert [step["text"] for step in line["steps"]] == steps and line["num_steps"] == len(steps) > 2
    assert line["question"] == row["messages"][0]["content"] and line["steps"][-1]["energy"] is None
    chat = [{"role": "system", "content": SYSTEM}, row["messages"][0]]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    with torch.no_grad():
        for place, step in enumerate(line["steps"][:-1]):
            source, length = state(prompt + "".join(steps[: place + 1]), then=predictors)
            energy = 1 - F.cosine_similarity(head(source[None])[0], state(steps[place + 1], length)[0], dim=0)
            assert step["energy"] == pytest.approx(float(energy), abs=1e-5)
    for line in found:
        own = [step for step in line["steps"] if step["energy"] is not None]
        assert all(step["relative"] == pytest.approx(step["energy"] - step["shuffled"], abs=1e-5) for step in own)
        assert line["energy"] == (pytest.approx(sum(step["energy"] for step in own) / len(own)) if own else None)
        assert line["log_likelihood_mean"] == pytest.approx(line["log_likelihood"] / line["tokens"])
    result = json.loads((tmp_path / "energies.metrics.json").read_text())
    assert result["pairs"] == sum(step["energy"] is not None for line in found for step in line["steps"])
    assert result["without_energy"] == sum(line["energy"] is None for line in found) > 0
    assert result["why_without"] == {"fewer_than_two_steps": result["without_energy"]}
    assert result["method"]["predictors"] == 2


def test_the_distance_that_is_asked_for(score, tmp_path):
    score(None, "--output_file", "a.jsonl")
    score(None, "--output_file", "b.jsonl", "--jepa_loss", "mse", "--batch_size", 3)
    one, other = lines(tmp_path / "a.jsonl"), lines(tmp_path / "b.jsonl")
    assert all(
        a["log_likelihood"] == pytest.approx(b["log_likelihood"], abs=1e-3) for a, b in zip(one, other, strict=True)
    )
    assert all(a["energy"] != b["energy"] for a, b in zip(one, other, strict=True) if a["energy"] is not None)


def test_predictors_that_are_not_there(score, home, tmp_path):
    score(None, "--predictors", 0, "--output_file", "zero.jsonl", model="out")
    score(None, "--output_file", "final.jsonl", model="out")
    zero, final = (json.loads((tmp_path / f"{name}.metrics.json").read_text()) for name in ("zero", "final"))
    assert (zero["method"]["predictors"], final["method"]["predictors"]) == (0, 2)
    assert zero["means"]["energy"]["value"] != final["means"]["energy"]["value"]
    likelihood = final["means"]["log_likelihood_mean"]["value"]
    assert zero["means"]["log_likelihood_mean"]["value"] == pytest.approx(likelihood)
    (home / "out" / "predictors.safetensors").rename(home / "out" / "elsewhere")
    error = score(None, "--output_file", "none.jsonl", model="out", status=2)
    (home / "out" / "elsewhere").rename(home / "out" / "predictors.safetensors")
    assert "2 predictor tokens, which its folder does not hold" in error and "--predictors 0" in error
    assert not list(tmp_path.glob("none*"))


def predictions(answers):
    rows = [
        {"index": number, "question": row["messages"][0]["content"], "ground_truth": row["ground_truth"]}
        for number, row in enumerate(TEST[:4])
    ]
    return [{**row, "generated_response": say(row)} for say in answers for row in rows]


def test_best_of_given_solutions(score, tmp_path):
    said_right = "We add.\n\nThe answer is {}."
    right = lambda row: said_right.format(row["ground_truth"])  # noqa: E731
    answers = [lambda row: "One step: 0.", right, right, lambda row: ""]
    file = write(tmp_path / "solutions.jsonl", predictions(answers))
    said = score(file, "--best_of", 3, "--metric", "gsm8k", "--output_file", "out/energies.jsonl")
    found = lines(tmp_path / "out" / "energies.jsonl")
    assert [(line["index"], line["sample"]) for line in found][:4] == [(0, 1), (4, 2), (8, 3), (1, 1)]
    assert [line["correct"] for line in found] == [False, True, True] * 4
    result = json.loads((tmp_path / "out" / "energies.metrics.json").read_text())
    rules = {name: rule["value"] for name, rule in result["best_of"]["rules"].items()}
    assert rules["first"] == 0.0 and rules["majority"] == rules["oracle"] == 1.0
    assert rules["random"] == pytest.approx(2 / 3)
    assert rules["energy"] == rules["relative"] == 1.0  # the single step has none, and comes last
    assert result["best_of"]["auroc"]["energy"]["pairs"] == 8 and result["best_of"]["questions_with_fewer"] == 0
    assert "oracle: right where one is" in said
    assert "majority of answers" in said and "100.0" in said
    error = score(file, "--best_of", 5, "--metric", "gsm8k", status=2)
    assert "no question has 5 solutions, the most is 4" in error
    score(file, "--best_of", 4, "--metric", "gsm8k", "--output_file", "four.jsonl")
    empty = lines(tmp_path / "four.jsonl")[3]
    assert empty["energy"] is None and empty["num_steps"] <= 1 and not empty["correct"]


def test_sampling(score, home, tmp_path, monkeypatch):
    """Sampled once, N different solutions of each question; what is sampled is used again."""
    words = ["--questions", home / "test.jsonl", "--best_of", 3, "--metric", "gsm8k", "--max_examples", 4]
    words += ["--max_new_tokens", 24, "--temperature", 1.5, "--output_file", "e.jsonl"]
    score("", *words)
    samples = lines(tmp_path / "e.samples.jsonl")
    assert [(row["index"], row["sample"]) for row in samples] == [(i, j) for i in range(4) for j in (1, 2, 3)]
    assert all(len({row["generated_response"] for row in samples[i : i + 3]}) > 1 for i in range(0, 12, 3))
    found = lines(tmp_path / "e.jsonl")
    assert [line["sample"] for line in found] == [1, 2, 3] * 4
    assert found[0]["question"] == TEST[0]["messages"][0]["content"]
    assert sorted(path.name[1:] for path in tmp_path.iterdir()) == [
        ".jsonl", ".metrics.json", ".samples.json", ".samples.jsonl",
    ]  # fmt: skip
    assert "--overwrite_output_dir" in score("", *words, status=2)
    (tmp_path / "e.jsonl").unlink()
    (tmp_path / "e.metrics.json").unlink()
    assert "was made with best_of 3, not 5" in score("", *words[:3], 5, *words[4:], status=2)
    monkeypatch.setattr(local, "generate_batch", None)
    score("", *words)
    assert lines(tmp_path / "e.jsonl") == found
    # As given solutions they come to the same.
    score("e.samples.jsonl", "--best_of", 3, "--metric", "gsm8k", "--output_file", "again.jsonl")
    again = lines(tmp_path / "again.jsonl")
    assert [line["energy"] for line in again] == [line["energy"] for line in found]


def test_nothing_is_written_over(score, tmp_path):
    (tmp_path / "mine.jsonl").write_text("mine")
    for flags, said in (
        (["--output_file", "mine.jsonl"], "is there already"),
        (["--output_file", "mine.jsonl/inner/out.jsonl"], "mine.jsonl is a file"),
        (["--output_file", tmp_path], "must end in .jsonl"),
    ):
        assert said in score(None, *flags, status=2)
    assert (tmp_path / "mine.jsonl").read_text() == "mine"
    same = write(tmp_path / "s.jsonl", TEST[:2])
    assert "over its input" in score(same, "--output_file", "s.jsonl", "--overwrite_output_dir", status=2)


def test_one_solution_has_nothing_to_be_shuffled_with(score, tmp_path):
    row = {"question": "Start with 3.", "answer": "We have 3.\n\nThe answer is 3."}
    file = write(tmp_path / "one.jsonl", [row])
    (tmp_path / "energies-one.jsonl").write_text("old")
    result = json.loads(score(file, "--json", "--overwrite_output_dir"))
    (line,) = lines(tmp_path / "energies-one.jsonl")
    assert line["energy"] > 0 and line["shuffled"] is None and line["relative"] is None
    assert result["pairs"] == 1 and result["nearer_than_shuffled"] is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--best_off", "3"], "did you mean --best_of?"),
        (["--best_of", "2"], "--best_of needs --metric"),
        (["--best_of", "2", "--metric", "gms8k"], "did you mean gsm8k?"),
        (["--best_of", "2", "--metric", "rouge"], "needs one that says right or wrong"),
        (["--questions", "x.jsonl"], "keep one of them"),
        (["--step_splitter", "list"], "none of 12 rows can be read"),
        (["--best_of", "2", "--metric", "gsm8k", "--temperature", "0"], "temperature is 0.0; it must be above 0"),
    ],
)
def test_mistakes(score, flags, said):
    assert said in score(None, *flags, status=2)


def test_files_without_solutions(score, tmp_path):
    assert "is empty" in score(write(tmp_path / "empty.jsonl", []), status=2)
    assert "none of 1 rows holds a solution" in score(write(tmp_path / "odd.jsonl", [{"x": 1}]), status=2)
    assert "no solutions given" in score("", status=2)


def test_the_old_command_names_the_new_one(capsys):
    assert main(["score", "solutions.jsonl", "--model_name", "runs/a"]) == 2
    said = capsys.readouterr().err
    assert said == "stepjepa: error: score is now: stepjepa analyze --energy solutions.jsonl --model_name runs/a\n"
