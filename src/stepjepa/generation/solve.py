"""``stepjepa generate``: every question once, then the unsolved ones again, as long as there are attempts left.

The files (see `stepjepa.generation.store`):

    out.jsonl             the solved questions in the order of the input
    out.unsolved.jsonl    the questions without a right response, with their last one
    out.jsonl.meta.json   settings, input and summary
    out.partial           while it runs: every attempt
    out.attempts.jsonl    every attempt, right or wrong, with --keep_attempts
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from stepjepa.config.option import MISSING, Names
from stepjepa.data.answers import after_hashes, answers_match, final_answer, last_boxed
from stepjepa.data.blocks import answer_of
from stepjepa.data.chat import one_turn, row_to_messages
from stepjepa.data.columns import history_of
from stepjepa.data.options import Form, as_object, asked_in, chat_column, column_value, form_of, listed_columns
from stepjepa.data.report import skipped_lines
from stepjepa.data.sources import RowSource
from stepjepa.errors import ConfigError, RowError
from stepjepa.generation import Generator, Reply, Request, RowsRead, digest_of, mended, seed_of, text_of
from stepjepa.generation.options import FOUND, KNOWN, OVERWRITE, QUESTION, GenerateOptions
from stepjepa.generation.store import Output, Paths, Record, Replies, json_line, reading_record
from stepjepa.utils.terminal import Bar
from stepjepa.utils.text import lone_surrogate
from stepjepa.version import __version__

_NAME = Names(GenerateOptions)
VERDICTS = {
    "wrong": "wrong answer",
    "truncated": f"cut off at {_NAME.max_new_tokens}",
    "no_answer": "no final answer",
    "refused": "request refused",
}
_NAMED_FORM = Form("question", "answer")  # where one of the two columns is named
_REFUSALS = 5  # so many and no response: the request itself is wrong, not the questions
_LONGEST_BARE_ANSWER = 60


@dataclass(frozen=True)
class Problem:
    """A question that can be asked.

    Attributes:
        row: its row's number, as `RowSource.place` takes it.
        question, answer: texts of the row.
        ground_truth: the final answer.
    """

    row: int
    question: str
    answer: str
    ground_truth: str


@dataclass
class ProblemSet(RowsRead):
    """The questions of a file; every row that was read is in `problems` or counted."""

    problems: list[Problem] = field(default_factory=list)

    def record(self) -> Record:
        """What is written of the input. Its fingerprint changes with any question, ground truth, or their order."""
        digest = digest_of([one.row, one.question, one.answer, one.ground_truth] for one in self.problems)
        return {"file": self.source, "questions": len(self.problems), "fingerprint": digest}


def read_problems(options: GenerateOptions) -> ProblemSet:
    """Read the rows of ``options.file``, up to ``max_examples`` questions.

    Raises:
        DataError: the file cannot be read, or holds nothing that can be asked.
    """
    rows = RowSource(options.file, options.dataset_split)
    found = ProblemSet(rows.name)
    usable = found.usable(rows, lambda row, _, number: _problem(number, row, options))
    found.problems = list(islice(usable, options.max_examples))
    found.require(found.problems, "can be asked")
    return found


def _problem(number: int, row: Any, options: GenerateOptions) -> Problem:
    row = as_object(row)
    question: object
    named, columns = (options.question_column, options.answer_column), listed_columns(row)
    left = chat_column(row) if named == (None, None) else None
    if left is not None or history_of(row):
        _, question, answer = one_turn(row_to_messages(row))
    else:
        form = form_of(row) if named == (None, None) else _NAMED_FORM
        left, right = options.question_column or form.question, options.answer_column or form.answer
        question, answer = asked_in(row, form._replace(question=left)), text_of(column_value(row, right))
        if options.answer_column is not None and column_value(row, right, MISSING) is MISSING:
            raise RowError(
                "no_ground_truth", f"no column {right!r} (columns found: {columns}); see --{_NAME.answer_column}"
            )
    if not isinstance(question, str) or not question.strip():
        raise RowError(
            "no_question", f"no text in column {left!r} (columns found: {columns}); see --{_NAME.question_column}"
        )
    column = options.ground_truth_column
    bare = text_of(column_value(row, column or "ground_truth")).strip() or (None if column else ground_truth(answer))
    if not bare:
        where = f"column {column!r}" if column else "the answer (no ####, no \\boxed{}, too long for a bare answer)"
        raise RowError(
            "no_ground_truth", f"no final answer in {where}; name its column with --{_NAME.ground_truth_column}"
        )
    if lone_surrogate(question + answer + bare):
        raise RowError("broken_text", "a text holds half a character (a lone surrogate); remove it")
    return Problem(number, question, answer, bare)


def ground_truth(answer: str) -> str | None:
    r"""The final answer in a known solution: what follows the first ``####`` on its line, else the last ``\boxed{}``, else
    the text itself where it is one short line. None without any of them: a number in a longer text may be any.
    """
    answer = answer_of(answer)
    marked = after_hashes(answer) or last_boxed(answer)
    if marked or "####" in answer:
        return marked
    bare = answer.strip()
    return bare if bare and "\n" not in bare and len(bare) <= _LONGEST_BARE_ANSWER else None


@dataclass(frozen=True)
class Attempt:
    """One attempt and what came of it.

    Attributes:
        row, attempt: which question, and the number of the try, from 1.
        verdict: ``right``, ``wrong``, ``no_answer``, ``truncated`` or ``refused``.
        final_answer: what the response ends in, None without one.
    """

    row: int
    attempt: int
    verdict: str
    response: str
    final_answer: str | None
    stopped: bool
    prompt_tokens: int
    new_tokens: int
    refused: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True)
class GenerationResult:
    """What came of `generate`.

    Attributes:
        summary: rows read, solved, unsolved and skipped, each by reason or attempt; tokens.
        files: the output and the unsolved questions -> rows in them.
        already: whether all was done before.
    """

    summary: Record
    files: dict[Path, int]
    already: bool = False

    def __str__(self) -> str:
        summary, output = self.summary, next(iter(self.files))
        skipped = sum(summary["skipped"].values())
        counts = f"{summary['solved']} solved, {summary['unsolved']} unsolved, {skipped} skipped"
        lines = [f"{output} is complete already"] if self.already else []
        lines.append(f"{summary['rows_read']} rows read: {counts}")
        for number, asked in summary["asked_at_attempt"].items():
            solved = summary["solved_at_attempt"][number]
            lines.append(f"  attempt {number}: {solved} of {asked} solved ({100 * solved / asked:.1f} %)")
        if summary["unsolved"]:
            why = [f"{VERDICTS[verdict]} {count}" for verdict, count in summary["unsolved_last_attempt"].items()]
            lines.append(f"  unsolved {summary['unsolved']}, by the last attempt: {', '.join(why)}")
        lines += [f"  {line}" for line in skipped_lines(summary["skipped"], summary["first_skipped"])]
        if summary["tokens_written"]:
            lines.append(f"  tokens: {summary['tokens_read']:,} read, {summary['tokens_written']:,} written")
        if not self.already:
            lines += [f"  written: {path} ({rows} rows)" for path, rows in self.files.items() if rows or path == output]
        return "\n".join(lines)


def generate(options: GenerateOptions) -> GenerationResult:
    """Let a model solve the questions of a file, and keep the responses whose final answer is right.

    What is unsolved is asked again, ``attempts`` times in all. Interrupted, the same call resumes.

    Raises:
        ConfigError, DataError: the model cannot be asked, or the files not written; what is stored by then is kept.
    """
    options.check()
    problems = read_problems(options)
    path = Path(str(options.output_file))
    stem = path.name.removesuffix(".jsonl")
    unsolved, attempts = (path.with_name(f"{stem}.{kind}.jsonl") for kind in ("unsolved", "attempts"))
    meta, partial = path.with_name(f"{path.name}.meta.json"), path.with_name(f"{stem}.partial")
    source, settings = problems.record(), options.deciding()
    output = Output(
        Paths((path, unsolved, attempts), meta, partial),
        {**settings, "data": source["fingerprint"]},
        {},
        options.overwrite,
        [Path(str(options.file))],
        _identity,
    )
    if not options.resume and (output.begun or output.complete is not None):
        raise ConfigError(f"{path} exists, and --no_{_NAME.resume} forbids to resume it; {OVERWRITE} replaces it")
    if output.complete is not None:
        with reading_record(meta):
            summary = output.complete["summary"]
            result = GenerationResult(summary, {path: summary["solved"], unsolved: summary["unsolved"]}, already=True)
            str(result)  # which reads the rest of the record
            return result
    with Bar() as bar:
        generator, description = load_generator(options, bar.say)
        solver = Solver(problems, options, output)
        with output.opened(solver.take):
            bar.say(f"model    {options.model_name} ({description})")
            resumed = f", {len(solver.last)} of them asked before" if solver.last else ""
            bar.say(f"input    {source['file']}: {source['questions']} questions{resumed}")
            solver.solve(generator, bar)
            summary = solver.summary()
            record = {"stepjepa": __version__, "state": "complete", "settings": settings}
            output.finish(solver.files(output.paths), {**record, "input": source, "summary": summary})
    return GenerationResult(summary, {path: summary["solved"], unsolved: summary["unsolved"]})


def _identity(record: Record) -> tuple[Record, Record]:
    """Of a complete output; version 0.1 recorded fewer options, as they were by default."""
    if record["state"] != "complete":
        raise KeyError("state")
    return {**GenerateOptions().deciding(), **record["settings"], "data": record["input"]["fingerprint"]}, {}


def load_generator(options: GenerateOptions, say: Callable[[str], None]) -> tuple[Generator, str]:
    """The generator of a backend, and a phrase that describes it. Raises ConfigError: it cannot be loaded."""
    if options.backend == "openai":
        from stepjepa.generation.endpoint import EndpointGenerator

        endpoint = EndpointGenerator(options, say)
        return endpoint, f"{endpoint.url}, {options.concurrency} requests at a time"
    from stepjepa.generation import local

    place = local.find_model(str(options.model_name))
    tokenizer = local.load_place_tokenizer(place, options.trust_remote_code)
    prompter = place.prompter(tokenizer, options)
    if prompter.note:
        say(f"note     {prompter.note}")
    return local.load_generator(place, prompter, options)


@dataclass
class _Patient:
    """A generator whose refusals wait until a request is answered: where none ever is, the requests are wrong, not the
    questions."""

    generator: Generator
    answered: bool

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        held: list[Reply] = []
        for replies in self.generator.answer(requests, done):
            held += replies
            self.answered = self.answered or any(reply.refused is None for reply in replies)
            if self.answered:
                yield held
                held = []
            elif len(held) >= _REFUSALS:
                break
        if held:
            raise ConfigError(f"the model refuses every request: {held[0].refused}")


class Solver(Replies):
    """Asks questions until each is solved or has had all its attempts, and judges the answers.

    Attempt a (from 1) at the question in position p of N is request number (a - 1) N + p.

    Attributes:
        last: the last attempt at each row that was asked.
    """

    def __init__(self, problems: ProblemSet, options: GenerateOptions, output: Output | None = None):
        super().__init__(output)
        self._set, self._problems, self._options = problems, problems.problems, options
        self._every: list[Attempt] = []
        self._solved: Counter[int] = Counter()  # at each attempt
        self.last: dict[int, Attempt] = {}

    def take(self, line: Record) -> None:
        """As `Replies.take`."""
        super().take(line)
        for number, *_ in line["replies"]:
            attempt, position = divmod(number, len(self._problems))
            one = self._judge(self.replies[number], self._problems[position], attempt + 1)
            self._every.append(one)
            self.last[one.row] = one
            self._solved[one.attempt] += one.verdict == "right"

    def solve(self, generator: Generator, bar: Bar) -> None:
        """Ask until every question is solved or has had all its attempts.

        Raises:
            ConfigError: the model cannot be asked, or refuses every request.
            DataError: the attempts cannot be stored.
        """
        patient = _Patient(generator, any(one.verdict != "refused" for one in self._every))
        for attempt in range(1, self._options.attempts + 1):
            # Those that were not solved before this attempt; some may have been asked in it, before an interruption.
            before = {row for row, one in self.last.items() if one.verdict == "right" and one.attempt < attempt}
            asked = [position for position, problem in enumerate(self._problems) if problem.row not in before]
            requests = [self.request(position, attempt) for position in asked]
            self.ask(patient, requests, f"attempt {attempt}", bar, partial(self._note, attempt))

    def _note(self, attempt: int) -> str:
        return f"{self._solved[attempt]} solved"

    def request(self, position: int, attempt: int) -> Request:
        """What attempt number `attempt` at a question asks."""
        options, problem = self._options, self._problems[position]
        messages = [{"role": "user", "content": options.prompt_template.replace(QUESTION, problem.question)}]
        if options.system_prompt:
            messages.insert(0, {"role": "system", "content": options.system_prompt})
        temperature = 0.0 if options.greedy_first and attempt == 1 else options.temperature
        number = (attempt - 1) * len(self._problems) + position
        return Request(number, messages, temperature, seed_of(options.seed, problem.row, attempt))

    def _judge(self, reply: Reply, problem: Problem, attempt: int) -> Attempt:
        """Compare the final answer of a response with the known one. A response that was cut off is no solution."""
        text = mended(reply.text).strip()
        found = final_answer(text) if reply.refused is None else None
        if reply.refused is not None:
            verdict = "refused"
        elif not reply.stopped and not self._options.accept_truncated:
            verdict = "truncated"
        elif answers_match(found, problem.ground_truth):
            verdict = "right"
        else:
            verdict = "no_answer" if found is None else "wrong"
        sizes = reply.stopped, reply.prompt_tokens, reply.new_tokens
        return Attempt(problem.row, attempt, verdict, text, found, *sizes, reply.refused, reply.reasoning)

    def summary(self) -> Record:
        """Where every row that was read has ended: solved at an attempt, unsolved, or skipped."""
        last, problems = self.last.values(), self._set
        numbers = range(1, max((one.attempt for one in last), default=0) + 1)
        return {
            "rows_read": problems.rows_read,
            "solved": self._solved.total(),
            "solved_at_attempt": {str(number): self._solved[number] for number in numbers},
            "asked_at_attempt": {str(number): sum(one.attempt >= number for one in last) for number in numbers},
            "attempts_allowed": self._options.attempts,
            "unsolved": len(self._problems) - self._solved.total(),
            "unsolved_last_attempt": dict(Counter(one.verdict for one in last if one.verdict != "right")),
            "skipped": dict(problems.rows_skipped),
            "first_skipped": problems.first_skipped,
            "tokens_read": sum(one.prompt_tokens for one in self._every),
            "tokens_written": sum(one.new_tokens for one in self._every),
        }

    def files(self, paths: Paths) -> Mapping[Path, Iterable[bytes]]:
        """The results, in the order of the input."""
        solved, unsolved, attempts = paths.results
        right = {row for row, one in self.last.items() if one.verdict == "right"}
        files: dict[Path, Iterable[bytes]] = {solved: (self._row(one) for one in self._problems if one.row in right)}
        if len(right) < len(self._problems):
            files[unsolved] = (self._row(one) for one in self._problems if one.row not in right)
        if self._options.keep_attempts:
            files[attempts] = (json_line(asdict(one)) for one in self._every)
        return files

    def _row(self, problem: Problem) -> bytes:
        """A line of the output."""
        one = self.last[problem.row]
        made = {**asdict(one), "model": str(self._options.model_name), "correct": one.verdict == "right"}
        found = {name: made[name] for name in FOUND if made[name] is not None or name == "final_answer"}
        known = {name: getattr(problem, name) for name in KNOWN}
        return json_line({**known, self._options.response_field: one.response, **found})
