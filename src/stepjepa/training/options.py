"""The method's own options, apart from `TrainingArguments` so that ``--help`` need not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from stepjepa.data.fields import check_split_name, option
from stepjepa.data.steps import STEPS_COLUMN
from stepjepa.errors import ConfigError

_METHOD, _LOSS, _VIEWS, _TUBE, _DATA, _OUTPUT = "method", "loss", "views", "semantic tube", "data", "output"


@dataclass
class JEPAOptions:
    """Options of the objective, of the views and of what is written. Checked when a `JEPAConfig` is made."""

    objective: Literal["regular", "llm_jepa", "step_jepa", "split", "semantic_tube"] = option(
        "llm_jepa",
        "Which pairs are made: none (regular), user message -> answer (llm_jepa), step -> later step (step_jepa), first "
        "part of the tokens -> the rest (split), displacements of the chat's own states (semantic_tube).",
        _METHOD,
    )
    predictors: int | None = option(
        None,
        "K, learned predictor tokens behind a source view. Default: 2 for step_jepa, 1 for split, else 0.",
        _METHOD,
    )
    predictor_order: Literal["ascending", "descending"] | None = option(
        None,
        "Order of the predictor tokens. Default: descending for llm_jepa, which reads <|predictor_1|> last as the published "
        "code does; else ascending.",
        _METHOD,
    )
    same_predictor: bool = option(
        False, "One learned predictor token, repeated K times (the nanoGPT form), instead of K different ones.", _METHOD
    )
    predictor_head: Literal["none", "linear", "mlp"] = option(
        "none", "A network on the source's state, trained with the model and saved beside it.", _METHOD
    )
    target_grad: bool | None = option(
        None, "Gradient into the target views too. Default: true; false for split and with an EMA encoder.", _METHOD
    )
    target_encoder: Literal["self", "ema"] = option(
        "self", "What encodes the targets: the model itself, or a moving average of its trained weights.", _METHOD
    )
    ema_momentum: float = option(0.99, "Momentum of target_encoder=ema at the start.", _METHOD)
    ema_momentum_end: float = option(1.0, "Momentum at the end; half a cosine leads there.", _METHOD)
    control: Literal["none", "shuffled", "random"] = option(
        "none",
        "Control arm: each source gets the target of another example of the batch (shuffled), or one fixed random vector "
        "(random).",
        _METHOD,
    )
    jepa_ratio: float = option(
        1.0,
        "Share of examples whose pairs are kept, drawn by seed, epoch and row; the others train as plain LM.",
        _METHOD,
    )
    forward: Literal["auto", "packed", "two_pass", "inline"] = option(
        "auto",
        "How the views are computed; auto is packed where the model takes the mask, else two_pass. inline puts predictors "
        "and isolated view into the chat itself, which changes the LM loss.",
        _METHOD,
    )
    lbd: float = option(0.1, "lambda, weight of the JEPA loss. 0 trains exactly like 'regular'.", _LOSS)
    gamma: float = option(1.0, "Weight of the LM loss.", _LOSS)
    lbd_warmup_ratio: float = option(0.0, "Share of the run in which lambda rises from 0 to lbd.", _LOSS)
    lbd_schedule: Literal["constant", "cosine"] = option(
        "constant", "lambda after its warm-up: constant, or half a cosine down to 0.", _LOSS
    )
    jepa_loss: Literal["cosine", "l2", "mse", "smooth_l1", "infonce"] = option(
        "cosine", "Distance between the predicted and the target view.", _LOSS
    )
    infonce_temperature: float = option(0.07, "Temperature of jepa_loss=infonce.", _LOSS)
    infonce_symmetric: bool = option(False, "InfoNCE both ways: targets must find their sources as well.", _LOSS)
    regularizer: Literal["none", "vicreg", "sigreg"] = option(
        "none", "Added to the JEPA loss against collapse: variance and covariance (vicreg), or SIGReg.", _LOSS
    )
    regularizer_weight: float | None = option(
        None, "Weight of the regularizer beside the distance. Default: 1 for vicreg, 0.05 for sigreg.", _LOSS
    )
    vicreg_covariance: float = option(
        0.04, "Weight of VICReg's covariance term beside its variance term (1 to 25 in the paper).", _LOSS
    )
    sigreg_directions: int = option(256, "Random directions of SIGReg, drawn anew every step.", _LOSS)
    loss_scale: Literal["mean", "reference"] = option(
        "mean",
        "mean: over the whole optimizer step. reference: over each micro-batch and not divided by their number, the "
        "published code's mistake, for comparison only.",
        _LOSS,
    )
    step_pairs: Literal["first", "all", "random"] = option(
        "first", "step_jepa: the first step only, every step, or one drawn anew for every example and epoch.", _VIEWS
    )
    horizon: int = option(1, "step_jepa: step i predicts step i + horizon.", _VIEWS)
    multi_horizon: list[int] | None = option(None, "step_jepa: several horizons at once, as in 1 2 3.", _VIEWS)
    step_splitter: Literal[
        "auto", "separator", "lines", "numbered", "connectives", "headings", "sentence", "regex", "list"
    ] = option(
        "auto",
        "How steps are found in an answer; auto takes the steps that a row holds, and for other rows the one of separator, "
        "numbered, lines that serves most of them, or what serves each answer where none does. list: every row holds its "
        "steps.",
        _VIEWS,
    )
    step_separator: str = option(
        "\\n\\n",
        "The string between steps for step_splitter=separator; the pattern that opens a step for regex.",
        _VIEWS,
    )
    steps_column: str = option(
        STEPS_COLUMN, "Column with the list of steps of the (last) answer, for auto and list.", _VIEWS
    )
    views: Literal["in_context", "standalone"] | None = option(
        None,
        "llm_jepa: the source on the chat and a copy of the answer (in_context, the default), or each message rendered "
        "alone by the template, as published (standalone; the default with front_pred or reverse_pred).",
        _VIEWS,
    )
    front_pred: bool = option(False, "standalone: predictors in front of the source's content.", _VIEWS)
    reverse_pred: bool = option(False, "standalone: the answer predicts the question.", _VIEWS)
    last_token: int | None = option(
        None,
        "Readout by offset from a view's end (-1, -2, ...), as the published code does. Default: found by name.",
        _VIEWS,
        secret=False,
    )
    split_ratio: float = option(0.5, "split: share of the tokens that is the source.", _VIEWS)
    source_column: str | None = option(None, "Column with the source text, for data sets of pairs.", _VIEWS)
    target_column: str | None = option(None, "Column with the target text.", _VIEWS)
    choice_column: str | None = option(
        None, "Column with the index of the right text, where target_column holds a list (multiple choice).", _VIEWS
    )
    tube_mode: Literal["span", "three_index", "e2e", "mean", "curvature"] = option(
        "span", "span is the published code's form, three_index the paper's formula.", _TUBE
    )
    tube_sampler: Literal["default", "draw_both", "uniform", "zero"] = option("default", "How spans are drawn.", _TUBE)
    tube_max_length: int | None = option(None, "Longest span in content tokens.", _TUBE)
    tube_times: int = option(1, "Spans drawn for an example.", _TUBE)
    tube_length_adjustment: Literal["none", "cosine_like", "jaccard_like"] = option(
        "none", "Weight of a span by its length and that of the rest.", _TUBE
    )
    tube_content: Literal["messages", "with_markup", "whole"] = option(
        "messages", "What spans lie in: question and answer, both and the markup between, or the whole chat.", _TUBE
    )
    tube_layer: int | None = option(None, "Hidden states behind this layer (0: embeddings). Default: the last.", _TUBE)
    labels: Literal["assistant", "all", "reference"] | None = option(
        None,
        "Tokens of the LM loss: answers and their end of turn (assistant, the default), all (default of split and plain "
        "text), or what the published code really trains on (reference).",
        _DATA,
    )
    plain: bool = option(False, "No chat template: the messages' contents, a line break between them.", _DATA)
    max_length: int = option(1024, "Longest chat in tokens; longer ones are cut on the right and counted.", _DATA)
    max_row_length: int | None = option(None, "Longest packed row in tokens. Default: chosen for every batch.", _DATA)
    system_prompt: str | None = option(None, "System message for chats that have none.", _DATA)
    chat_template: str | None = option(
        None, "File with a Jinja chat template to use instead of the tokenizer's.", _DATA
    )
    chat_template_kwargs: dict[str, Any] | None = option(
        None, "What the chat template takes beside the messages, as in '{\"enable_thinking\": false}'.", _DATA
    )
    mixing_weights: list[float] | None = option(
        None, "One weight for every train_file: examples are drawn in this proportion. Default: each file whole.", _DATA
    )
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] = option(
        "all_exhausted",
        "mixing_weights: an epoch ends when the first file was drawn whole, or when the last one was (the others are drawn "
        "again meanwhile).",
        _DATA,
    )
    streaming: bool = option(
        False, "Read the training data as it is needed instead of once before; needs max_steps.", _DATA
    )
    shuffle_buffer: int = option(10_000, "streaming: examples that are read ahead and shuffled together.", _DATA)
    dataset_num_proc: int = option(1, "Processes that tokenise. More than one pay off from some 50,000 rows on.", _DATA)
    data_cache: str | None = option(
        None,
        "Folder that keeps the tokenised examples of files, for the next run with the same data and options.",
        _DATA,
    )
    strict_data: bool = option(False, "Stop at the first row that cannot be used, instead of counting it.", _DATA)
    track_flop: bool = option(False, "Count the floating point operations of every step, by kind.", _OUTPUT)
    same_flop: bool = option(
        False, "Take fewer steps, so that the run costs the operations of a regular one of the given length.", _OUTPUT
    )
    merge_lora: bool | None = option(
        None,
        "Write LoRA merged into the model (true) or as an adapter (false). Default: an adapter, but merged where the "
        "base model was initialised in this run and exists nowhere else.",
        _OUTPUT,
    )
    terminate_on_nan: bool = option(
        True, "Stop at the first step whose loss or gradient norm is NaN or infinite. false trains on.", _OUTPUT
    )
    keep_predictors: bool = option(
        False, "Write the predictor tokens into the final vocabulary and tokenizer.", _OUTPUT
    )
    overwrite_output_dir: bool = option(False, "Remove what an earlier run left in output_dir and start anew.", _OUTPUT)

    def check(self) -> None:
        """Check the values and fill in defaults that depend on others.

        Raises:
            ConfigError: a value that cannot be used; the message names the option.
        """
        from stepjepa.training.checks import check_options

        check_options(self)

    @property
    def uses_pairs(self) -> bool:
        """Whether training computes a JEPA loss at all."""
        return self.objective != "regular" and self.lbd > 0

    @property
    def horizons(self) -> tuple[int, ...]:
        """All values of h in step i -> step i + h."""
        return tuple(self.multi_horizon) if self.multi_horizon else (self.horizon,)

    @property
    def separate_targets(self) -> bool:
        """Whether the targets go through a forward pass of their own, without a graph."""
        return self.uses_pairs and self.objective != "semantic_tube" and not self.target_grad


@dataclass
class RunOptions:
    """What ``stepjepa train`` reads and which model it trains."""

    train_file: list[str] | None = option(
        None, "JSONL files (or Parquet, CSV, Hub data sets) to train on; several are trained on together.", "run"
    )
    eval_file: str | None = option(None, "File or data set for the evaluation losses.", "run")
    dataset_split: str = option("train", "Split of a Hub data set given as train_file.", "run")
    eval_split: str = option("test", "Split of a Hub data set given as eval_file.", "run")
    eval_metrics: list[str] | None = option(
        None,
        "Metrics of answers that are generated at every evaluation (exact, gsm8k, ...): eval_exact, ... in the log, also "
        "for --metric_for_best_model.",
        "run",
    )
    eval_samples: int = option(100, "eval_metrics: questions of eval_file that are answered.", "run")
    eval_max_new_tokens: int = option(256, "eval_metrics: longest answer in tokens.", "run")
    debug_level: int = option(
        0,
        "How much is said: from 5 the losses of every step, from 7 the first row as stepjepa inspect shows it.",
        "run",
    )
    additive_mask: bool = option(
        False, "A flag of the published script; the packed forward has taken its place.", "run"
    )
    model_name: str = option("mini", "Hub id, local folder, or a built-in preset (tiny, mini).", "run")
    pretrain: bool = option(False, "Start from random weights of the model's configuration.", "run")
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option(
        "float32", "Dtype of the weights. Keep float32 and use --bf16 for speed.", "run"
    )
    attn_implementation: Literal["sdpa", "eager", "flex_attention"] | None = option(
        None, "Attention kernel. Default: the model's own (sdpa for most).", "run"
    )
    trust_remote_code: bool = option(False, "Run model code that comes with the weights.", "run")
    lora: bool = option(False, "Train a LoRA adapter (and the predictor tokens) instead of all weights.", "lora")
    lora_rank: int = option(16, "Rank of the adapter.", "lora")
    lora_alpha: int | None = option(None, "Scale of the adapter. Default: twice the rank.", "lora")
    lora_dropout: float = option(0.1, "Dropout on the adapter's input.", "lora")
    lora_target_modules: list[str] | None = option(
        None, "Names of the linear layers to adapt. Default: all but the head.", "lora"
    )

    def __post_init__(self) -> None:
        if isinstance(self.train_file, str):
            self.train_file = [self.train_file]
        check_split_name(self.eval_split, "eval_split")
        if self.lora_rank < 1:
            raise ConfigError(f"lora_rank is {self.lora_rank}; it must be at least 1")
        if self.lora_alpha is not None and self.lora_alpha < 1:
            raise ConfigError(f"lora_alpha is {self.lora_alpha}; it must be at least 1")
        if not 0 <= self.lora_dropout < 1:
            raise ConfigError(f"lora_dropout is {self.lora_dropout}; it must lie in [0, 1)")
