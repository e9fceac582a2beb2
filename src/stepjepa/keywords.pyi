"""Options of the public functions by name, for editors and type checkers; `tools/keywords.py` writes this file."""

from typing import Any, Literal, TypedDict

from stepjepa.objectives.base import Objective


class ExampleKeywords(TypedDict, total=False):
    """Options of how rows become examples."""

    objective: Literal["regular", "llm_jepa", "step_jepa", "split", "semantic_tube", "next_latent", "multi_token", "future_summary", "steps_to_answer"] | str | Objective
    objective_options: dict[str, Any] | None
    forward: Literal["auto", "packed", "two_pass", "inline"]
    target_grad: bool | None
    jepa_ratio: float
    mask_ratio: float
    mask_span: bool
    jepa_target_column: str | None
    predictors: int | None
    predictor_order: Literal["ascending", "descending"] | None
    same_predictor: bool
    target_encoder: Literal["self", "ema", "frozen"] | str
    last_token: int | None
    readout: Literal["last", "mean"]
    readout_layer: int | None
    answer_layers: list[int] | None
    step_splitter: Literal["auto", "separator", "lines", "numbered", "sentence", "regex", "list"]
    step_separator: str
    steps_column: str
    step_pairs: Literal["first", "all", "random", "plan"]
    horizon: int
    multi_horizon: list[int] | None
    views: Literal["in_context", "standalone"] | None
    front_pred: bool
    reverse_pred: bool
    split_ratio: float
    tube_mode: Literal["span", "three_index", "e2e", "mean", "curvature"]
    tube_sampler: Literal["default", "draw_both", "uniform", "zero", "steps"]
    tube_max_length: int | None
    tube_times: int
    tube_length_adjustment: Literal["none", "cosine_like", "jaccard_like"]
    tube_content: Literal["messages", "with_markup", "whole"]
    tube_layer: int | None
    summary_window: int
    token_horizon: int
    token_positions: Literal["labelled", "question"]
    latent_horizon: int
    latent_distance: float
    latent_kl: float
    latent_positions: Literal["labelled", "all"]
    source_column: str | None
    target_column: str | None
    choice_column: str | None
    plain: bool
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    labels: Literal["assistant", "all", "reference"] | None
    max_length: int
    train_on: Literal["all", "last"]
    drop_longer: bool
    system_prompt: str | None
    strict_data: bool
    max_row_length: int | None


