"""Drafts change how many passes an answer takes, and nothing else: the same token ids as plain greedy decoding."""

import json
from types import SimpleNamespace

import pytest

from stepjepa.cli.main import main
from stepjepa.errors import ConfigError
from stepjepa.generation.drafting import Drafter
from stepjepa.generation.local import generate_batch
from stepjepa.modeling.extras import add_extras
from stepjepa.modeling.forward import loss_view
from stepjepa.objectives.base import objective_of
from stepjepa.training.options import JEPAOptions
from support.answers import TEST, TRAIN
from support.families import family_model
from support.models import PROMPTS, spread, tiny_model
from support.rows import lines, write
from support.runs import one_line, printed

OBJECTIVES = ("next_latent", "multi_token")
LENGTH = 13


def drafter_of(model, objective, count=3):
    options = JEPAOptions(objective=objective)
    options.check()
    chosen = objective_of(options)
    vocabulary, width = model.get_input_embeddings().weight.shape
    add_extras(model, None, objective=spread(chosen.modules(width, vocabulary)))
    return Drafter(model, chosen, loss_view(model, vocabulary), count)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral_sliding", "gemma3_sliding", "cohere_scaled_logits"])
@pytest.mark.filterwarnings("error::FutureWarning")
def test_the_tokens_are_those_of_greedy_batches(name, objective):
    """Windows of 6 tokens; without a stop token, and with some that end answers early; of tokens that may not be written."""
    model = spread(tiny_model(name))
    drafter = drafter_of(model, objective)
    drafter.check()
    free = generate_batch(model, PROMPTS, LENGTH, [])
    stops = [free[0][2], free[3][-2]]
    for stop_ids, suppressed in (([], []), (stops, []), (stops, [free[1][0], 10**6])):
        expected = generate_batch(model, PROMPTS, LENGTH, stop_ids, suppressed=suppressed)
        assert [drafter.write(prompt, LENGTH, stop_ids, suppressed)[0] for prompt in PROMPTS] == expected


def test_a_state_that_cannot_be_cut_back_is_refused():
    with pytest.raises(ConfigError, match="the cache of Mamba2ForCausalLM cannot be cropped"):
        drafter_of(family_model("mamba2").eval(), "next_latent").check()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Runs of both objectives, one of them an adapter, with a checkpoint; and questions."""
    folder = tmp_path_factory.mktemp("drafting")
    words = f"train --train_file {write(folder / 'train.jsonl', TRAIN)} --batch_size 8 --disable_tqdm true --lbd 1"
    run = "--model_name tiny --learning_rate 3e-3 --max_steps 60 --save_steps 60"
    for objective, further in (("next_latent", "--latent_horizon 2"), ("multi_token", "--token_horizon 3")):
        options = f"{words} {run} --objective {objective} {further} --output_dir {folder / objective}"
        assert main(options.split()) == 0
    adapter = f"--model_name {folder}/multi_token --lora --max_steps 3 --learning_rate 0.01 --merge_lora false"
    adapter += f" --objective next_latent --save_strategy no --output_dir {folder / 'adapter'}"
    assert main(f"{words} {adapter}".split()) == 0
    write(folder / "test.jsonl", TEST)
    return folder


@pytest.fixture
def evaluate(home, tmp_path, capsys):
    def run(model, output, *flags, status=0):
        words = ["evaluate", home / model, home / "test.jsonl", "--metric", "exact", "--max_new_tokens", 24]
        said = printed(capsys, [*words, "--output_dir", tmp_path / output, *flags], status)
        if status:
            return one_line(said, "evaluate")
        record = json.loads((tmp_path / output / "metrics.json").read_text())
        return SimpleNamespace(said=said, rows=lines(tmp_path / output / "predictions.jsonl"), record=record)

    return run


@pytest.mark.parametrize("model", [*OBJECTIVES, "next_latent/checkpoint-60", "adapter"])
def test_an_evaluation_with_drafts(evaluate, home, model):
    plain = evaluate(model, "plain")
    drafted = evaluate(model, "drafted", "--draft_tokens", 2, "--batch_size", 5)
    counts = [row.pop("drafts") for row in drafted.rows]
    assert drafted.rows == plain.rows and plain.record["generation"]["drafts"] is None
    found = drafted.record["generation"]["drafts"]
    assert (found["passes"], found["kept"]) == tuple(map(sum, zip(*counts, strict=True)))
    for row, (passes, kept) in zip(drafted.rows, counts, strict=True):
        # The pass over the prompt writes one token; the end of the turn may drop the last one of a pass.
        assert 0 <= 1 + passes + kept - row["tokens"] <= (row["stop_reason"] == "stop")
    assert found["kept"] > 12 and f"drafts         {found['kept_per_pass']:.2f} kept per pass" in drafted.said
    again = evaluate(model, "drafted", "--draft_tokens", 2, "--batch_size", 5, "--metric", "exact", "stopped")
    assert again.record["generation"] == drafted.record["generation"]


def test_the_solutions_are_those_of_plain_greedy_decoding(home, tmp_path, capsys):
    words = f"generate {home}/test.jsonl --model_name {home}/next_latent --temperature 0 --max_new_tokens 24"
    for name, flags in (("plain", []), ("drafted", ["--draft_tokens", "4"])):
        said = printed(capsys, [*words.split(), "--output_file", tmp_path / f"{name}.jsonl", *flags])
    assert "  drafts: " in said and "kept per pass of the model" in said
    plain, drafted = (lines(tmp_path / f"{name}.unsolved.jsonl") for name in ("plain", "drafted"))
    assert plain == drafted and len(plain) > 6


def test_refusals(evaluate, home, tmp_path, capsys):
    drafting = ("--draft_tokens", 2)
    greedy = "--draft_tokens drafts only greedy answers with transformers"
    for flags in (("--temperature", 0.5), ("--backend", "vllm")):
        assert greedy in evaluate("next_latent", "out", *drafting, *flags, status=2)
    words = ["generate", home / "test.jsonl", "--model_name", "x", "--output_file", tmp_path / "x.jsonl", *drafting]
    assert greedy in one_line(printed(capsys, words, 2), "generate")
    harness = printed(capsys, ["evaluate", home / "next_latent", "--harness", "mmlu", *drafting], 2)
    assert "leave --draft_tokens out" in one_line(harness, "evaluate")
    exported = tmp_path / "exported"
    assert main(["export", str(home / "next_latent"), str(exported)]) == 0
    capsys.readouterr()
    where = "give the folder of a run or a checkpoint with objective next_latent or multi_token"
    assert where in evaluate(exported, "out", *drafting, status=2)
    # Heads of another run.
    heads = (home / "multi_token" / "predictors.safetensors").read_bytes()
    (exported / "predictors.safetensors").write_bytes(heads)
    assert "the predictors do not fit this model" in evaluate(exported, "out", *drafting, status=2)
