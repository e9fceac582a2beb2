"""stepjepa generate FILE

Let a model solve the questions of a file, and keep the responses whose final answer is right. What is unsolved is asked
again, --attempts times in all.

example: stepjepa generate train.jsonl --model_name Qwen/Qwen2.5-7B-Instruct --output_file solved.jsonl
"""

from __future__ import annotations

from stepjepa.api import generate
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.generation.options import GenerateOptions
from stepjepa.utils.terminal import ending, print_text


def run(argv: list[str]) -> int:
    """Ask, store, sum up. Exit status 0, also where questions stay unsolved; 130 or 143 where a signal ends it."""
    values = StrictParser((GenerateOptions,), __doc__, aliases=published(GenerateOptions), positional=("file",)).values(
        argv
    )
    with ending("generate", lambda: "what is done is kept"):
        print_text(str(generate(**values)))
    return 0
