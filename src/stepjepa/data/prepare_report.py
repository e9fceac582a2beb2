"""The report of `prepare`: every raw row counted once, as kept or as dropped for a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepjepa.data.prepare_rows import Dropped, Kept
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
class PrepareReport:
    """What `prepare` did.

    Attributes:
        source, format, why: what was read, as which format, and how that was settled.
        min_step_length, drop_short: what a step's length is at least, and whether a shorter piece is left out or joined.
        system_prompt: what every chat begins with.
        rows_read, rows_kept: rows; blank lines are none.
        rows_dropped: reason -> rows.
        examples: reason -> the first such rows: ``place``, ``what`` is wrong, ``text`` it begins with.
        step_counts: steps -> kept rows.
        short_pieces, rows_with_short: pieces that were too short to be steps, and kept rows that had some.
        rows_boxed: kept rows with an answer in a box.
        files: output file -> rows in it.
        stopped_early: whether max_examples ended the reading.
        resumed_at: rows that were read before an interrupted run was gone on with; None where it was not.
        already_done: whether there was nothing left to do.
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
    resumed_at: int | None = None
    already_done: bool = False

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
        """A plain record for JSON; `from_dict` reads it."""
        return {
            **vars(self),
            "rows_dropped": dict(self.rows_dropped.most_common()),
            "step_counts": {str(steps): rows for steps, rows in sorted(self.step_counts.items())},
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> PrepareReport:
        """The report that a record holds."""
        known = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        known["rows_dropped"] = Counter(record["rows_dropped"])
        known["step_counts"] = Counter({int(steps): rows for steps, rows in record["step_counts"].items()})
        return cls(**known)

    def lines(self) -> list[str]:
        """The report in words. What comes from the file is on one line and printable."""
        dropped = sum(self.rows_dropped.values())
        lines = [
            f"Prepared: {escaped(self.source)}",
            f"  Format: {self.format} ({escaped(self.why)})",
            f"  Rows: {self.rows_read:,} read, {self.rows_kept:,} kept, {dropped:,} dropped",
        ]
        lines += [f"    dropped {words}" for words in self.dropped()]
        if self.stopped_early:
            lines.append("  Stopped at max_examples; the rows behind were not read")
        if self.resumed_at is not None:
            lines.append(f"  Gone on behind row {self.resumed_at:,} of an interrupted run")
        if self.rows_kept:
            lines.append("  Steps a row: " + self._steps())
            lines += [f"  {line}" for line in (*self._short(), *self._prompt())]
        lines += [f"  {escaped(name)}: {rows:,} row{'s' * (rows != 1)}" for name, rows in self.files.items()]
        if self.already_done:
            lines.append("  Nothing to do: an earlier run with these options wrote all of this")
        return lines

    def dropped(self) -> list[str]:
        """Number of rows, reason and first example of each kind of row that was dropped."""
        words = []
        for reason, rows in self.rows_dropped.most_common():
            first = self.examples[reason][0]
            shown = f"; {first['text'][:70]}" if first["text"] else ""
            where = f"{escaped(first['place'])}: {escaped(first['what'])}{shown}"
            words.append(f"{rows:,}: {REASONS.get(reason, reason)} (first: {where})")
        return words

    def _short(self) -> Iterator[str]:
        if self.short_pieces:
            what = "left out or joined to a neighbour" if self.drop_short else "joined to a neighbour"
            rows = f"{self.rows_with_short:,} row{'s' * (self.rows_with_short != 1)}"
            yield (
                f"Too short for a step: {self.short_pieces:,} pieces in {rows}, {what} (--min_step_length "
                f"{self.min_step_length}; 1 keeps each as a step)"
            )

    def _prompt(self) -> Iterator[str]:
        if not self.system_prompt:
            return
        yield f"System prompt: {escaped(self.system_prompt)} (--system_prompt TEXT, or none)"
        if "\\boxed" in self.system_prompt and 2 * self.rows_boxed < self.rows_kept:
            found = (
                f"only {self.rows_boxed:,} of {self.rows_kept:,} answers have" if self.rows_boxed else "no answer has"
            )
            yield f"  warning: it asks for \\boxed{{}}, and {found} one; --final_answer and --system_prompt settle that"

    def _steps(self) -> str:
        counts: Counter[int] = Counter()
        for steps, rows in self.step_counts.items():
            counts[min(steps, _LONGEST_TABLE)] += rows
        return ", ".join(
            f"{steps}{'+' * (steps == _LONGEST_TABLE)} in {rows:,}" for steps, rows in sorted(counts.items())
        )
