"""``stepjepa export``: a checkpoint as the final model that its run would have written."""

from __future__ import annotations

from dataclasses import dataclass

from stepjepa.api import export
from stepjepa.config.option import option
from stepjepa.config.parser import StrictParser
from stepjepa.errors import ConfigError
from stepjepa.utils.terminal import print_text


@dataclass
class ExportOptions:
    """What is exported, and how."""

    checkpoint: str | None = option(
        None, "A run's checkpoint, or the folder of an adapter; usually written without --checkpoint.", "input"
    )
    base_model: str | None = option(
        None, "Of an adapter, the folder or Hub id of its base. Default: the one that it names.", "input"
    )
    trust_remote_code: bool = option(False, "Run model code that comes with the weights.", "input")
    output_dir: str | None = option(None, "The folder to write; usually written without --output_dir.", "output")
    merge_lora: bool | None = option(
        None, "Write LoRA merged into the model (true) or as an adapter (false). Default: as its run does.", "output"
    )
    keep_predictors: bool = option(False, "Write the predictor tokens into the vocabulary and tokenizer.", "output")
    overwrite_output_dir: bool = option(False, "Write into a folder that is not empty.", "output")


def run(argv: list[str]) -> int:
    """Export a checkpoint. Exit status 0."""
    parser = StrictParser(
        (ExportOptions,),
        positional=("checkpoint", "output_dir"),
        prog="stepjepa export CHECKPOINT OUT",
        description="Write a checkpoint as the final model of its run: plain Hugging Face form, vocabulary and tokenizer as "
        "they came, LoRA merged or as an adapter, the predictors in predictors.safetensors next to it.",
        epilog="example: stepjepa export runs/step_jepa/checkpoint-500 exported --merge_lora true",
    )
    options: ExportOptions
    (options,) = parser.parse(argv)
    if not options.checkpoint or not options.output_dir:
        raise ConfigError("the checkpoint or the folder to write is missing; write: stepjepa export CHECKPOINT OUT")

    from transformers.utils.logging import disable_progress_bar

    from stepjepa.analysis.models import quiet

    disable_progress_bar()
    with quiet():
        written = export(**vars(options))
    print_text(str(written))
    return 0
