"""stepjepa prepare INPUT

Turn raw questions and answers (GSM8K, generated responses, lines of text, any columns) into chat rows with steps, which
stepjepa train reads.

example: stepjepa prepare gsm8k_train.jsonl --output_file train.jsonl --valid_ratio 0.05
"""

from __future__ import annotations

from stepjepa.api import prepare
from stepjepa.cli.check import needed_file
from stepjepa.config.parser import StrictParser
from stepjepa.data.prepare import PrepareOptions
from stepjepa.errors import ConfigError
from stepjepa.utils.terminal import print_text

GONE = {
    "resume": "there is no more interrupted run to resume: a file is written in one go; run the command again",
    "shards": "the training rows are written to one file; to cut it, run: split --number l/4 train.jsonl",
}


def run(argv: list[str]) -> int:
    """Prepare a file; exit status 0 where rows were written."""
    for word in argv:
        name = word.partition("=")[0].lstrip("-").replace("-", "_")
        if word.startswith("--") and name in GONE:
            raise ConfigError(f"--{name}: {GONE[name]}")
    values = StrictParser((PrepareOptions,), __doc__, positional=("file",)).values(argv)
    needed_file(values.get("file"), "prepare")
    print_text(str(prepare(**values)))
    return 0
