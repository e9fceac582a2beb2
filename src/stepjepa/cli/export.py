"""stepjepa export CHECKPOINT OUT

Write a checkpoint as the final model of its run: plain Hugging Face form, vocabulary and tokenizer as they came, LoRA
merged or as an adapter, the predictors in predictors.safetensors next to it.

example: stepjepa export runs/step_jepa/checkpoint-500 exported --merge_lora true
"""

from __future__ import annotations

from stepjepa.api import export
from stepjepa.config.option import Names
from stepjepa.config.parser import StrictParser
from stepjepa.errors import ConfigError
from stepjepa.modeling.options import ExportOptions
from stepjepa.utils.terminal import print_text


def run(argv: list[str]) -> int:
    """Export a checkpoint. Exit status 0."""
    positional = [Names(ExportOptions).checkpoint, Names(ExportOptions).output_dir]
    values = StrictParser((ExportOptions,), __doc__, positional=positional).values(argv)
    checkpoint, output = (values.pop(name, None) for name in positional)
    if not checkpoint or not output:
        raise ConfigError("the checkpoint or the folder to write is missing; write: stepjepa export CHECKPOINT OUT")

    from transformers.utils.logging import disable_progress_bar

    from stepjepa.analysis.models import quiet

    disable_progress_bar()
    with quiet():
        written = export(checkpoint, output, **values)
    print_text(str(written))
    return 0
