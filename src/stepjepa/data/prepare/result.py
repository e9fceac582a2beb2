"""What `prepare` did: counts of kept and dropped rows, and the lines that the command prints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stepjepa.config.option import Names
from stepjepa.data.prepare.options import PrepareOptions
from stepjepa.data.prepare.rows import Dropped, Kept
from stepjepa.utils.text import counted, escaped

_NAME = Names(PrepareOptions)
_EXAMPLES = 20  # rows listed for a reason


@dataclass
class PrepareResult:
    """What `prepare` did, every row counted once as kept or dropped; ``str()`` of it is what the command prints.

    Attributes:
        source, format, why: what was read, as which format, and why as this one.
        min_step_length: the least length of a step.
        system_prompt: the system message of chats without one.
        rows_read, rows_kept: rows; blank lines are none.
        rows_dropped: reason -> rows.
        examples: reason -> the first such rows: ``place``, ``what`` is wrong, ``text`` it begins with.
        step_counts: steps -> kept rows.
        short_pieces: pieces of kept rows that were too short to be steps.
        rows_prompted: kept rows with a system message; the default prompt asks for a box, and answers without one lack it.
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
    rows_prompted: int = 0
    files: dict[str, int] = field(default_factory=dict)
    stopped_early: bool = False
    next_command: str = ""

    def keep(self, row: Kept) -> None:
        """Count a row that is written."""
        self.rows_read += 1
        self.rows_kept += 1
        self.step_counts[row.steps] += 1
        self.short_pieces += row.short
        self.rows_prompted += row.prompted

    def drop(self, row: Dropped, place: str) -> None:
        """Count a row that is left out."""
        self.rows_read += 1
        self.rows_dropped[row.reason] += 1
        examples = self.examples.setdefault(row.reason, [])
        if len(examples) < _EXAMPLES:
            examples.append({"place": place, "what": row.what, "text": escaped(row.text)})

    def __str__(self) -> str:
        following = [f"Next: {self.next_command}"] if self.next_command else []
        return "\n".join([*self.lines(), *following])

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
        if self.short_pieces:
            option = f"--{_NAME.min_step_length} {self.min_step_length}"
            lines.append(f"  Too short for a step: {self.short_pieces:,} pieces ({option}; 1 keeps each as a step)")
        if self.system_prompt:
            rows = f"in {self.rows_prompted:,} of {self.rows_kept:,} rows (--{_NAME.system_prompt} TEXT, or none)"
            lines.append(f"  System prompt: {rows}: {escaped(self.system_prompt)}")
        return lines + [f"  {escaped(name)}: {counted(rows, 'row')}" for name, rows in self.files.items()]

    def dropped(self) -> list[str]:
        """Number of rows, reason and first example of each kind of row that was dropped."""
        lines: list[str] = []
        for reason, rows in self.rows_dropped.most_common():
            first = self.examples[reason][0]
            example = f"{escaped(first['place'])}: {escaped(first['what'])}; {first['text'][:70]}"
            lines.append(f"{rows:,}: {reason} (first: {example})")
        return lines
