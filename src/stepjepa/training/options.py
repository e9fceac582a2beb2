"""The method's own options, apart from `TrainingArguments` so that ``--help`` need not load torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from stepjepa.errors import ConfigError


def option(default: Any, help: str, group: str, **metadata: Any) -> Any:
    """A dataclass field with a help text and the group it is shown in."""
    return field(default=default, metadata={"help": help, "group": group, **metadata})


_METHOD, _DATA, _OUTPUT = "method", "data", "output"


@dataclass
class JEPAOptions:
    """Options of the objective, of the views and of what is written. Checked when a `JEPAConfig` is made."""

    objective: Literal["regular", "llm_jepa", "step_jepa"] = option(
        "llm_jepa",
        "Which pairs are made: none (regular), user message -> answer (llm_jepa), step -> next step (step_jepa).",
        _METHOD,
    )
    predictors: int | None = option(
        None, "K, learned predictor tokens behind a source view. Default: 2 for step_jepa, else 0.", _METHOD
    )
    predictor_order: Literal["ascending", "descending"] = option(
        "ascending",
        "Order of the predictor tokens; 'descending' reads <|predictor_1|> last, as LLM-JEPA does.",
        _METHOD,
    )
    lbd: float = option(0.1, "lambda, weight of the JEPA loss. 0 trains exactly like 'regular'.", _METHOD)
    gamma: float = option(1.0, "Weight of the LM loss.", _METHOD)
    jepa_loss: Literal["cosine", "l2", "mse", "infonce"] = option(
        "cosine", "Distance between the predicted and the target view.", _METHOD
    )
    infonce_temperature: float = option(0.07, "Temperature of jepa_loss=infonce.", _METHOD)
    jepa_ratio: float = option(
        1.0,
        "Share of examples whose pairs are kept, drawn by seed, epoch and row; the others train as plain LM.",
        _METHOD,
    )
    step_pairs: Literal["first", "all"] = option(
        "first", "step_jepa: step 1 -> step 2 only, or every step -> its successor.", _METHOD
    )
    step_splitter: Literal["separator", "lines", "numbered"] = option(
        "separator", "How steps are found in an answer.", _METHOD
    )
    step_separator: str = option("\\n\\n", "The string between steps for step_splitter=separator.", _METHOD)
    last_token: int | None = option(
        None,
        "Readout by offset from a view's end (-1, -2, ...), as the published code does. Default: found by name.",
        _METHOD,
    )
    forward: Literal["auto", "packed", "two_pass"] = option(
        "auto",
        "How the views are computed; auto is packed where the model takes the mask, else two_pass.",
        _METHOD,
    )
    max_length: int = option(1024, "Longest chat in tokens; longer ones are cut on the right and counted.", _DATA)
    max_row_length: int | None = option(None, "Longest packed row in tokens. Default: chosen for every batch.", _DATA)
    system_prompt: str | None = option(None, "System message for chats that have none.", _DATA)
    chat_template: str | None = option(
        None, "File with a Jinja chat template to use instead of the tokenizer's.", _DATA
    )
    strict_data: bool = option(False, "Stop at the first row that cannot be used, instead of counting it.", _DATA)
    merge_lora: bool | None = option(
        None,
        "Write LoRA merged into the model (true) or as an adapter (false). Default: an adapter, but merged where the "
        "base model was initialised in this run and exists nowhere else.",
        _OUTPUT,
    )
    keep_predictors: bool = option(False, "Keep the predictor tokens in the final model and tokenizer.", _OUTPUT)
    overwrite_output_dir: bool = option(False, "Remove what an earlier run left in output_dir and start anew.", _OUTPUT)

    def check(self) -> None:
        """Check the values and fill in defaults that depend on others.

        Raises:
            ConfigError: a value that cannot be used; the message names the option.
        """
        if self.predictors is None:
            self.predictors = 2 if self.objective == "step_jepa" else 0
        choices = {
            "objective": ("regular", "llm_jepa", "step_jepa"),
            "predictor_order": ("ascending", "descending"),
            "jepa_loss": ("cosine", "l2", "mse", "infonce"),
            "step_pairs": ("first", "all"),
            "step_splitter": ("separator", "lines", "numbered"),
            "forward": ("auto", "packed", "two_pass"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; known: {', '.join(known)}")
        if self.predictors < 0:
            raise ConfigError(f"predictors is {self.predictors}; the number of predictor tokens cannot be negative")
        if self.predictors > 100:
            raise ConfigError(f"predictors is {self.predictors}; more than 100 predictor tokens is surely a mistake")
        if self.lbd < 0 or self.gamma < 0:
            raise ConfigError(f"lbd is {self.lbd} and gamma is {self.gamma}; loss weights cannot be negative")
        if self.jepa_ratio < 0:
            self.jepa_ratio = 1.0  # the published scripts write -1 for "off"
        if self.jepa_ratio > 1:
            raise ConfigError(f"jepa_ratio is {self.jepa_ratio}; it is a share of the examples, between 0 and 1")
        if self.infonce_temperature <= 0:
            raise ConfigError(f"infonce_temperature is {self.infonce_temperature}; it must be positive")
        if self.last_token is not None and self.last_token >= 0:
            raise ConfigError(f"last_token is {self.last_token}; it counts from the end: -1, -2, ...")
        if self.max_length < 2:
            raise ConfigError(f"max_length is {self.max_length}; a chat needs at least 2 tokens")

    @property
    def uses_pairs(self) -> bool:
        """Whether training computes a JEPA loss at all."""
        return self.objective != "regular" and self.lbd > 0


@dataclass
class RunOptions:
    """What ``stepjepa train`` reads and which model it trains."""

    train_file: str | None = option(None, "JSONL file (or Parquet, CSV, Hub data set) to train on.", "run")
    eval_file: str | None = option(None, "File or data set for the evaluation losses.", "run")
    dataset_split: str = option("train", "Split of a Hub data set given as train_file.", "run")
    eval_split: str = option("test", "Split of a Hub data set given as eval_file.", "run")
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
        if self.lora_rank < 1:
            raise ConfigError(f"lora_rank is {self.lora_rank}; it must be at least 1")
        if not 0 <= self.lora_dropout < 1:
            raise ConfigError(f"lora_dropout is {self.lora_dropout}; it must lie in [0, 1)")
