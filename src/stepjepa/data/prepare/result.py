"""What `prepare` did: counts of kept and dropped rows, and the lines that the command prints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from stepjepa.config.option import Names
from stepjepa.data.prepare.options import SYSTEM_PROMPT, PrepareOptions
from stepjepa.data.prepare.rows import Dropped, Kept
from stepjepa.data.report import REASONS as CHAT_REASONS
from stepjepa.utils.text import counted, escaped

_NAME = Names(PrepareOptions)
REASONS = {
    "truncated_line": "the file ends in the middle of the line",
    "not_utf8": "not UTF-8 text",
    "broken_json": "broken JSON",
    "broken_csv": "broken CSV",
    "line_too_long": "the line is too long",
    "missing_column": "a column is missing or null",
    "not_text": "a column's value is no text",
    "text_too_long": "a text is too long",
    "broken_text": "a text holds half a character (a lone surrogate)",
    "empty_text": "a column is empty",
    "no_final_answer": "no '#### ...' at the end",
    "no_ground_truth": "no ground truth to compare with",
    "only_thinking": "nothing but a thinking block",
    "too_few_steps": f"too few steps (--{_NAME.min_steps})",
    "too_many_steps": f"too many steps (--{_NAME.max_steps})",
    "wrong_answer": f"not the ground truth (--{_NAME.require_correct})",
    "duplicate": f"a question that was kept before (--{_NAME.dedup})",
}
_EXAMPLES = 20  # rows listed for a reason


@dataclass
class PrepareResult:
    """What `prepare` did, every row counted once as kept or dropped; ``str()`` of it is what the command prints.

    Attributes:
        source, format, why: what was read, as which format, and why as this one.
        min_step_length: the least length of a step.
        system_prompt: the beginning of every chat.
        rows_read, rows_kept: rows; blank lines are none.
        rows_dropped: reason -> rows.
        examples: reason -> the first such rows: ``place``, ``what`` is wrong, ``text`` it begins with.
        step_counts: steps -> kept rows.
        short_pieces, rows_with_short: pieces that were too short to be steps, and kept rows that had some.
        rows_boxed: kept rows with an answer in a box.
        files: output file -> rows in it.
        stopped_early: whether max_examples ended the reading.
        next_command: the command that trains on the files; empty where no row is left to train on.
    """

    source: str
    format: str
    why: str
    min_step_length: int = 1
    system_prompt: str | None = None
    rows_read: int = 0
    rows_kept: int = 0
    rows_dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    step_counts: Counter[int] = field(default_factory=Counter)
    short_pieces: int = 0
    rows_with_short: int = 0
    rows_boxed: int = 0
    files: dict[str, int] = field(default_factory=dict)
    stopped_early: bool = False
    next_command: str = ""

    def keep(self, row: Kept) -> None:
        """Count a row that is written."""
        self.rows_read += 1
        self.rows_kept += 1
        self.step_counts[row.steps] += 1
        self.short_pieces += row.short
        self.rows_with_short += row.short > 0
        self.rows_boxed += row.boxed

    def drop(self, row: Dropped, place: str) -> None:
        """Count a row that is left out."""
        self.rows_read += 1
        self.rows_dropped[row.reason] += 1
        examples = self.examples.setdefault(row.reason, [])
        if len(examples) < _EXAMPLES:
            examples.append({"place": place, "what": row.what, "text": escaped(row.text)})

    def to_dict(self) -> dict[str, Any]:
        """A plain record for ``OUT.report.json``."""
        record = dict(vars(self))
        del record["next_command"]
        record["rows_dropped"] = dict(self.rows_dropped.most_common())
        record["step_counts"] = {str(steps): rows for steps, rows in sorted(self.step_counts.items())}
        return record

    def __str__(self) -> str:
        return "\n".join(self.lines() + ([f"Next: {self.next_command}"] if self.next_command else []))

    def lines(self) -> list[str]:
        """The counts, one fact a line. What comes from the file is on one line and printable."""
        dropped = sum(self.rows_dropped.values())
        lines = [
            f"Prepared: {escaped(self.source)}",
            f"  Format: {self.format} ({escaped(self.why)})",
            f"  Rows: {self.rows_read:,} read, {self.rows_kept:,} kept, {dropped:,} dropped",
            *(f"    dropped {reason}" for reason in self.dropped()),
        ]
        if self.stopped_early:
            lines.append(f"  Stopped at {_NAME.max_examples}; the rows after it were not read")
        if self.rows_kept:
            steps = ", ".join(f"{steps} in {rows:,}" for steps, rows in sorted(self.step_counts.items()))
            lines.append(f"  Steps a row: {steps}")
            lines += self._short_lines() + self._prompt_lines()
        return lines + [f"  {escaped(name)}: {counted(rows, 'row')}" for name, rows in self.files.items()]

    def _short_lines(self) -> list[str]:
        if not self.short_pieces:
            return []
        pieces = f"{self.short_pieces:,} pieces in {counted(self.rows_with_short, 'row')}"
        option = f"--{_NAME.min_step_length} {self.min_step_length}"
        return [f"  Too short for a step: {pieces} ({option}; 1 keeps each as a step)"]

    def _prompt_lines(self) -> list[str]:
        """What the system prompt is; the default asks for a box, so answers without one do not have it."""
        if not self.system_prompt:
            return []
        if self.system_prompt == SYSTEM_PROMPT and self.rows_boxed < self.rows_kept:
            rows = f"{self.rows_boxed:,} of {self.rows_kept:,} rows, those whose answer has the \\boxed{{}} that it asks for"
            return [f"  System prompt: in {rows} (--{_NAME.system_prompt} TEXT gives all rows another one)"]
        return [f"  System prompt: {escaped(self.system_prompt)} (--{_NAME.system_prompt} TEXT, or none)"]

    def dropped(self) -> list[str]:
        """Number of rows, reason and first example of each kind of row that was dropped."""
        found: list[str] = []
        for reason, rows in self.rows_dropped.most_common():
            first = self.examples[reason][0]
            where = f"{escaped(first['place'])}: {escaped(first['what'])}"
            text = f"; {first['text'][:70]}" if first["text"] else ""
            words = REASONS.get(reason) or CHAT_REASONS.get(reason, reason)
            found.append(f"{rows:,}: {words} (first: {where}{text})")
        return found