class TrainKeywords(ExampleKeywords, total=False):
    """Options of `stepjepa.train`."""

    train_file: list[str] | None
    eval_file: str | None
    dataset_split: str
    eval_split: str
    eval_metrics: list[str] | None
    eval_samples: int
    eval_max_new_tokens: int
    stop_at: float | None
    early_stopping_patience: int | None
    ray_workers: int | None
    debug_level: int
    additive_mask: bool
    model_name: str
    dtype: Literal["float32", "bfloat16", "float16", "auto"]
    attn_implementation: Literal["sdpa", "eager", "flex_attention"] | None
    trust_remote_code: bool
    use_kernels: bool
    pretrain: bool
    lora: bool
    lora_rank: int
    lora_alpha: int | None
    lora_dropout: float
    lora_target_modules: list[str] | None
    train_tokens: list[str] | None
    load_in_4bit: bool
    load_in_8bit: bool
    output_dir: str | None
    per_device_train_batch_size: int
    num_train_epochs: float
    max_steps: int
    learning_rate: float | None
    lr_scheduler_type: str
    lr_scheduler_kwargs: dict[str, Any] | str | None
    warmup_steps: float
    optim: str
    optim_args: str | None
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    optim_target_modules: str | list[str] | None
    gradient_accumulation_steps: int
    average_tokens_across_devices: bool
    max_grad_norm: float
    label_smoothing_factor: float
    bf16: bool
    fp16: bool
    bf16_full_eval: bool
    fp16_full_eval: bool
    tf32: bool | None
    activation_checkpointing: bool | None
    activation_checkpointing_kwargs: dict[str, Any] | str | None
    gradient_checkpointing: bool | None
    gradient_checkpointing_kwargs: dict[str, Any] | str | None
    torch_compile: bool
    torch_compile_backend: str | None
    torch_compile_mode: str | None
    use_liger_kernel: bool
    liger_kernel_config: dict[str, Any] | None
    use_cache: bool
    neftune_noise_alpha: float | None
    torch_empty_cache_steps: int | None
    auto_find_batch_size: bool
    logging_strategy: str
    logging_steps: float
    logging_first_step: bool
    log_on_each_node: bool
    logging_nan_inf_filter: bool
    include_num_input_tokens_seen: str | bool
    log_level: Literal["detail", "debug", "info", "warning", "error", "critical", "passive"]
    log_level_replica: Literal["detail", "debug", "info", "warning", "error", "critical", "passive"]
    disable_tqdm: bool | None
    report_to: str | list[str] | None
    run_name: str | None
    project: str
    trackio_space_id: str | None
    trackio_bucket_id: str | None
    trackio_static_space_id: str | Literal[False] | None
    eval_strategy: Literal["no", "steps", "epoch"]
    eval_steps: float | None
    eval_delay: float
    per_device_eval_batch_size: int
    prediction_loss_only: bool
    eval_on_start: bool
    eval_do_concat_batches: bool
    eval_use_gather_object: bool
    eval_accumulation_steps: int | None
    include_for_metrics: list[str]
    batch_eval_metrics: bool
    save_only_model: bool
    save_strategy: Literal["no", "steps", "epoch", "best"]
    save_steps: float
    save_on_each_node: bool
    save_total_limit: int | None
    enable_jit_checkpoint: bool
    push_to_hub: bool
    hub_token: str | None
    hub_private_repo: bool | None
    hub_model_id: str | None
    hub_strategy: Literal["end"]
    hub_always_push: bool
    hub_revision: str | None
    load_best_model_at_end: bool
    metric_for_best_model: str | None
    greater_is_better: bool | None
    ignore_data_skip: bool
    restore_callback_states_from_checkpoint: bool
    full_determinism: bool
    seed: int
    data_seed: int | None
    use_cpu: bool
    accelerator_config: dict[str, Any] | str | None
    parallelism_config: object | None
    dataloader_drop_last: bool
    dataloader_num_workers: int
    dataloader_pin_memory: bool
    dataloader_persistent_workers: bool
    dataloader_prefetch_factor: int | None
    dataloader_multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None
    dataloader_in_order: bool
    remove_unused_columns: bool
    label_names: list[str] | None
    train_sampling_strategy: Literal["random", "sequential", "group_by_length"]
    length_column_name: str
    ddp_find_unused_parameters: bool | None
    ddp_bucket_cap_mb: int | None
    ddp_broadcast_buffers: bool | None
    ddp_static_graph: bool | None
    ddp_backend: Literal["nccl", "gloo", "mpi", "xccl", "hccl", "cncl", "mccl"] | None
    ddp_timeout: int
    fsdp: str | bool | None
    fsdp_config: dict[str, Any] | str | None
    deepspeed: dict[str, Any] | str | None
    debug: str | list[str]
    skip_memory_metrics: bool
    do_train: bool
    do_eval: bool
    do_predict: bool
    resume_from_checkpoint: str | None
    local_rank: int
    replay_ratio: float
    replay_weight: float
    replay_from: Literal["earlier", "current"]
    ema_momentum: float
    ema_momentum_end: float
    predictor_head: Literal["none", "linear", "mlp"]
    control: Literal["none", "shuffled", "random"]
    lbd: float
    lbd_warmup_ratio: float
    lbd_schedule: Literal["constant", "cosine"]
    jepa_until: float
    jepa_loss: Literal["cosine", "l2", "mse", "smooth_l1", "infonce"] | str | None
    infonce_temperature: float
    infonce_symmetric: bool
    regularizer: Literal["none", "vicreg", "sigreg"]
    regularizer_weight: float | None
    vicreg_covariance: float
    sigreg_directions: int
    loss_scale: Literal["mean", "reference"]
    same_flop: bool
    mixing_weights: list[float] | None
    stopping_strategy: Literal["first_exhausted", "all_exhausted"]
    streaming: bool
    shuffle_buffer: int
    dataset_num_proc: int
    track_flop: bool
    token_metrics: bool
    merge_lora: bool | None
    terminate_on_nan: bool
    keep_predictors: bool
    overwrite_output_dir: bool
    gamma: float


class DemoKeywords(TypedDict, total=False):
    """Options of `stepjepa.demo`."""

    output_dir: str
    overwrite_output_dir: bool
    seed: int
    task: Literal["arithmetic", "path_star"]
    train_rows: int | None
    test_rows: int
    overrides: list[str] | None


class PrepareKeywords(TypedDict, total=False):
    """Options of `stepjepa.prepare`."""

    file: str | None
    format: Literal["auto", "gsm8k", "teacher", "columns"]
    question_column: str | None
    response_column: str | None
    ground_truth_column: str | None
    dataset_split: str
    step_splitter: Literal["separator", "numbered", "lines", "sentence", "regex", "auto"]
    step_separator: str
    min_step_length: int | None
    drop_short: bool
    keep_thinking: bool
    system_prompt: str | None
    min_steps: int
    require_correct: bool
    dedup: bool
    strict_data: bool
    output_file: str | None
    valid_ratio: float
    num_proc: int
    overwrite: bool


class CheckKeywords(ExampleKeywords, total=False):
    """Options of `stepjepa.check`."""

    dataset_split: str
    eval_split: str
    num_proc: int


class InspectKeywords(ExampleKeywords, total=False):
    """Options of `stepjepa.inspect`."""

    seed: int
    png: str | None
    html: str | None
    overwrite: bool


