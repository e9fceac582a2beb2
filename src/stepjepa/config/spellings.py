"""The table of other spellings: flags of the method's first scripts, names of transformers 4 and of TRL -> our options.

A name with the same meaning is an alias; any other name has an answer that says what to do instead. For a name without an
entry here, the option with the most similar name is suggested, which may mean something else.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

from stepjepa.config.option import Values, options_of
from stepjepa.config.parser import (
    Alias,
    Answer,
    Setting,
    Share,
    StrictParser,
    alias_settings,
    build,
    merged,
)
from stepjepa.config.yaml_file import representable

T = TypeVar("T")
# ``--linear`` chose both the semantic tube and its mode.
_TUBE_MODES = {"random_span": "span", "e2e": "e2e", "mean": "mean", "curvature": "curvature"}

# Flags of the method's published scripts.
_SCRIPTS: dict[str, Alias] = {
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
    "linear": {
        word: (("objective", "semantic_tube"), ("tube_mode", mode))
        for word, mode in _TUBE_MODES.items()
    },
    "linear_predictor": ("predictor_head", "linear"),
    "random_span_draw_both": ("tube_sampler", "draw_both"),
    "random_span_uniform": ("tube_sampler", "uniform"),
    "random_span_zero": ("tube_sampler", "zero"),
    "random_span_times": "tube_times",
    "random_span_max_length": "tube_max_length",
    "random_span_all": ("tube_content", "whole"),
    "random_span_e2e": ("tube_content", "with_markup"),
    "length_adjustment": "tube_length_adjustment",
    # In the scripts, a number for the amount of output; the ``--debug`` of `TrainingArguments` takes words.
    "debug": {str(level): (("debug_level", str(level)),) for level in range(11)},
}


def _answers(option: str, text: str, **idle: str) -> dict[str, Answer]:
    """The same `Answer` for several names, each with its idle words (`Answer.idle`): usually the default elsewhere."""
    return {name: Answer(option, text, tuple(words.split())) for name, words in idle.items()}


# Answers that several names share.
_PACKED = "leave it out: examples are always packed into rows (--{option} packed) and do not see each other"
_LABELS = "leave it out: the loss is on the assistant's messages by default, and on every token with --{option} all"
_ADAPTER = "pass JEPATrainer a peft_config with it, from Python; --{option} does not support it"
_CHUNKS = "leave it out: each row is an example of up to --{option} tokens, and rows are not joined"
_END = "leave it out: the end of an answer is read from the chat template (--{option})"

# Options of TRL's SFTConfig, ScriptArguments and ModelConfig that are not called the same here.
_TRL: dict[str, Alias] = {
    "model": "model_name",
    "model_name_or_path": "model_name",
    "torch_dtype": "dtype",
    "dataset_name": "train_file",
    "dataset_train_split": "dataset_split",
    "dataset_test_split": "eval_split",
    "dataset_streaming": "streaming",
    "max_seq_length": "max_length",
    "assistant_only_loss": {"true": (("labels", "assistant"),), "false": (("labels", "all"),)},
    "use_liger": "use_liger_kernel",
    "chat_template_path": "chat_template",
    "use_peft": "lora",
    "lora_r": "lora_rank",
    "lr": "learning_rate",
    "epochs": "num_train_epochs",
    **_answers(
        "model_name",
        "give --{option} a folder with that revision (hf download NAME --revision ...)",
        model_revision="none",
    ),
    **_answers(
        "output_dir",
        "write --dtype, --attn_implementation and so on; in Python, pass a loaded model",
        model_init_kwargs="none",
    ),
    "dataset_config": Answer(
        "train_file", "write it after the data set's name, as in --{option} NAME:CONFIG"
    ),
    "datasets": Answer(
        "train_file",
        "give the files or data sets to --{option}, and their weights to --mixing_weights",
    ),
    **_answers(
        "eval_file",
        "write two files with stepjepa prepare --valid_ratio, and give the second one to --{option}",
        test_split_size="none",
    ),
    **_answers(
        "max_length",
        "rename the column: plain text is read from the column text",
        dataset_text_field="text none",
    ),
    **_answers("max_length", "leave it out: rows are read as they are", dataset_kwargs="none"),
    "dataset_batch_size": Answer(
        "dataset_num_proc", "leave it out; --{option} sets the number of processes that tokenise"
    ),
    **_answers(
        "train_sampling_strategy",
        "--{option} sequential keeps the order of the file",
        shuffle_dataset="true",
    ),
    **_answers(
        "max_length",
        "longer chats are cut on the right only; raise --{option}",
        truncation_mode="keep_start",
    ),
    **_answers("max_length", _CHUNKS, chars_per_token="", num_of_sequences="", infinite="false"),
    **_answers(
        "forward", _PACKED, packing="", eval_packing="", packing_strategy="", padding_free=""
    ),
    **_answers("forward", _PACKED, pad_to_multiple_of="auto none"),
    "completion_only_loss": Answer("labels", _LABELS),
    **_answers(
        "labels",
        "leave it out: padding is masked by its position, never by its token",
        pad_token="none",
    ),
    **_answers(
        "gamma",
        "the LM loss, weighted by --{option}, is always the negative log-likelihood (nll)",
        loss_type="nll chunked_nll",
    ),
    "router_aux_loss_coef": Answer(
        "gamma", "the loss is --{option} * LM + --lbd * JEPA, without a router loss"
    ),
    **_answers(
        "gradient_checkpointing",
        "recompute activations instead: --{option} true",
        activation_offloading="false",
    ),
    "gradient_checkpointing_use_reentrant": Answer(
        "gradient_checkpointing_kwargs", "write --{option} '{{\"use_reentrant\": ...}}'"
    ),
    **_answers("chat_template", _END, eos_token="none"),
    **_answers(
        "ddp_broadcast_buffers", "leave it out; see --{option}", ignore_bias_buffers="false"
    ),
    **_answers(
        "lora", "leave it out: --{option} is for causal language models", lora_task_type="causal_lm"
    ),
    **_answers(
        "lora_target_modules",
        "only linear layers are adapted: --{option}",
        lora_target_parameters="none",
    ),
    **_answers(
        "train_tokens",
        "--{option} trains the embedding rows of tokens along with the adapter; other modules cannot be exported",
        lora_modules_to_save="none",
    ),
    **_answers("lora", _ADAPTER, use_rslora="false", use_dora="false"),
    **_answers(
        "load_in_4bit",
        "leave it out: --{option} always means nf4 with double quantisation",
        bnb_4bit_quant_type="nf4",
        use_bnb_nested_quant="true",
        bnb_4bit_quant_storage="none",
    ),
}

_NOT_IN_5 = "leave it out: transformers 5 has no such option"
_IN_FSDP = "write it as a key of --{option}, without fsdp_: '{{\"min_num_params\": ...}}'"
_IN_ACCELERATOR = "write it as a key of --{option}: '{{\"split_batches\": ...}}'"
_BOARD = "set TENSORBOARD_LOGGING_DIR in the environment, for --{option} tensorboard"

# Options of transformers 4 that version 5 has removed or renamed.
_TRANSFORMERS_4: dict[str, Alias] = {
    "warmup_ratio": Share("warmup_steps"),
    "evaluation_strategy": "eval_strategy",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "no_cuda": "use_cpu",
    "adafactor": ("optim", "adafactor"),
    "group_by_length": ("train_sampling_strategy", "group_by_length"),
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
    "torchdynamo": "torch_compile_backend",
    "xpu_backend": "ddp_backend",
    **_answers("report_to", _BOARD, logging_dir="none"),
    **_answers(
        "fsdp_config",
        _IN_FSDP,
        fsdp_min_num_params="0",
        fsdp_transformer_layer_cls_to_wrap="none",
    ),
    **_answers(
        "accelerator_config", _IN_ACCELERATOR, dispatch_batches="none", split_batches="none"
    ),
    **_answers(
        "logging_steps",
        _NOT_IN_5,
        use_mps_device="true",
        tpu_num_cores="none",
        tpu_metrics_debug="false",
        push_to_hub_organization="none",
        save_safetensors="true",
        include_inputs_for_metrics="false",
        past_index="-1",
        ray_scope="last",
        use_legacy_prediction_loop="false",
        include_tokens_per_second="true",
        fp16_backend="auto",
        half_precision_backend="auto",
        fp16_opt_level="o1",
        jit_mode_eval="false",
        use_ipex="false",
        sharded_ddp="none false",
        mp_parameters="none",
    ),
}

PUBLISHED: dict[str, Alias] = {**_SCRIPTS, **_TRL, **_TRANSFORMERS_4}


# Answers for the options and commands of earlier versions of this library.
_NO_ENERGIES = (
    "energies of solutions were removed: they do not separate right and wrong solutions (docs/evidence.md); compare "
    "accuracies with stepjepa evaluate"
)
_NO_PROGRAMS = (
    "running code that a model writes is no longer supported; use tasks of the lm-evaluation-harness, as in "
    "HF_ALLOW_CODE_EVAL=1 stepjepa evaluate RUN --harness mbpp,humaneval"
)
_NO_NUMBERS = (
    "the page no longer shows numbers computed by a model; stepjepa analyze FILE --models RUN reads "
    "the states of a run"
)
_IN_DEMO = (
    "write --set KEY=VALUE with base.per_device_train_batch_size, base.learning_rate, arms.step_jepa.predictors or "
    "arms.step_jepa.lbd"
)
_AS_TRAINED = "was removed from analyze: every model is read as it was trained"
# Removed flags and commands -> what replaces them. The option of an answer only says which command the answer belongs to.
LEFT: dict[str, Answer] = {
    **_answers(
        "valid_ratio",
        "was removed: GSM8K's calculator annotations are always dropped",
        calculator_marks="drop",
    ),
    **_answers(
        "valid_ratio",
        "was removed: a final '#### 72' is always written in \\boxed",
        final_answer="boxed",
    ),
    **_answers(
        "valid_ratio",
        "was removed from prepare: leave rows out of the prepared file",
        max_steps="none",
    ),
    **_answers(
        "valid_ratio", "was removed from prepare: give a file with fewer rows", max_examples="none"
    ),
    "answer_column": Answer(
        "",
        "was removed: write --response_column or --ground_truth_column in prepare, --target_column in generate",
    ),
    "runs": Answer(
        "", "was removed from analyze: stepjepa report RUN ... draws the curves of several runs"
    ),
    **_answers(
        "",
        "was removed: out.unsolved.jsonl has the last response to every unsolved question",
        keep_attempts="false",
    ),
    **_answers(
        "",
        "was removed: ask with --temperature 0, then ask the unsolved file again",
        greedy_first="false",
    ),
    **_answers(
        "",
        "was removed: the column is called response, which prepare reads",
        response_field="response",
    ),
    **_answers("", "was removed: every question is asked once", samples_per_question="1"),
    **_answers(
        "attempts",
        "was removed: a request times out after ten minutes, and is sent up to six times; run the same command to resume",
        timeout="",
        max_retries="",
    ),
    **_answers(
        "attempts",
        "write --source_column and --target_column",
        question_column="",
        ground_truth_column="",
    ),
    "no_resume": Answer(
        "attempts",
        "was removed: nothing is replaced without --overwrite; name another --output_file",
    ),
    **_answers("", _NO_ENERGIES, energy="", best_of="", score=""),
    "print_completion": Answer(
        "", "shell completion was removed; stepjepa COMMAND --help lists the options"
    ),
    "map_layers": Answer(
        "",
        "the linear map was removed from analyze; a study's metrics map_r2 and map_fitted_error measure it",
    ),
    **_answers("", _NO_PROGRAMS, allow_code_execution="false"),
    **_answers(
        "",
        "the cache of tokenised rows was removed: rows are tokenised at every start, in N processes with "
        "--dataset_num_proc N, and --streaming reads large data while the model trains",
        data_cache="none",
    ),
    **_answers(
        "lbd_schedule",
        "was removed: compare with a run that has --objective regular instead",
        log_gradient_cosine="none",
    ),
    **_answers(
        "",
        "was removed: the losses of every log entry are printed above the progress bar",
        keep_losses="false true",
    ),
    "geometry": Answer(
        "",
        "the report no longer shows geometry; stepjepa analyze writes its numbers and figures into a separate folder",
    ),
    **_answers(
        "",
        "running in a Ray cluster was removed here; docs/scale.md shows how to do it with Ray",
        engine="processes",
    ),
    **_answers("", _NO_NUMBERS, run_model="false", no_run_model="true", attention_layers="none"),
    "per_device_train_batch_size": Answer(
        "eval_split", "it is an option of stepjepa train; check reports no padding"
    ),
    **_answers(
        "",
        "was removed: one row is shown; the training log has the number of tokens in a batch",
        rows_packed="1",
    ),
    "show": Answer("num_proc", "was removed from check; stepjepa inspect FILE --row N shows a row"),
    "seed": Answer(
        "eval_split", "was removed from check: nothing in its report is sampled any more"
    ),
    "blocks": Answer(
        "stop_after", "was removed from study: copy the file and keep only the blocks to run"
    ),
    "from_states": Answer(
        "prediction_horizon",
        "was removed: run the analysis again, or read its states-*.safetensors with safetensors",
    ),
    "base_model": Answer(
        "prediction_horizon", "was removed from analyze: name the base model under --models as well"
    ),
    "coordinates": Answer(
        "prediction_horizon",
        "was removed: draw PCA or t-SNE of the saved states with scikit-learn; neither shows collapse",
    ),
    **_answers("prediction_horizon", "was removed: figures are PNG files", figure_format="png"),
    **_answers(
        "prediction_horizon",
        _AS_TRAINED,
        predictor_order="",
        same_predictor="",
        readout_layer="",
        head="true",
        no_head="false",
    ),
    "resume": Answer(
        "valid_ratio",
        "an interrupted run cannot be resumed: the file is written in one go; run the command again",
    ),
    "shards": Answer(
        "valid_ratio",
        "the training rows are written to one file; to cut it, run: split --number l/4 train.jsonl",
    ),
    **_answers("train_rows", _IN_DEMO, batch_size="", learning_rate="", predictors="", lbd=""),
    **_answers(
        "",
        "was removed: serve copies of the model (vllm serve --data-parallel-size N) and ask them with --backend openai",
        data_parallel_size="1",
        ray_replicas="none",
    ),
}


def published(*dataclass_types: type) -> dict[str, Alias]:
    """The spellings that set options of these dataclasses to accepted values, and the answers for removed names."""
    known = options_of(*dataclass_types)
    removed = {
        name: answer
        for name, answer in LEFT.items()
        if answer.option in {"", *known} and name not in known
    }

    def applies(target: Alias) -> bool:
        settings = alias_settings(target)
        return all(
            field in known and (value is None or known[field].fits(value))
            for field, value in settings
        )

    # A published spelling takes precedence over the answer for a removed name.
    return removed | {name: target for name, target in PUBLISHED.items() if applies(target)}


def by_our_names(given: Values, *dataclass_types: type) -> dict[str, Any]:
    """Values from Python code by name, with our names in place of other spellings.

    Raises:
        ConfigError: a spelling that has an answer, or two that disagree.
    """
    our_names = options_of(*dataclass_types).keys()
    given = {name: _path_as_text(value) for name, value in given.items()}
    # Usually all names are our own, which need no parser.
    if given.keys() <= our_names:
        return given
    aliases = published(*dataclass_types)
    parser = StrictParser(dataclass_types, aliases=aliases)
    settings: list[Setting] = []
    # Only aliases go through the parser, which reads text; all other values are objects and are kept as they are.
    for name, value in given.items():
        if name in aliases and name not in our_names:
            settings += parser.settings(name, _as_written(value), name)
        else:
            settings.append(Setting(name, value, name, alias=False))
    return {name: setting.value for name, setting in merged(settings).items()}


def checked_options(kind: type[T], given: Values) -> T:
    """Make an options dataclass from values by name, and check it before anything heavy is imported.

    Raises:
        ConfigError: an unknown name, or a value that cannot be used.
    """
    (options,) = build((kind,), by_our_names(given, kind))
    if hasattr(options, "check"):
        options.check()
    return options  # type: ignore[no-any-return]


def _path_as_text(value: object) -> object:
    """A value with text in place of a `Path`, also in a list."""
    if isinstance(value, list):
        return [_path_as_text(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _as_written(value: object) -> object:
    """A value as it would arrive from a YAML file, see `stepjepa.config.values`."""
    plain = representable(value)
    if isinstance(plain, list):
        return [_as_written(item) for item in plain]
    return plain if plain is None or isinstance(plain, dict) else str(plain)
