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


def families() -> list[tuple[str, str, str]]:
    """Name, forward and reason of every family."""
    from support.families import family_names
    from support.sweep import PREDICTOR_COUNTS, outcome

    handler = _Lines()
    logging.getLogger("stepjepa").addHandler(handler)
    listed = []
    for family in family_names():
        plain, branch = (outcome(family, count, handler.lines) for count in PREDICTOR_COUNTS)
        reason = plain.reason.rstrip(".")
        if branch.forward != plain.forward:
            reason = f"{reason and reason + '; '}{branch.forward} with predictor tokens, because {branch.reason}"
        listed.append((family, plain.forward, " ".join(reason.split()).replace("|", "/")))
    return listed


def grouped(listed: list[tuple[str, str, str]]) -> list[str]:
    """The table: one line for the families that share a forward and a reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, forward, reason in listed:
        groups.setdefault((forward, reason), []).append(f"`{name}`")
    order = ("packed", "two_pass", "refused")
    keys = sorted(groups, key=lambda key: (order.index(key[0]), -len(groups[key])))
    return [f"| {forward} | {reason} | {', '.join(groups[forward, reason])} |" for forward, reason in keys]


def section_text(table: list[str], version: str, count: dict[str, int]) -> str:
    """The section of the page."""
    return "\n".join(
        [
            HEADING,
            "",
            "We test a tiny random model of every causal model type in the installed transformers, with one row and with",
            "several, on rows longer than any window, for K = 0 and 2. Its LM loss must match the model's own logits and",
            "its states must match separate passes; otherwise the model is refused. `make families` writes this list,",
            "and `tests/parity/test_families.py` checks it.",
            "",
            f"transformers {version}: {count['packed']} packed, {count['two_pass']} two_pass, {count['refused']} refused.",
            "",
            "| forward | why it is not packed | families |",
            "|---|---|---|",
            *table,
            "",
        ]
    )


def section() -> str:
    """The section, from a training of every family."""
    import transformers

    from support.families import NOT_BUILT

    listed = families()
    count = {kind: sum(forward == kind for _, forward, _ in listed) for kind in ("packed", "two_pass", "refused")}
    not_built = "; ".join(f"{name} ({why})" for name, why in sorted(NOT_BUILT.items()))
    return section_text([*grouped(listed), "", f"Not built: {not_built}."], transformers.__version__, count)


def main() -> None:
    """Replace the last section of the page."""
    import transformers

    transformers.logging.set_verbosity_error()
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.split(HEADING)[0].rstrip() + "\n\n" + section(), encoding="utf-8")


if __name__ == "__main__":
    main()