class StudyKeywords(TypedDict, total=False):
    """Options of `stepjepa.study`."""

    output_dir: str | None
    seeds: list[int] | None
    jobs: int | None
    executor: Literal["processes", "slurm", "local", "ray"] | None
    stop_after: float | None
    records: str | None
    overrides: list[str] | None
    mini: bool
    dry_run: bool
    recipes: bool
    overwrite_output_dir: bool


class GenerateKeywords(TypedDict, total=False):
    """Options of `stepjepa.generate`."""

    model_name: str | None
    dtype: Literal["float32", "bfloat16", "float16", "auto"]
    attn_implementation: str | None
    trust_remote_code: bool
    source_column: str | None
    target_column: str | None
    choice_column: str | None
    plain: bool
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    prompt_from: Literal["training", "template"] | None
    backend: Literal["transformers", "vllm", "openai"]
    tensor_parallel_size: int
    vllm_options: dict[str, Any] | None
    batch_size: int | None
    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int
    draft_tokens: int | None
    file: str | None
    dataset_split: str
    max_examples: int | None
    system_prompt: str | None
    prompt_template: str
    attempts: int
    accept_truncated: bool
    base_url: str | None
    api_key_env: str | None
    concurrency: int
    extra_body: dict[str, Any] | None
    output_file: str | None
    overwrite: bool


class EvaluateKeywords(TypedDict, total=False):
    """Options of `stepjepa.evaluate`."""

    model_name: str | None
    dtype: Literal["float32", "bfloat16", "float16", "auto"]
    attn_implementation: str | None
    trust_remote_code: bool
    source_column: str | None
    target_column: str | None
    choice_column: str | None
    plain: bool
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    prompt_from: Literal["training", "template"] | None
    backend: Literal["transformers", "vllm"]
    tensor_parallel_size: int
    vllm_options: dict[str, Any] | None
    batch_size: int | None
    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int
    draft_tokens: int | None
    no_lora: bool
    test_file: str | None
    dataset_split: str
    max_examples: int | None
    system_prompt: str | None
    use_test_prompts: bool
    metric: list[str] | None
    metric_options: dict[str, Any] | None
    max_length: int | None
    output_dir: str | None
    output_file: str | None
    overwrite_output_dir: bool
    analyze: list[str] | None
    show: int
    harness: list[str] | None
    harness_include: str | None
    harness_fewshot: int | None


class AnalyzeKeywords(TypedDict, total=False):
    """Options of `stepjepa.analyze`."""

    file: str | None
    models: list[str] | None
    max_examples: int | None
    layers: list[int] | None
    dataset_split: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    attn_implementation: str | None
    trust_remote_code: bool
    batch_size: int
    predictors: int | None
    prediction_horizon: int | None
    output_dir: str | None
    overwrite_output_dir: bool
    jepa_target_column: str | None
    step_splitter: Literal["auto", "separator", "lines", "numbered", "sentence", "regex", "list"]
    step_separator: str
    steps_column: str
    step_pairs: Literal["first", "all", "random", "plan"]
    horizon: int
    multi_horizon: list[int] | None
    views: Literal["in_context", "standalone"] | None
    front_pred: bool
    reverse_pred: bool
    split_ratio: float
    source_column: str | None
    target_column: str | None
    choice_column: str | None
    plain: bool
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    labels: Literal["assistant", "all", "reference"] | None
    max_length: int
    train_on: Literal["all", "last"]
    drop_longer: bool
    system_prompt: str | None
    strict_data: bool
    objective: Literal["llm_jepa", "step_jepa", "split", "steps_to_answer"] | str
    objective_options: dict[str, Any] | None
    last_token: int | None
    readout: Literal["last", "mean"]


class ExportKeywords(TypedDict, total=False):
    """Options of `stepjepa.export`."""

    base_model: str | None
    trust_remote_code: bool
    merge_lora: bool | None
    keep_predictors: bool
    overwrite_output_dir: bool


class DoctorKeywords(TypedDict, total=False):
    """Options of `stepjepa.doctor`."""

    model_name: str
    train_file: str | None


class ReportKeywords(TypedDict, total=False):
    """Options of `stepjepa.report`."""

    folders: list[str] | None
    output_file: str | None
    overwrite: bool
    max_predictions: int


class EncoderKeywords(ExampleKeywords, total=False):
    """Options of `stepjepa.parts.Encoder`."""

    seed: int
    ema_momentum: float
    ema_momentum_end: float
    predictor_head: Literal["none", "linear", "mlp"]
    control: Literal["none", "shuffled", "random"]
    lbd: float
    lbd_warmup_ratio: float
    lbd_schedule: Literal["constant", "cosine"]
    jepa_until: float
    jepa_loss: Literal["cosine", "l2", "mse", "smooth_l1", "infonce"] | str | None
    infonce_temperature: float
    infonce_symmetric: bool
    regularizer: Literal["none", "vicreg", "sigreg"]
    regularizer_weight: float | None
    vicreg_covariance: float
    sigreg_directions: int
    dataset_num_proc: int
    gamma: float
