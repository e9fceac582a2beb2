"""The table of other spellings: flags of the method's first scripts, and words of TRL and Hugging Face -> our options."""

from __future__ import annotations

from stepjepa.config.option import options_of
from stepjepa.config.parser import Alias, Answer, alias_settings

# ``--linear`` chose the semantic tube and its mode in one.
_TUBE_MODES = {"random_span": "span", "e2e": "e2e", "mean": "mean", "curvature": "curvature"}

PUBLISHED: dict[str, Alias] = {
    "batch_size": "per_device_train_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "num_epochs": "num_train_epochs",
    "finetune_seed": "seed",
    "jepa_loss_type": "jepa_loss",
    "lambda": "lbd",
    "step_jepa": ("objective", "step_jepa"),
    "regular": ("objective", "regular"),
    "jepa_l2": ("jepa_loss", "l2"),
    "jepa_mse": ("jepa_loss", "mse"),
    "infonce": ("jepa_loss", "infonce"),
    "train_all": ("labels", "all"),
    "jepa_split": "split_ratio",
    "jepa_k": "predictors",
    "jepa_lambda": "lbd",
    "linear": {word: (("objective", "semantic_tube"), ("tube_mode", mode)) for word, mode in _TUBE_MODES.items()},
    "linear_predictor": ("predictor_head", "linear"),
    "random_span_draw_both": ("tube_sampler", "draw_both"),
    "random_span_uniform": ("tube_sampler", "uniform"),
    "random_span_zero": ("tube_sampler", "zero"),
    "random_span_times": "tube_times",
    "random_span_max_length": "tube_max_length",
    "random_span_all": ("tube_content", "whole"),
    "random_span_e2e": ("tube_content", "with_markup"),
    "length_adjustment": "tube_length_adjustment",
    # It was a level of chatter; `TrainingArguments` has a ``--debug`` of its own, which takes words.
    "debug": {str(level): (("debug_level", str(level)),) for level in range(11)},
    # TRL's, and words in use at Hugging Face
    "model_name_or_path": "model_name",
    "dataset_name": "train_file",
    "dataset_config": Answer("train_file", "write it after the data set's name, as in --{option} NAME:CONFIG"),
    "dataset_train_split": "dataset_split",
    "dataset_test_split": "eval_split",
    "max_seq_length": "max_length",
    "lr": "learning_rate",
    "epochs": "num_train_epochs",
    "use_peft": "lora",
    "lora_r": "lora_rank",
    "assistant_only_loss": {"true": (("labels", "assistant"),), "false": (("labels", "all"),)},
    "completion_only_loss": Answer(
        "labels",
        "leave it out: the loss is on the assistant's messages as it is, and on every token with --{option} all",
    ),
    "packing": Answer(
        "forward", "leave it out: examples are packed into rows as it is (--{option} packed), and do not see each other"
    ),
}


_NO_ENERGIES = (
    "energies of solutions were removed: they do not tell right solutions from wrong ones (docs/evidence.md); compare "
    "accuracies with stepjepa evaluate"
)
_NO_PROGRAMS = (
    "running what a model writes was removed; use tasks of the lm-evaluation-harness, as in HF_ALLOW_CODE_EVAL=1 stepjepa "
    "evaluate RUN --harness mbpp,humaneval"
)
# What left (flags, commands, metrics) -> what replaces it.
LEFT: dict[str, Answer] = {
    "energy": Answer("", _NO_ENERGIES),
    "best_of": Answer("", _NO_ENERGIES),
    "score": Answer("", _NO_ENERGIES),
    "print_completion": Answer("", "shell completion was removed; stepjepa COMMAND --help lists the options"),
    "map_layers": Answer(
        "", "the linear map was removed from analyze; a study's metrics map_r2 and map_fitted_error have it"
    ),
    "code_execution": Answer("", _NO_PROGRAMS),
    "allow_code_execution": Answer("", _NO_PROGRAMS, idle=("false",)),
    "data_cache": Answer(
        "",
        "the cache of tokenised rows was removed: rows are tokenised at every start, in N processes with "
        "--dataset_num_proc N, and --streaming reads large data while the model trains",
        idle=("none",),
    ),
    "engine": Answer(
        "", "work in a Ray cluster was removed here; docs/howto/clusters.md shows it with Ray Data", idle=("processes",)
    ),
    "ray_replicas": Answer(
        "", "was removed: serve copies of the model (vllm serve) and ask them with --backend openai", idle=("none",)
    ),
    "data_parallel_size": Answer(
        "",
        "was removed: serve copies of the model (vllm serve --data-parallel-size N) and ask them with --backend openai",
        idle=("1",),
    ),
}


def published(*dataclass_types: type) -> dict[str, Alias]:
    """The spellings that lead to options of these dataclasses, to values that they may have; and answers to what left."""
    known = {name: one for dtype in dataclass_types for name, one in options_of(dtype).items()}
    return LEFT | {
        name: target
        for name, target in PUBLISHED.items()
        if all(
            field in known and (value is None or known[field].fits(value)) for field, value in alias_settings(target)
        )
    }
