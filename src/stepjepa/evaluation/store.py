"""The files of an evaluation, which a kill at any moment leaves fit to go on from.

    predictions.jsonl     the answers, written once at the end
    answer_nll.jsonl      in its place where nothing is generated
    metrics.json          the result, written last: with it the evaluation is complete
    predictions.partial   a line for each batch, as it is done; removed at the end

A line of the partial file counts as a whole or not at all. Its first line says what the answers depend on: an evaluation
goes on only with the same.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from stepjepa import __version__
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.nll import AnswerLoss
from stepjepa.evaluation.predictions import write_records
from stepjepa.evaluation.teachers.files import append, json_line, open_locked, replace, saying_where
from stepjepa.evaluation.teachers.requests import Reply
from stepjepa.utils.files import json_bytes, parse_json, read_json

_SHOWN = 40


@dataclass
class Work:
    """What the model has answered so far.

    Attributes:
        replies, losses: by the index of the question.
        seconds: spent on generating.
    """

    replies: dict[int, Reply] = field(default_factory=dict)
    losses: dict[int, AnswerLoss] = field(default_factory=dict)
    seconds: float = 0.0

    def add_replies(self, replies: Sequence[Reply], seconds: float) -> None:
        """Take a batch of answers."""
        self.replies.update((reply.row, reply) for reply in replies)
        self.seconds += seconds

    def add_losses(self, losses: Sequence[AnswerLoss]) -> None:
        """Take a batch of likelihoods."""
        self.losses.update((loss.row, loss) for loss in losses)


class Paths(NamedTuple):
    """The files of an evaluation."""

    predictions: Path
    answer_nll: Path
    metrics: Path
    partial: Path

    @classmethod
    def in_folder(cls, folder: Path) -> Paths:
        """With their usual names."""
        names = ("predictions.jsonl", "answer_nll.jsonl", "metrics.json", "predictions.partial")
        return cls(*(folder / name for name in names))

    @classmethod
    def of_file(cls, predictions: Path) -> Paths:
        """Beside a file of predictions with a name of its own."""
        stem = predictions.stem
        nll, metrics, partial = f"{stem}.answer_nll{predictions.suffix}", f"{stem}.metrics.json", f"{stem}.partial"
        return cls(predictions, *(predictions.with_name(name) for name in (nll, metrics, partial)))


class Output(Work):
    """Keeps the answers in files.

    Args:
        paths: the files.
        identity: what the answers depend on, plain JSON values.
        scoring: what else the result depends on.
        overwrite: replace what is there.
        inputs: files that are read and must not be written.

    Attributes:
        complete: the result of an evaluation that has been made before, None otherwise.

    Raises:
        ConfigError: files are there that may not be touched.
        DataError: files are there that cannot be read.
    """

    def __init__(
        self,
        paths: Paths,
        identity: dict[str, Any],
        scoring: dict[str, Any],
        overwrite: bool = False,
        inputs: Iterable[Path] = (),
    ):
        super().__init__()
        self.paths, self.overwrite = paths, overwrite
        self.identity, self.scoring = json.loads(json.dumps([identity, scoring]))
        self.complete: dict[str, Any] | None = None
        self._file: BinaryIO | None = None
        for source in inputs:
            for path in paths:
                if source.exists() and path.exists() and path.samefile(source):
                    raise ConfigError(f"{path}: the evaluation would write over its input; name another output")
        self._begun = self._look()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Take hold of the files, and read what is done. Nothing that is there changes before the first batch is stored.

        Raises:
            ConfigError: another process is writing them.
            DataError: they cannot be read or written.
        """
        made, made_folder = not self.paths.partial.exists(), not self.paths.partial.parent.exists()
        self._file = open_locked(self.paths.partial)
        try:
            if self._begun:
                self._take_up()
            yield
        finally:
            if self._file is not None:
                self._file.close()
                self._file = None
                if made and not self._begun:
                    self.paths.partial.unlink(missing_ok=True)
                if made_folder and not self._begun:
                    with contextlib.suppress(OSError):
                        self.paths.partial.parent.rmdir()

    def add_replies(self, replies: Sequence[Reply], seconds: float) -> None:
        """Store a batch of answers, all or none.

        Raises:
            DataError: they could not be written.
        """
        rows = [[r.row, r.text, r.stopped, r.prompt_tokens, r.new_tokens, r.refused] for r in replies]
        self._append({"replies": rows, "seconds": round(seconds, 3)})
        super().add_replies(replies, seconds)

    def add_losses(self, losses: Sequence[AnswerLoss]) -> None:
        """Store a batch of likelihoods, all or none.

        Raises:
            DataError: they could not be written.
        """
        self._append({"losses": losses})
        super().add_losses(losses)

    def finish(self, records: Sequence[dict[str, Any]], result: dict[str, Any]) -> list[Path]:
        """Write the answers, then the result; the files.

        Raises:
            DataError: they could not be written; the same command tries again.
        """
        target = self.answers(bool(self.replies))
        write_records(target, records)
        replace(self.paths.metrics, [json_bytes(result, indent=2), b"\n"])
        if self._file is not None:
            self._file.close()
            self._file = None
        self.paths.partial.unlink(missing_ok=True)
        return [target, self.paths.metrics]

    def answers(self, generated: bool) -> Path:
        """The file of answers: predictions, or the likelihoods alone."""
        return self.paths.predictions if generated else self.paths.answer_nll

    def _look(self) -> bool:
        """See what is there; whether a part of the same evaluation is."""
        paths, advice = self.paths, "choose another output, or --overwrite_output_dir to replace it"
        result = _read_result(paths.metrics)
        if paths.metrics.exists() and result is None:
            raise ConfigError(
                f"{paths.metrics} exists and is no evaluation's; choose another --output_dir or --output_file"
            )
        header = _read_header(paths.partial, self.overwrite)
        same = header is not None and header.get("identity") == self.identity
        if self.overwrite:
            return same
        if result is not None:
            _refuse_other(paths.metrics, result["scoring"], self.scoring, advice)
            _refuse_other(paths.metrics, result["identity"], self.identity, advice)
            self.complete = result
            return same
        if header is not None:
            _refuse_other(paths.partial, header.get("identity"), self.identity, advice)
        for path in (paths.predictions, paths.answer_nll):
            if path.exists() and not same:
                raise ConfigError(f"{path} exists and is not from an unfinished evaluation; {advice}")
        return same

    def _append(self, line: dict[str, Any]) -> None:
        assert self._file is not None
        if not self._begun:
            self._begin()
        append(self._file, json_line(line), self.paths.partial)

    def _begin(self) -> None:
        """Make room for a new evaluation. In an order that never lets old results stand beside new answers."""
        assert self._file is not None
        with saying_where(self.paths.partial):
            self._file.truncate(0)
            if self.overwrite:
                for path in (self.paths.metrics, self.paths.predictions, self.paths.answer_nll):
                    path.unlink(missing_ok=True)
        append(self._file, json_line({"stepjepa": __version__, "identity": self.identity}), self.paths.partial)
        self._begun = True

    def _take_up(self) -> None:
        """Read what is done; a last line that is not whole is dropped."""
        assert self._file is not None
        self._file.seek(0)
        whole = 0
        with open(self._file.fileno(), "rb", closefd=False) as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") or not line.strip(b"\0\n"):
                    break
                try:
                    self._read(parse_json(line))
                except (ValueError, KeyError, TypeError, AttributeError):
                    if not self.overwrite:
                        raise DataError(
                            f"{self.paths.partial} line {number}: broken, so the evaluation cannot go on; "
                            "--overwrite_output_dir begins anew"
                        ) from None
                    self._begun, self.replies, self.losses, self.seconds = False, {}, {}, 0.0
                    return
                whole += len(line)
        with saying_where(self.paths.partial):
            self._file.truncate(whole)

    def _read(self, line: dict[str, Any]) -> None:
        if "replies" in line:
            replies = [
                Reply(row, text, stopped, read, new, refused)
                for row, text, stopped, read, new, refused in line["replies"]
            ]
            super().add_replies(replies, float(line["seconds"]))
        elif "losses" in line:
            losses = [AnswerLoss(row, math.nan if total is None else total, n) for row, total, n in line["losses"]]
            super().add_losses(losses)
        elif "identity" not in line:
            raise ValueError(line)


def _refuse_other(path: Path, other: Any, mine: dict[str, Any], advice: str) -> None:
    other = other if isinstance(other, dict) else {}
    for name in {**other, **mine}:
        if other.get(name) == mine.get(name):
            continue
        if name in ("model", "data"):
            what = "another model" if name == "model" else "other questions"
            raise ConfigError(f"{path} was made with {what}, or they have changed since; {advice}")
        raise ConfigError(
            f"{path} was made with {name} {_brief(other.get(name))}, not {_brief(mine.get(name))}; go on with the same "
            f"options, {advice}"
        )


def _read_header(path: Path, overwrite: bool) -> dict[str, Any] | None:
    """The first line of a partial file; None where there is none that is whole, or where it may be replaced."""
    try:
        with open(path, "rb") as file:
            line = file.readline()
        return dict(parse_json(line)) if line.endswith(b"\n") else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        if overwrite:
            return None
        raise DataError(
            f"{path}: cannot be read as an unfinished evaluation; remove it, or choose another output"
        ) from None


def _read_result(path: Path) -> dict[str, Any] | None:
    """The result of an evaluation, None of anything else."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"identity", "scoring"} <= set(found) else None


def _brief(value: Any) -> str:
    text = "none" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
