"""Options of ``stepjepa generate`` and of every command that generates answers, without torch so that ``--help`` is fast."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from stepjepa.config.option import Names, Needs, check_fields, option, options_of
from stepjepa.data.options import SYSTEM_PROMPT, ColumnOptions, PromptOptions, TemplateOptions
from stepjepa.errors import ConfigError
from stepjepa.modeling.options import LoadingOptions

BATCH_SIZE = 16
# vLLM forms its own batches; this is the number of replies that are stored together.
VLLM_BATCH_SIZE = 256
# The placeholder in --prompt_template.
QUESTION = "{question}"
# Groups of the options in --help.
_DATA = "data"
_MODEL = "model"
SAMPLING = "sampling"
_LOCAL = "local"
_ENDPOINT = "endpoint"
_OUTPUT = "output"
_VLLM: Needs = {"backend": ("vllm",)}


@dataclass
class GeneratorOptions(PromptOptions, TemplateOptions, LoadingOptions):
    """The generator and its settings, for every command that generates answers."""

    backend: Literal["transformers", "vllm", "openai"] = option(
        "transformers",
        "What runs the model: transformers or vLLM on this machine, or any OpenAI-compatible chat-completions server.",
        _MODEL,
    )
    tensor_parallel_size: int = option(
        1, "GPUs that share the model.", _LOCAL, at_least=1, needs=_VLLM, resume=True
    )
    vllm_options: dict[str, Any] | None = option(
        None,
        "Further arguments of vllm.LLM, such as '{\"max_model_len\": 4096}'.",
        _LOCAL,
        needs=_VLLM,
        resume=True,
    )
    batch_size: int | None = option(
        None,
        f"Questions per batch. Default: {BATCH_SIZE} with transformers; {VLLM_BATCH_SIZE} with vllm.",
        _LOCAL,
        at_least=1,
    )
    max_new_tokens: int = option(512, "Longest response in tokens.", SAMPLING, at_least=1)
    temperature: float = option(
        0.0,
        "0 takes the likeliest token; above 0 samples at this temperature.",
        SAMPLING,
        at_least=0,
    )
    top_p: float = option(
        1.0,
        "Share of the probability mass to sample from.",
        SAMPLING,
        above=0,
        at_most=1,
        needs={"temperature": True},
    )
    seed: int = option(
        42,
        "Seed for sampling, combined with the row's index.",
        SAMPLING,
        needs={"temperature": True},
    )
    draft_tokens: int | None = option(
        None,
        "Draft this many tokens at a time with the heads of next_latent or multi_token (which has one head per token), and "
        "keep those that the model itself would generate: the same greedy text in fewer passes of the model.",
        SAMPLING,
        at_least=1,
    )

    def check(self) -> None:
        """As `Topic.check`; raises ConfigError."""
        check_fields(self)
        super().check()
        if self.draft_tokens is not None and (self.temperature or self.backend != "transformers"):
            raise ConfigError(
                f"--{_NAME.draft_tokens} drafts only greedy answers with transformers; set --{_NAME.temperature} 0 and "
                f"--{_NAME.backend} transformers, or leave it out"
            )

    @property
    def questions_per_batch(self) -> int:
        """`batch_size`, or the default of the backend."""
        return self.batch_size or (VLLM_BATCH_SIZE if self.backend == "vllm" else BATCH_SIZE)

    def deciding(self) -> dict[str, Any]:
        """The options that the answers depend on; work resumes only if they are equal."""
        # The column options decide the questions, which the fingerprint of the data already identifies.
        excluded = options_of(ColumnOptions)
        # `resume` marks options that may change between a start and its resumption.
        deciding = (known.name for known in options_of(type(self)).values() if not known.resume)
        return {name: getattr(self, name) for name in deciding if name not in excluded}


@dataclass
class GenerateOptions(GeneratorOptions, ColumnOptions):
    """The questions, the model, the number of attempts, and the output."""

    file: str | None = option(
        None,
        "The questions: JSONL, Parquet, CSV or a Hub data set; usually written without --file.",
        _DATA,
        resume=True,
    )
    dataset_split: str = option("train", "Split of a Hub data set.", _DATA, resume=True)
    max_examples: int | None = option(None, "Ask only the first N questions.", _DATA, at_least=1)

    model_name: str | None = option(
        None,
        "The model that answers: a Hub id or a local folder; with --backend openai the server's name for it.",
        _MODEL,
    )
    system_prompt: str | None = option(SYSTEM_PROMPT, "System message; none leaves it out.", _MODEL)
    prompt_template: str = option(
        QUESTION, "The user's message; {question} is replaced by the question.", _MODEL
    )

    attempts: int = option(
        4,
        "Attempts per question; the first right answer is kept. At temperature 0 there is one.",
        SAMPLING,
        at_least=1,
    )
    temperature: float = option(0.7, "Sampling temperature; 0 is greedy.", SAMPLING, at_least=0)
    top_p: float = option(
        0.95, "Share of the probability mass to sample from.", SAMPLING, above=0, at_most=1
    )
    max_new_tokens: int = option(1024, "Longest response in tokens.", SAMPLING, at_least=1)
    accept_truncated: bool = option(
        False,
        "Also keep responses cut off at max_new_tokens if their final answer is right.",
        SAMPLING,
    )

    base_url: str | None = option(
        None, "The server's address, such as http://localhost:8000/v1.", _ENDPOINT, resume=True
    )
    api_key_env: str | None = option(
        None, "NAME of the environment variable that contains the key.", _ENDPOINT, resume=True
    )
    concurrency: int = option(8, "Number of parallel requests.", _ENDPOINT, at_least=1, resume=True)
    extra_body: dict[str, Any] | None = option(
        None,
        'Further fields of a request; null removes a field: \'{"max_tokens": null, "max_completion_tokens": 4096}\'.',
        _ENDPOINT,
    )

    output_file: str | None = option(
        None, "JSONL file for the solved questions.", _OUTPUT, resume=True
    )
    overwrite: bool = option(
        False,
        "Replace an existing output.",
        _OUTPUT,
        aliases=("overwrite_output_dir",),
        resume=True,
    )

    def check(self) -> None:
        """As `Topic.check`; raises ConfigError."""
        if not self.file:
            raise ConfigError("no data file given; write: stepjepa generate FILE")
        for name in (_NAME.model_name, _NAME.output_file):
            if not getattr(self, name):
                raise ConfigError(f"--{name} must be given")
        super().check()
        ColumnOptions.check(self)
        if QUESTION not in self.prompt_template:
            raise ConfigError(
                f"{_NAME.prompt_template} is {self.prompt_template!r}; it must contain {QUESTION}"
            )
        if Path(str(self.output_file)).suffix != ".jsonl":
            raise ConfigError(
                f"--{_NAME.output_file} {self.output_file}: the name must end in .jsonl"
            )
        self._check_endpoint()

    def _check_endpoint(self) -> None:
        address, needed = f"--{_NAME.base_url}", f"--{_NAME.backend} openai"
        if self.backend != "openai":
            if self.base_url is not None:
                raise ConfigError(f"{address} is for {needed}, but the backend is {self.backend}")
            return
        if not _is_address(self.base_url or ""):
            # The address may contain a key, so the message does not repeat it.
            raise ConfigError(
                f"{needed} needs {address}, which takes only an address, such as http://localhost:8000/v1; pass a key with "
                f"--{_NAME.api_key_env}"
            )
        self.api_key()

    def api_key(self) -> str | None:
        """The key of the endpoint, from the environment.

        Raises:
            ConfigError: the variable is not set, or does not contain a key.
        """
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not (key and key.isascii() and key.isprintable()):
            # The user may have written the key itself, so the message does not repeat it.
            raise ConfigError(
                f"--{_NAME.api_key_env} takes the NAME of an environment variable, and no variable of that name has a key"
            )
        return key


_NAME = Names(GenerateOptions)
# The flag that replaces an earlier output; the alias exists in every command that stores answers.
OVERWRITE = f"--{options_of(GenerateOptions)[_NAME.overwrite].aliases[0]}"


def _is_address(text: str) -> bool:
    """Whether a text is a server's address without a user, a query or a fragment, which may hold a key."""
    try:
        url = urlsplit(text)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        return usable and not (url.username or url.password or url.query or url.fragment)
    # A port that is not a number up to 65535, or a broken IPv6 address.
    except ValueError:
        return False
