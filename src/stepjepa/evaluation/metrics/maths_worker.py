"""Two LaTeX texts and whether math-verify finds them equal. Runs in a process of its own."""

from __future__ import annotations

import logging

from math_verify import LatexExtractionConfig, parse, verify  # here, so that a call's time limit does not include it

logging.disable(logging.CRITICAL)  # it warns that its own time limit is off


def same_value(gold: str, answer: str) -> tuple[bool, str]:
    """Whether the texts are equal, and what is read in the second."""
    read = [
        parse(text, [LatexExtractionConfig(boxed_match_priority=0)], parsing_timeout=None) for text in (gold, answer)
    ]
    return bool(verify(*read, timeout_seconds=None)), next((one for one in read[1] if isinstance(one, str)), "")
