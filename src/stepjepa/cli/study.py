"""stepjepa study FILE

Train the arms of a study over paired seeds, with shuffled and random targets as controls, at equal examples and at
equal compute; choose hyper-parameters on the validation split, score the test split once, and say what is established.
Started again, a study resumes where it stopped.

example: stepjepa study study.yaml --jobs 2; docs/study.md describes the file
"""

from __future__ import annotations

from stepjepa.api import study
from stepjepa.config.parser import StrictParser
from stepjepa.study.spec import StudyOptions
from stepjepa.utils.terminal import ending, print_text
from stepjepa.utils.text import folded


def run(argv: list[str]) -> int:
    """Run a study. Exit status 0, or 1 where runs are missing in the end."""
    values = StrictParser((StudyOptions,), __doc__, positional=("file",)).values(argv)
    with ending("study", lambda: "every stage that is done is kept"):
        result = study(**values)
    print_text("\n".join(folded(result.lines)) if values.get("recipes") else str(result))
    return 1 if result.failed else 0
