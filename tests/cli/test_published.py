"""The command lines of the method's pages: each runs after the script's name is replaced, and does what its page says."""

import json

import pytest

from stepjepa.cli.main import main
from stepjepa.config.parser import StrictParser, build
from stepjepa.config.spellings import published
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import RunOptions
from support.rows import step_rows, write

SYSTEM = {"role": "system", "content": "You are a helpful assistant. Solve the problem step by step."}

# Model and data are given by the test; the rest stands as on the pages.
COMMANDS = {
    # readme: quick start of the standalone trainer
    "readme": "--lora --lora_rank 16 --lbd 0.1 --gamma 1.0 --jepa_loss_type cosine --num_epochs 3 --batch_size 4 "
    "--grad_accum 4",
    "readme_debug": "--debug 1",
    # architecture page
    "architecture": "--step_jepa --predictors 2 --lbd 0.1 --gamma 1.0 --last_token -1 --lora",
    # options page: modes, then examples 1 to 5
    "mode_regular": "--regular --lora",
    "mode_llm_jepa": "--predictors 2 --lbd 0.5 --lora",
    "mode_step_jepa": "--step_jepa --predictors 2 --lbd 0.1 --lora",
    "example_1": "--step_jepa --lbd 0.1 --gamma 1.0 --last_token -2 --lora --lora_rank 16 --finetune_seed 42",
    "example_2": "--predictors 2 --lbd 0.5 --gamma 1.0 --last_token -2 --lora --finetune_seed 42",
    "example_3": "--regular --lora --finetune_seed 42",
    "example_4": "--step_jepa --lbd 2.0 --finetune_seed 82 --lora",
    "example_5_l2": "--step_jepa --lbd 0.1 --jepa_l2 --lora",
    "example_5_mse": "--step_jepa --lbd 0.1 --jepa_mse --lora",
    "example_5_infonce": "--step_jepa --lbd 0.1 --infonce --lora",
    "two_implementations": "--step_jepa --lora --lbd 0.1",
    # the LLM-JEPA script
    "llm_regular": "--num_epochs 4 --finetune_seed 82 --regular --learning_rate 2e-5",
    "llm_jepa": "--num_epochs 4 --finetune_seed 82 --learning_rate 2e-5 --last_token -2 --lbd 1 --predictors 1",
    "llm_additive_mask": "--last_token -2 --lbd 1 --predictors 1 --additive_mask",
    "llm_jepa_ratio": "--last_token -2 --lbd 1 --predictors 1 --jepa_ratio 0.25 --additive_mask",
    "llm_l2": "--last_token -2 --lbd 1 --predictors 1 --jepa_l2",
    "llm_mse": "--last_token -2 --lbd 1 --predictors 1 --jepa_mse",
    "llm_infonce": "--last_token -2 --lbd 1 --predictors 1 --infonce",
    "llm_front_pred": "--last_token -2 --lbd 1 --predictors 1 --front_pred",
    "llm_reverse_pred": "--last_token -2 --lbd 1 --predictors 1 --reverse_pred",
    "llm_lora": "--last_token -2 --lbd 1 --predictors 1 --lora --lora_rank 16",
    "llm_pretrain": "--last_token -2 --lbd 1 --predictors 1 --pretrain",
    "llm_plain": "--last_token -1 --lbd 0.5 --predictors 2 --plain --train_all",
    "llm_same_flop": "--last_token -2 --lbd 1 --predictors 1 --same_flop",
    "llm_track_flop": "--last_token -2 --lbd 1 --predictors 1 --track_flop",
    "llm_debug": "--last_token -2 --lbd 1 --predictors 1 --debug 5",
    "llm_debug_row": "--last_token -2 --lbd 1 --predictors 1 --debug 7",
    "split": "--objective split --jepa_split 0.5 --jepa_k 1 --jepa_lambda 0.5 --same_predictor",
    "tube": "--linear random_span --lbd 0.02 --learning_rate 2e-5 --num_epochs 4",
    "tube_draw_both": "--linear random_span --random_span_draw_both --random_span_times 3 --length_adjustment cosine_like",
    "tube_head": "--linear random_span --linear_predictor --random_span_max_length 8",
    "tube_whole": "--linear random_span --random_span_all",
    "tube_e2e": "--linear e2e",
    "tube_curvature": "--linear curvature",
}
EXPECTED = {
    "readme": {"objective": "llm_jepa", "lora_rank": 16, "per_device_train_batch_size": 4, "jepa_loss": "cosine"},
    "architecture": {"objective": "step_jepa", "predictors": 2, "predictor_order": "ascending", "last_token": -1},
    "mode_regular": {"objective": "regular", "lora": True},
    "mode_llm_jepa": {"objective": "llm_jepa", "predictors": 2, "predictor_order": "descending", "lbd": 0.5},
    "mode_step_jepa": {"objective": "step_jepa", "step_pairs": "first", "predictors": 2},
    "example_4": {"seed": 82, "lbd": 2.0},
    "example_5_l2": {"jepa_loss": "l2"},
    "example_5_infonce": {"jepa_loss": "infonce", "infonce_symmetric": False, "infonce_temperature": 0.07},
    "llm_jepa": {"objective": "llm_jepa", "predictors": 1, "lbd": 1.0, "last_token": -2, "learning_rate": 2e-5},
    "llm_jepa_ratio": {"jepa_ratio": 0.25},
    "llm_front_pred": {"views": "standalone", "front_pred": True},
    "llm_reverse_pred": {"views": "standalone", "reverse_pred": True},
    "llm_pretrain": {"pretrain": True},
    "llm_plain": {"plain": True, "labels": "all"},
    "split": {"objective": "split", "split_ratio": 0.5, "predictors": 1, "lbd": 0.5, "target_grad": False},
    "tube": {"objective": "semantic_tube", "tube_mode": "span", "lbd": 0.02},
    "tube_draw_both": {"tube_sampler": "draw_both", "tube_times": 3, "tube_length_adjustment": "cosine_like"},
    "tube_head": {"predictor_head": "linear", "tube_max_length": 8},
    "tube_whole": {"tube_content": "whole"},
    "tube_e2e": {"tube_mode": "e2e"},
}
SAYS = {
    "llm_additive_mask": ["--additive_mask is not needed"],
    "llm_same_flop": ["times as much as a regular one", "instead of 2"],
    "llm_debug_row": ["step 1/2", "predictor_1"],
    "llm_jepa_ratio": ["--additive_mask"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rows = [{"messages": [SYSTEM, *row["messages"]], "total_steps": 2} for row in step_rows(16)]
    return write(tmp_path_factory.mktemp("data") / "gsm8k_step_jepa.jsonl", rows)


# What the flags of the others come to, EXPECTED says, and other tests train with it.
SHORT = {*SAYS, *"readme mode_regular mode_step_jepa llm_front_pred llm_pretrain llm_plain split tube_head".split()}
RUNS = [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in COMMANDS]


@pytest.mark.parametrize("name", RUNS)
def test_command(name, data, tmp_path, capfd):
    output = tmp_path / "out"
    added = f"--train_file {data} --output_dir {output} --model_name tiny --max_steps 2 --disable_tqdm true"
    assert main(["train", *COMMANDS[name].split(), *added.split()]) == 0
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err
    for words in SAYS.get(name, []):
        assert words in said.out, words
    record = json.loads((output / "run.json").read_text())
    metrics = json.loads((output / "metrics.json").read_text())["metrics"]
    regular = record["settings"]["objective"] == "regular"
    assert 0 < metrics["lm_loss"] < 20 and ("jepa_loss" in metrics) != regular
    if not regular:
        assert metrics["jepa_loss"] > 0
    settings = record["settings"]
    extras = settings["lbd"] and (settings["predictors"] or settings["predictor_head"] != "none")
    assert (output / "predictors.safetensors").exists() == bool(extras and not regular)


def test_every_published_flag_is_known():
    flags = (
        "train_file eval_file model_name output_dir max_length batch_size grad_accum num_epochs lora lora_rank step_jepa "
        "regular predictors lbd gamma last_token jepa_l2 jepa_mse infonce jepa_loss_type jepa_ratio seed finetune_seed "
        "pretrain plain train_all front_pred reverse_pred additive_mask same_flop track_flop debug"
    ).split()
    parser = StrictParser((RunOptions, JEPAConfig), aliases=published(RunOptions, JEPAConfig))
    assert not [flag for flag in flags if flag not in parser.options and flag not in parser.aliases]
    for name, command in COMMANDS.items():
        run, config = build((RunOptions, JEPAConfig), parser.values([*command.split(), "--use_cpu"]))
        settings = {**vars(run), **vars(config)}
        assert {option: settings[option] for option in EXPECTED.get(name, {})} == EXPECTED.get(name, {}), name
