"""The two plainest splitters: at a separator, by default a blank line, and at line ends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from stepjepa.data.splitters_base import CharSpan, spans_from_cuts
from stepjepa.errors import ConfigError

_LINE_END = re.compile(r"(?:\r\n|\n|\r)+")


@dataclass(frozen=True)
class SeparatorSplitter:
    r"""Steps end with a separator string, by default a blank line (``\n\n``).

    Further separators and line breaks that follow at once belong to the same step, and separators in front of all else
    to the first. Where the separator consists of line breaks, Windows line ends and blank lines that hold spaces count
    too.
    """

    name: ClassVar[str] = "separator"
    separator: str = "\n\n"

    def __post_init__(self) -> None:
        if not self.separator:
            raise ConfigError("step_separator is empty; give the string that stands between two steps")

    def spans(self, text: str) -> list[CharSpan]:
        """See `StepSplitter.spans`."""
        breaks = self.separator.count("\n")
        if breaks and not self.separator.strip():
            # White space in front of the first line break belongs to the step anyway.
            pattern = rf"\n(?:[^\S\n]*\n){{{breaks - 1},}}"
        else:
            separator = re.escape(self.separator)
            pattern = rf"{separator}(?:\s*{separator})*\s*"
        matches = list(re.finditer(pattern, text))
        if matches and not text[: matches[0].start()].strip():
            del matches[0]
        return spans_from_cuts(text, (match.end() for match in matches))


@dataclass(frozen=True)
class LineSplitter:
    """Every line that is not blank is a step, its line break included (GSM8K's original answers)."""

    name: ClassVar[str] = "lines"

    def spans(self, text: str) -> list[CharSpan]:
        """See `StepSplitter.spans`."""
        return spans_from_cuts(text, (match.end() for match in _LINE_END.finditer(text)))
