"""Train a tiny model of every causal model type of the installed transformers for one batch, and write the list of how each
is trained into docs/exactness.md: `python tools/families.py`."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "exactness.md"
HEADING = "## Model families"
sys.path.insert(0, str(ROOT / "tests"))
os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def rows() -> list[str]:
    """The table: one line a family."""
    from support.families import NOT_BUILT, family_names
    from support.sweep import PREDICTOR_COUNTS, outcome

    handler = _Lines()
    logging.getLogger("stepjepa").addHandler(handler)
    table = []
    for family in family_names():
        plain, branch = (outcome(family, count, handler.lines) for count in PREDICTOR_COUNTS)
        reason = plain.reason.rstrip(".")
        if branch.forward != plain.forward:
            reason = f"{reason and reason + '; '}with predictor tokens {branch.forward}: {branch.reason}"
        table.append(f"| `{family}` | {plain.kind} | {plain.forward} | {' '.join(reason.split()).replace('|', '/')} |")
    return [*table, "", "Not built: " + "; ".join(f"{name} ({why})" for name, why in sorted(NOT_BUILT.items())) + "."]


def section(table: list[str]) -> str:
    """The section of the page."""
    import transformers

    count = {kind: sum(f" | {kind} | " in line for line in table) for kind in ("packed", "two_pass", "refused")}
    return "\n".join(
        [
            HEADING,
            "",
            "A tiny random model of every causal model type of the installed transformers, in one row and several, longer",
            "than any window, K = 0 and 2: the LM loss is that of the model's own logits and the states are those of",
            "separate passes, or the model is refused. Written by `make families`, checked by",
            "`tests/parity/test_families.py`.",
            "",
            f"transformers {transformers.__version__}: {count['packed']} packed, {count['two_pass']} two_pass, "
            f"{count['refused']} refused.",
            "",
            "| family | class | forward | why it is not packed |",
            "|---|---|---|---|",
            *table,
            "",
        ]
    )


def main() -> None:
    """Replace the last section of the page."""
    import transformers

    transformers.logging.set_verbosity_error()
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.split(HEADING)[0].rstrip() + "\n\n" + section(rows()), encoding="utf-8")


if __name__ == "__main__":
    main()
