"""stepjepa prepare INPUT

Turn raw questions and answers (GSM8K, generated responses, lines of text, any columns) into chat rows with steps, which
stepjepa train reads.

example: stepjepa prepare gsm8k_train.jsonl --output_file train.jsonl --valid_ratio 0.05
"""

from __future__ import annotations

from stepjepa.api import prepare
from stepjepa.cli import needed_file
from stepjepa.config.parser import StrictParser
from stepjepa.data.prepare import PrepareOptions
from stepjepa.utils.terminal import print_text


def run(argv: list[str]) -> int:
    """Prepare a file; exit status 0 where rows were written."""
    values = StrictParser((PrepareOptions,), __doc__, positional=("file",)).values(argv)
    needed_file(values.get("file"), "prepare")
    print_text(str(prepare(**values)))
    return 0
