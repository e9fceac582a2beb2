"""Every recipe that is shipped: it is read, and its runs are those of the experiment that it names."""

import pytest

from stepjepa.study.reading import read_study
from stepjepa.study.spec import all_runs, describe
from stepjepa.study.tree import open_study, recipe_files, recipe_lines

PAPER_SEEDS = (82, 23, 37, 84, 4)
OWN = (
    *"builtin demo demo_path_star labels_or_jepa planning planning_grid planning_terms".split(),
    *(f"evidence_{n}" for n in ("nl_rx", "nl_rx_labels", "step_builtin", "step_gsm8k")),
)


def recipe(name, mini=False):
    found, tree = open_study(name)
    return read_study(tree, found, mini)


@pytest.mark.parametrize("mini", [False, True])
@pytest.mark.parametrize("name", sorted(recipe_files()))
def test_each_is_read_and_listed(name, mini):
    study = recipe(name, mini)
    lines = list(describe(study, lambda run, stage: False))
    assert study.shows and study.title in lines[0] and len(list(all_runs(study))) >= 6
    assert str(study.output_dir) == f"runs/{name}{'-mini' if mini else ''}"
    assert not study.notes or all("random" in note for note in study.notes), study.notes
    for block in study.blocks:
        assert len(block.seeds) >= (1 if mini else 3)
        if mini:
            assert block.base["model_name"] in ("tiny", "micro") and block.data.builtin is not None
            assert all(arm.settings.get("model_name", "tiny") == "tiny" for arm in block.arms)
            assert block.base["max_steps"] <= 40
        elif name not in OWN:
            assert block.seeds == PAPER_SEEDS and block.data.builtin is None
            assert block.base["model_name"] != "tiny" and block.base["bf16"] is True
            size = block.base["per_device_train_batch_size"] * block.base["gradient_accumulation_steps"]
            assert size == (16 if name == "step_jepa_sweep" else 128)


@pytest.mark.parametrize(
    ("name", "block", "arm", "settings"),
    [
        ("llm_jepa_table2", "", "llm_jepa", {"learning_rate": 8e-5, "lbd": 2, "predictors": 3, "pretrain": True}),
        ("llm_jepa_table3", "", "infonce", {"learning_rate": 2e-5, "lbd": 1, "predictors": 1, "jepa_loss": "infonce"}),
        ("llm_jepa_table4", "nq_open", "llm_jepa", {"learning_rate": 2e-5, "lbd": 1024, "predictors": 0}),
        ("llm_jepa_table5", "qwen3_1.7b", "llm_jepa", {"learning_rate": 4e-5, "lbd": 1, "predictors": 0}),
        ("llm_jepa_table6", "", "ratio0.25-lbd4", {"jepa_ratio": 0.25, "lbd": 4, "predictors": 1}),
        ("llm_jepa_table8", "rank512", "llm_jepa", {"lora": True, "lora_rank": 512, "lbd": 1, "predictors": 1}),
        ("llm_jepa_table9_pretrain", "", "llm_jepa", {"lbd": 0.5, "predictors": 2, "plain": True, "labels": "all"}),
        ("llm_jepa_table10", "", "gamma0.01", {"gamma": 0.01, "lbd": 1, "predictors": 0}),
        ("llm_jepa_table12", "gemma_2_2b", "llm_jepa", {"learning_rate": 1e-5, "lbd": 2, "predictors": 4}),
        ("llm_jepa_table13", "gsm8k", "llm_jepa", {"learning_rate": 2e-5, "lbd": 0.5, "predictors": 4}),
        ("llm_jepa_table15", "olmo_2_7b", "llm_jepa", {"learning_rate": 2e-5, "lbd": 20, "predictors": 2}),
        ("semantic_tube", "", "semantic_tube", {"learning_rate": 2e-5, "lbd": 0.02, "num_train_epochs": 4}),
    ],
)
def test_published_settings(name, block, arm, settings):
    (found,) = [one for one in recipe(name).blocks if one.name == block]
    (run, *_) = [r for r in all_runs(recipe(name)) if (r.block.name, r.row) == (block, arm)]
    assert {key: run.settings[key] for key in settings} == settings
    assert {arm.name: arm.settings["objective"] for arm in found.arms}["regular"] == found.baseline == "regular"


def test_fine_tuning_starts_from_what_pretraining_left():
    before = {str(run.folder) for run in all_runs(recipe("llm_jepa_table9_pretrain"))}
    for run in all_runs(recipe("llm_jepa_table9_finetune")):
        folder = run.settings["model_name"].removeprefix("runs/llm_jepa_table9_pretrain/").removesuffix("/model")
        assert folder in before and folder.endswith(f"seed-{run.seed}")


def test_the_list_says_what_each_should_show():
    lines = recipe_lines()
    assert len([line for line in lines if not line.startswith(" ")]) == len(recipe_files())
    assert any("54.38 +- 1.70 becomes 60.59 +- 1.01" in line for line in lines)
