"""The result of `prepare`: every raw row counted once, as kept or as dropped for a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stepjepa.data.prepare.rows import Dropped, Kept
from stepjepa.utils.text import escaped

REASONS = {
    "truncated_line": "the file ends in the middle of the line",
    "not_utf8": "not UTF-8 text",
    "broken_json": "broken JSON",
    "broken_csv": "broken CSV",
    "line_too_long": "the line is too long",
    "not_an_object": "the row is no object with columns",
    "missing_column": "a column is missing or null",
    "not_text": "a column's value is no text",
    "text_too_long": "a text is too long",
    "broken_text": "a text holds half a character (a lone surrogate)",
    "empty_text": "a column is empty",
    "empty_question": "the question is empty",
    "no_bars": "no '||' between question and steps",
    "no_final_answer": "no '#### ...' at the end",
    "no_ground_truth": "no ground truth to compare with",
    "only_thinking": "nothing but a thinking block",
    "too_few_steps": "too few steps (--min_steps)",
    "too_many_steps": "too many steps (--max_steps)",
    "wrong_answer": "not the ground truth (--require_correct)",
    "duplicate": "a question that was kept before (--dedup)",
}
# What was asked for, not a fault of the row: strict_data lets these pass.
FILTERS = frozenset({"too_few_steps", "too_many_steps", "wrong_answer", "duplicate"})
_EXAMPLES = 20  # rows listed for a reason
_LONGEST_TABLE = 12


@dataclass
class PrepareResult:
    """What `prepare` did; ``str()`` of it is what the command prints.

    Attributes:
        source, format, why: what was read, as which format, and why as this one.
        min_step_length, drop_short: the least length of a step, and whether a shorter piece is left out or joined.
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
    drop_short: bool = False
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
        listed = self.examples.setdefault(row.reason, [])
        if len(listed) < _EXAMPLES:
            listed.append({"place": place, "what": row.what, "text": escaped(row.text)})

    def to_dict(self) -> dict[str, Any]:
        """A plain record for ``OUT.report.json``."""
        record = {
            **vars(self),
            "rows_dropped": dict(self.rows_dropped.most_common()),
            "step_counts": {str(steps): rows for steps, rows in sorted(self.step_counts.items())},
        }
        del record["next_command"]
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
            lines.append("  Stopped at max_examples; the rows behind were not read")
        if self.rows_kept:
            lines += [f"  {line}" for line in self._about_steps()]
        return lines + [f"  {escaped(name)}: {_rows(rows)}" for name, rows in self.files.items()]

    def dropped(self) -> list[str]:
        """Number of rows, reason and first example of each kind of row that was dropped."""
        found = []
        for reason, rows in self.rows_dropped.most_common():
            first = self.examples[reason][0]
            shown = f"; {first['text'][:70]}" if first["text"] else ""
            where = f"{escaped(first['place'])}: {escaped(first['what'])}{shown}"
            found.append(f"{rows:,}: {REASONS.get(reason, reason)} (first: {where})")
        return found

    def _about_steps(self) -> Iterator[str]:
        counts: Counter[int] = Counter()
        for steps, rows in self.step_counts.items():
            counts[min(steps, _LONGEST_TABLE)] += rows
        table = (f"{steps}{'+' * (steps == _LONGEST_TABLE)} in {rows:,}" for steps, rows in sorted(counts.items()))
        yield f"Steps a row: {', '.join(table)}"
        if self.short_pieces:
            what = "left out or joined to a neighbour" if self.drop_short else "joined to a neighbour"
            yield (
                f"Too short for a step: {self.short_pieces:,} pieces in {_rows(self.rows_with_short)}, {what} "
                f"(--min_step_length {self.min_step_length}; 1 keeps each as a step)"
            )
        if self.system_prompt:
            yield f"System prompt: {escaped(self.system_prompt)} (--system_prompt TEXT, or none)"
            if "\\boxed" in self.system_prompt and 2 * self.rows_boxed < self.rows_kept:
                boxed = (
                    f"only {self.rows_boxed:,} of {self.rows_kept:,} answers have"
                    if self.rows_boxed
                    else "no answer has"
                )
                yield f"  warning: it asks for \\boxed{{}}, and {boxed} one; --final_answer and --system_prompt settle that"


def _rows(count: int) -> str:
    return f"{count:,} row{'s' * (count != 1)}"
