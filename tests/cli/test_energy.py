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
from support.answers import SYSTEM, TEST, TRAIN, lines, write


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`kept`, a run with its predictors and a head; `out`, the same without them, with a checkpoint; `test.jsonl`."""
    folder = tmp_path_factory.mktemp("score")
    train = write(folder / "train.jsonl", TRAIN)
    write(folder / "test.jsonl", TEST)
    words = f"--train_file {train} --batch_size 8 --disable_tqdm true --learning_rate 3e-3 --model_name tiny".split()
    words += ["--step_jepa", "--step_pairs", "all", "--system_prompt", SYSTEM, "--predictor_order", "descending"]
    kept = ["--max_steps", "30", "--keep_predictors", "--predictor_head", "linear", "--save_strategy", "no"]
    assert main(["train", *words, *kept, "--output_dir", str(folder / "kept")]) == 0
    assert main(["train", *words, "--max_steps", "4", "--save_steps", "4", "--output_dir", str(folder / "out")]) == 0
    return folder


@pytest.fixture
def score(home, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(file, *flags, model="kept", status=0):
        given = [str(home / "test.jsonl") if file is None else file] if file != "" else []
        assert main(["analyze", "--energy", *given, "--model_name", str(home / model), *map(str, flags)]) == status
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return said.out if status == 0 else said.err

    return run


def test_energies_by_hand(score, home, tmp_path):
    """Every pair of every row against separate passes of transformers through the saved model and head."""
    said = score(None, "--output_file", "energies.jsonl")
    found = lines(tmp_path / "energies.jsonl")
    assert [line["index"] for line in found] == list(range(12)) and "steps of other questions" in said
    scorer = load_scorer(EnergyOptions(model_name=str(home / "kept")))
    head = scorer.model.jepa.head
    model = AutoModelForCausalLM.from_pretrained(home / "kept").eval()
    tokenizer = AutoTokenizer.from_pretrained(home / "kept")
    predictors = tokenizer.convert_tokens_to_ids(["<|predictor_2|>", "<|predictor_1|>"])

    def state(ids, first):
        positions = torch.arange(first, first + len(ids))[None]
        with torch.no_grad():
            states = model(input_ids=torch.tensor([ids]), position_ids=positions, output_hidden_states=True)
        return states.hidden_states[-1][0, -1]

    pairs, energies, targets, groups = [], [], [], []
    for number, (row, line) in enumerate(zip(TEST, found, strict=True)):
        steps = row["messages"][1]["content"].replace("\n\n", "\n\n\0").split("\0")
        assert [step["text"] for step in line["steps"]] == steps and line["num_steps"] == len(steps)
        assert line["question"] == row["messages"][0]["content"]
        chat = [{"role": "system", "content": SYSTEM}, row["messages"][0]]
        prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(prompt + "".join(steps), add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        start = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        with torch.no_grad():
            scores = model(input_ids=torch.tensor([ids])).logits[0, :, : len(tokenizer) - 2].log_softmax(-1)
        total = sum(float(scores[place - 1, ids[place]]) for place in range(start, len(ids)))
        assert line["log_likelihood"] == pytest.approx(total, abs=1e-3) and line["tokens"] == len(ids) - start
        assert line["log_likelihood_mean"] == pytest.approx(total / (len(ids) - start), abs=1e-4)
        assert line["steps"][-1]["energy"] is None
        for place, step in enumerate(line["steps"][:-1]):
            before = tokenizer(prompt + "".join(steps[: place + 1]), add_special_tokens=False)["input_ids"]
            target = tokenizer(steps[place + 1], add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                source = head(state([*before, *predictors], 0)[None])[0]
            targets.append(state(target, len(before) + 2))
            pairs.append((step, source))
            groups.append(number)
            energies.append(1 - float(F.cosine_similarity(source, targets[-1], dim=0)))
    assert len(pairs) > 12
    for (step, source), energy, group in zip(pairs, energies, groups, strict=True):
        others = [target for target, of in zip(targets, groups, strict=True) if of != group]
        shuffled = sum(1 - float(F.cosine_similarity(source, target, dim=0)) for target in others) / len(others)
        assert step["energy"] == pytest.approx(energy, abs=1e-5)
        assert step["shuffled"] == pytest.approx(shuffled, abs=1e-5)
        assert step["relative"] == pytest.approx(energy - shuffled, abs=1e-5)
    for line in found:
        own = [step["energy"] for step in line["steps"] if step["energy"] is not None]
        assert line["energy"] == (pytest.approx(sum(own) / len(own)) if own else None)
    result = json.loads((tmp_path / "energies.metrics.json").read_text())
    assert result["pairs"] == len(pairs) and result["method"]["predictors"] == 2
    assert result["without_energy"] == sum(line["energy"] is None for line in found) > 0
    assert result["why_without"] == {"fewer_than_two_steps": result["without_energy"]}


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
    score(None, "--output_file", "checkpoint.jsonl", model="out/checkpoint-4")
    score(None, "--output_file", "final.jsonl", model="out")
    zero, two, final = (
        json.loads((tmp_path / f"{name}.metrics.json").read_text()) for name in ("zero", "checkpoint", "final")
    )
    assert (zero["method"]["predictors"], two["method"]["predictors"]) == (0, 2)
    assert final["means"] == two["means"], "the checkpoint of the last step is the final model"
    assert zero["means"]["energy"]["value"] != two["means"]["energy"]["value"]
    assert zero["means"]["log_likelihood_mean"]["value"] == pytest.approx(two["means"]["log_likelihood_mean"]["value"])
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
    file = write(
        tmp_path / "solutions.jsonl",
        predictions(
            [
                lambda row: "One step: 0.",
                lambda row: said_right.format(row["ground_truth"]),
                lambda row: said_right.format(row["ground_truth"]),
                lambda row: "",
            ]
        ),
    )
    said = score(file, "--best_of", 3, "--metric", "gsm8k", "--output_file", "out/energies.jsonl")
    found = lines(tmp_path / "out" / "energies.jsonl")
    # The first three of each question, one question behind the other.
    assert [(line["index"], line["sample"]) for line in found][:4] == [(0, 1), (4, 2), (8, 3), (1, 1)]
    assert [line["correct"] for line in found] == [False, True, True] * 4
    result = json.loads((tmp_path / "out" / "energies.metrics.json").read_text())
    rules = {name: rule["value"] for name, rule in result["best_of"]["rules"].items()}
    assert rules["first"] == 0.0 and rules["majority"] == rules["oracle"] == 1.0
    assert rules["random"] == pytest.approx(2 / 3)
    assert rules["energy"] == rules["relative"] == 1.0  # the single step has none, and stands behind
    assert result["best_of"]["auroc"]["energy"]["pairs"] == 8 and result["best_of"]["questions_with_fewer"] == 0
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
    assert [line["sample"] for line in found] == [1, 2, 3] * 4 and found[0]["question"] == TEST[0]["messages"][0][
        "content"
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "e.jsonl",
        "e.metrics.json",
        "e.samples.json",
        "e.samples.jsonl",
    ]
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


def test_nothing_is_written_over(score, home, tmp_path):
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
    score(None, "--max_examples", 2, "--output_file", "mine.jsonl", "--overwrite_output_dir")
    assert len(lines(tmp_path / "mine.jsonl")) == 2


def test_one_solution_has_nothing_to_be_shuffled_with(score, tmp_path):
    row = {"question": "Start with 3.", "answer": "We have 3.\n\nThe answer is 3."}
    said = score(write(tmp_path / "one.jsonl", [row]), "--json")
    result = json.loads(said)
    (line,) = lines(tmp_path / "energies-one.jsonl")
    assert line["energy"] > 0 and line["shuffled"] is None and line["relative"] is None
    assert result["pairs"] == 1 and result["nearer_than_shuffled"] is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--best_off", "3"], "did you mean --best_of?"),
        (["--best_of", "2"], "--best_of needs --metric"),
        (["--best_of", "2", "--metric", "gms8k"], "did you mean 'gsm8k'?"),
        (["--best_of", "2", "--metric", "rouge"], "needs one that says right or wrong"),
        (["--best_of", "0", "--metric", "gsm8k"], "best_of is 0"),
        (["--questions", "x.jsonl"], "keep one of them"),
        (["--model_name", "tiny"], "random weights"),
        (["--model_name", "nowhere/at/all"], "no such folder"),
        (["--step_splitter", "list"], "none of 12 solutions can be read"),
        (["--step_splitter", "regexp"], "did you mean 'regex'?"),
    ],
)
def test_mistakes(score, flags, said):
    assert said in score(None, *flags, status=2)


def test_files_without_solutions(score, tmp_path):
    assert "is empty" in score(write(tmp_path / "empty.jsonl", []), status=2)
    assert "none of 1 rows holds a solution" in score(write(tmp_path / "odd.jsonl", [{"x": 1}]), status=2)
    assert "no such file" in score("./nowhere.jsonl", status=2)
    assert "no solutions given" in score("", status=2)


def test_the_old_command_names_the_new_one(capsys):
    assert main(["score", "solutions.jsonl", "--model_name", "runs/a"]) == 2
    said = capsys.readouterr().err
    assert said == "stepjepa: error: score is now: stepjepa analyze --energy solutions.jsonl --model_name runs/a\n"
