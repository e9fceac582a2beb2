"""The files of a run, which a kill at any moment leaves fit to go on from.

    out.jsonl             solved questions, appended as they are solved; at the end in the order of the input
    out.jsonl.meta.json   settings, input, state, and at the end the summary
    out.attempts.jsonl    every attempt, a line each: what a run goes on from; removed at the end unless it is kept
    out.unsolved.jsonl    at the end: the questions without a right response, with their last one

The file of attempts is the truth. Attempts come in groups; each line says how many of its group follow, and a group whose
last line is missing counts as not made. `out.jsonl` is what the attempts say it is: what a kill has kept from it is added
when the run goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from stepjepa import __version__
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.teachers.attempts import Attempt, Standing, group_lines, read_groups, read_line
from stepjepa.evaluation.teachers.files import append, json_line, open_locked, replace, saying_where
from stepjepa.evaluation.teachers.questions import Question
from stepjepa.utils.files import json_bytes, read_json

_RUNNING, _FINISHING, _COMPLETE = "running", "finishing", "complete"


class SolutionStore:
    """Keeps attempts and solutions.

    Args:
        output: the file of solutions.
        questions: all questions of the run.
        settings: what the responses depend on, plain JSON values.
        source: what is noted of the input; its ``fingerprint`` must be the same to go on.
        response_field: name of the column with the response.
        resume, overwrite: what may be done with files that are there.

    Raises:
        ConfigError: files are there that may not be touched.
        DataError: files are there that cannot be read.
    """

    def __init__(
        self,
        output: Path,
        questions: Sequence[Question],
        settings: dict[str, Any],
        source: dict[str, Any],
        response_field: str = "response",
        resume: bool = True,
        overwrite: bool = False,
    ):
        self.output, self.unsolved, self.attempts, self.meta = paths(output)
        self.standings: dict[int, Standing] = {}
        self.tokens_read = self.tokens_written = 0
        self.summary: dict[str, Any] | None = None  # of a run that is complete
        self._questions = {question.row: question for question in questions}
        self._settings, self._source = settings, source
        self._response_field, self._model = response_field, str(settings["model_name"])
        self._begun = self._finishing = self._made = False
        self._solutions: BinaryIO | None = None
        self._log: BinaryIO | None = None
        self._resume, self._overwrite = resume, overwrite
        if not overwrite:
            self._look()

    def open(self) -> None:
        """Take hold of the files. Nothing that is there changes before the first group of attempts is stored, but that
        what a kill has torn is mended.

        Raises:
            ConfigError: another process is writing them, or has written them since this object was made.
            DataError: they cannot be read or written.
        """
        self._made = not self.output.exists()
        self._solutions = open_locked(self.output)
        if not self._overwrite:
            self._look()
            if self.summary is not None:
                raise ConfigError(f"{self.output} has been completed by another process meanwhile")
        if self._begun:
            with saying_where(self.attempts):
                self._log = open(self.attempts, "a+b", buffering=0)  # noqa: SIM115
            self._take_up()

    def close(self) -> None:
        """Let go of the files."""
        for file in (self._solutions, self._log):
            if file is not None:
                file.close()
        if self._made and not self._begun:
            self.output.unlink(missing_ok=True)
        self._solutions = self._log = None

    def store(self, attempts: Sequence[Attempt]) -> None:
        """Store a group of attempts, all or none.

        Raises:
            DataError: they could not be written.
        """
        if not attempts:
            return
        if not self._begun:
            self._begin()
        assert self._log is not None and self._solutions is not None
        lines = group_lines(attempts)
        start = self._log.seek(0, os.SEEK_END)
        append(self._log, b"".join(lines), self.attempts)
        for one, line in zip(attempts, lines, strict=True):
            self._note(one, start, len(line))
            start += len(line)
        solved = b"".join(self._row(one) for one in attempts if one.verdict == "right")
        if solved:
            append(self._solutions, solved, self.output)

    def finish(self, summary: dict[str, Any], keep_attempts: bool = False) -> None:
        """Put the solutions into the order of the input, write the unsolved questions, and close.

        Raises:
            DataError: they could not be written; the same command tries again.
        """
        right = [row for row in self._questions if self.standings[row].verdict == "right"]
        wrong = [row for row in self._questions if self.standings[row].verdict != "right"]
        self._write_meta(_FINISHING)
        # Unlocked from here on, because Windows replaces no open file; the other files are whole by now.
        self.close()
        if wrong:
            replace(self.unsolved, self._rows(wrong))
        else:
            self.unsolved.unlink(missing_ok=True)
        replace(self.output, self._rows(right))
        self.summary = summary
        self._write_meta(_COMPLETE)
        if not keep_attempts:
            self.attempts.unlink(missing_ok=True)

    def _look(self) -> None:
        """See what is there and whether the run may go on from it."""
        there = [path for path in (self.output, self.unsolved, self.attempts) if path.exists() and path.stat().st_size]
        advice = "choose another --output_file, or --overwrite to replace it"
        if not self.meta.exists():
            if there:
                raise ConfigError(f"{there[0]} exists and is not from an unfinished run; {advice}")
            return
        try:
            meta = read_json(self.meta)
            state, settings, source = meta["state"], meta["settings"], meta["input"]
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(f"{self.meta}: cannot be read as the record of a run; {advice}") from None
        if state == _RUNNING and not there:
            return
        mine = json.loads(json.dumps(self._settings))
        other = [name for name in {**mine, **settings} if mine.get(name) != settings.get(name)]
        if other:
            name = other[0]
            more = f" (and {len(other) - 1} more)" if len(other) > 1 else ""
            raise ConfigError(
                f"{self.output} was made with {name} {_brief(settings.get(name))}, not {_brief(mine.get(name))}{more}; go "
                f"on with the same options, {advice}"
            )
        if source.get("fingerprint") != self._source["fingerprint"]:
            raise ConfigError(f"{self.output} was made from other questions ({source.get('file')}); {advice}")
        if not self._resume:
            raise ConfigError(f"{self.output} exists, and --no_resume forbids to go on with it; {advice}")
        gone = self.output if state == _COMPLETE else self.attempts
        if not gone.exists():
            raise ConfigError(f"{gone} is gone, but {self.meta} knows of it; {advice}")
        if state == _COMPLETE:
            self.summary = meta["summary"]
        self._begun, self._finishing = True, state == _FINISHING

    def _begin(self) -> None:
        """Make room for a new run. In an order that never lets a new record stand beside old attempts."""
        assert self._solutions is not None
        for path in (self.attempts, self.meta, self.unsolved):
            with saying_where(path):
                path.unlink(missing_ok=True)
        with saying_where(self.output):
            self._solutions.truncate(0)
        self._write_meta(_RUNNING)
        with saying_where(self.attempts):
            self._log = open(self.attempts, "a+b", buffering=0)  # noqa: SIM115
        self._begun = True

    def _take_up(self) -> None:
        """Read the attempts, and bring `out.jsonl` to what they say."""
        assert self._log is not None and self._solutions is not None
        whole = 0
        self._log.seek(0)
        self._solutions.seek(0)
        missing: list[bytes] = []
        with open(self._solutions.fileno(), "rb", closefd=False) as solutions:
            for group, lengths in read_groups(self.attempts, self._questions):
                for one, length in zip(group, lengths, strict=True):
                    self._note(one, whole, length)
                    whole += length
                    if one.verdict != "right" or self._finishing:
                        continue
                    expected = self._row(one)
                    found = b"" if missing else solutions.read(len(expected))
                    if not expected.startswith(found):
                        raise DataError(
                            f"{self.output} was changed since it was written, so the run cannot go on; put it back, or "
                            "choose another --output_file, or --overwrite"
                        )
                    if found != expected:  # the file ends here
                        missing.append(expected[len(found) :])
            if not self._finishing and solutions.read(1):
                raise DataError(f"{self.output} holds more than the run has written; put it back, or --overwrite")
        with saying_where(self.attempts):
            self._log.truncate(whole)
        if missing:
            append(self._solutions, b"".join(missing), self.output)

    def _note(self, one: Attempt, start: int, length: int) -> None:
        self.standings[one.row] = Standing(one.attempt, one.verdict, (start, length))
        self.tokens_read += one.prompt_tokens
        self.tokens_written += one.new_tokens

    def _rows(self, rows: Iterable[int]) -> Iterator[bytes]:
        """Lines of the output for the last attempts at questions, read back."""
        with open(self.attempts, "rb") as file:
            for row in rows:
                start, length = self.standings[row].place
                file.seek(start)
                yield self._row(read_line(file.read(length))[0])

    def _row(self, one: Attempt) -> bytes:
        """A line of the output."""
        question = self._questions[one.row]
        row = {
            "question": question.question,
            "answer": question.answer,
            "ground_truth": question.ground_truth,
            self._response_field: one.response,
            "attempt": one.attempt,
            "model": self._model,
            "correct": one.verdict == "right",
            "final_answer": one.final_answer,
            "row": one.row,
            "stopped": one.stopped,
            "new_tokens": one.new_tokens,
        }
        extra = {"refused": one.refused, "reasoning": one.reasoning}
        return json_line({**row, **{name: value for name, value in extra.items() if value is not None}})

    def _write_meta(self, state: str) -> None:
        record = {
            "stepjepa": __version__,
            "state": state,
            "settings": self._settings,
            "input": self._source,
            "summary": self.summary,
        }
        replace(self.meta, [json_bytes(record, indent=2), b"\n"])


def paths(output: Path) -> tuple[Path, Path, Path, Path]:
    """The files of a run: solutions, unsolved questions, attempts, record."""
    stem = output.name.removesuffix(".jsonl")
    return (
        output,
        output.with_name(f"{stem}.unsolved.jsonl"),
        output.with_name(f"{stem}.attempts.jsonl"),
        output.with_name(f"{output.name}.meta.json"),
    )


def _brief(value: Any) -> str:
    text = "none" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
