"""stepjepa prepare INPUT

Turn raw questions and answers (GSM8K, generated responses, any columns) into chat rows with steps, which
stepjepa train reads.

example: stepjepa prepare gsm8k_train.jsonl --output_file train.jsonl --valid_ratio 0.05
"""

from __future__ import annotations

from stepjepa.api import prepare
from stepjepa.cli import needed_file
from stepjepa.config.aliases import Alias, Answer
from stepjepa.config.option import Names
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.data.prepare import PrepareOptions
from stepjepa.utils.terminal import print_text

GONE = {
    "resume": "there is no more interrupted run to resume: a file is written in one go; run the command again",
    "shards": "the training rows are written to one file; to cut it, run: split --number l/4 train.jsonl",
}


def run(argv: list[str]) -> int:
    """Prepare a file; exit status 0 where rows were written."""
    gone: dict[str, Alias] = {name: Answer(Names(PrepareOptions).output_file, text) for name, text in GONE.items()}
    aliases = {**published(PrepareOptions), **gone}
    values = StrictParser((PrepareOptions,), __doc__, aliases=aliases, positional=("file",)).values(argv)
    needed_file(values.get("file"), "prepare")
    print_text(str(prepare(**values)))
    return 0
