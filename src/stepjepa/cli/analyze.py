"""stepjepa analyze FILE --models RUN_A RUN_B

Where are source and target views? Hidden states of both views in one or more models, as training reads them; matched
against shuffled pairs, retrieval, ranks, by layer and step; signs of collapse. The options of training mean
what they mean for stepjepa train. docs/geometry.md explains the numbers.

example: stepjepa analyze test.jsonl --models runs/regular runs/llm_jepa --objective llm_jepa
"""

from __future__ import annotations

from stepjepa.analysis.options import AnalyzeOptions
from stepjepa.api import analyze
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.utils.terminal import print_text


def run(argv: list[str]) -> int:
    """Analyze; exit status 0, also where there is collapse."""
    aliases = published(AnalyzeOptions)
    values = StrictParser((AnalyzeOptions,), __doc__, aliases=aliases, positional=("file",)).values(argv)
    print_text(str(analyze(**values)))
    return 0
