"""``stepjepa generate``: asks every question with a known final answer once, then the unsolved ones again, until no attempts
are left.

The files (see `stepjepa.generation.output`):

    out.jsonl             the solved questions in the order of the input
    out.unsolved.jsonl    the unsolved questions with their last responses
    out.jsonl.meta.json   settings, input and summary
    out.partial           every attempt, while the command runs
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.answers import after_hashes, answers_match, final_answer, last_boxed
from stepjepa.data.blocks import answer_of
from stepjepa.data.chat import one_turn, row_to_messages
from stepjepa.data.columns import answer_column, as_object, column_value
from stepjepa.data.options import text_of
from stepjepa.data.report import RowCounts, skipped_lines
from stepjepa.data.sources import RowSource
from stepjepa.errors import RowError
from stepjepa.generation.options import QUESTION, GenerateOptions
from stepjepa.generation.output import (
    Generator,
    Output,
    Paths,
    Reply,
    ReplyLog,
    Request,
    acceptance,
    acceptance_text,
    digest_of,
    reading_record,
    seed_of,
)
from stepjepa.utils.files import Record, json_line
from stepjepa.utils.terminal import Bar
from stepjepa.version import __version__

_NAME = Names(GenerateOptions)
# The verdict on a right response; the other verdicts, and their names in the summary.
RIGHT = "right"
VERDICTS = {
    "wrong": "wrong answer",
    "truncated": f"cut off at {_NAME.max_new_tokens}",
    "no_answer": "no final answer",
    "refused": "request refused",
}
# Longest known solution, in characters, that may be a final answer without marks.
_LONGEST_BARE_ANSWER = 60


@dataclass(frozen=True)
class Problem:
    """A question that can be asked.

    Attributes:
        row: number of the row, for `RowSource.place`.
        question, answer: texts of the row.
        ground_truth: the known final answer.
    """

    row: int
    question: str
    answer: str
    ground_truth: str


@dataclass
class ProblemSet(RowCounts):
    """The questions of a file; every row that was read is in `problems` or counted as skipped."""

    problems: list[Problem] = field(default_factory=list)


def read_problems(options: GenerateOptions) -> ProblemSet:
    """Read the rows of ``options.file``, up to ``max_examples`` questions.

    Raises:
        DataError: the file cannot be read, or has no usable question.
    """
    rows = RowSource(options.file, options.dataset_split)
    problem_set = ProblemSet(rows.name)
    for number, row in rows:
        problem_set.rows_read += 1
        try:
            problem_set.problems.append(_problem(number, row, options))
        except RowError as error:
            problem_set.skip(error, rows.place(number))
        # Counts usable rows: rows that are skipped do not use up the limit.
        if len(problem_set.problems) == options.max_examples:
            break
    problem_set.require(problem_set.problems, "can be asked")
    return problem_set


def _problem(number: int, row: Any, options: GenerateOptions) -> Problem:
    row, columns = as_object(row), options.columns
    target = answer_column(row) if columns is None else columns.target
    value = column_value(row, target)
    # A chat needs a text: the answer may be a bare number, or missing if there is a column ground_truth.
    if value is None or isinstance(value, (int, float)):
        row = {**row, target: text_of(value)}
    _, question, answer = one_turn(row_to_messages(row, None, columns))
    if not question.strip():
        raise RowError("no_question", "the question is empty")
    final = text_of(column_value(row, "ground_truth")).strip() or ground_truth(answer)
    if not final:
        why = "no column ground_truth, no #### and no \\boxed{} in the answer, and the answer is not a single short line"
        raise RowError("no_ground_truth", f"no final answer: {why}")
    return Problem(number, question, answer, final)


def ground_truth(answer: str) -> str | None:
    r"""The final answer in a known solution: the rest of the line after the first ``####``, else the last ``\boxed{}``, else
    the text itself if it is one short line; otherwise None.
    """
    # Unlike in a response, the last number of a longer text is too uncertain to be the answer of a reference.
    answer = answer_of(answer)
    marked = after_hashes(answer) or last_boxed(answer)
    if marked or "####" in answer:
        return marked
    bare = answer.strip()
    return bare if bare and "\n" not in bare and len(bare) <= _LONGEST_BARE_ANSWER else None


@dataclass(frozen=True)
class GenerationResult:
    """Result of `generate`; ``str()`` gives the summary that is printed.

    Attributes:
        summary: number of rows read, solved, unsolved and skipped, by attempt or reason; tokens.
        output: the file with the solved questions.
        already: whether an earlier call had completed the work.
    """

    summary: Record
    output: Path
    already: bool = False

    def __str__(self) -> str:
        summary = self.summary
        lines = [
            f"{self.output} is already complete" if self.already else f"written: {self.output}"
        ]
        skipped = sum(summary["skipped"].values())
        counts = f"{summary['solved']} solved, {summary['unsolved']} unsolved, {skipped} skipped"
        lines.append(f"{summary['rows_read']} rows read: {counts}")
        for number, solved in summary["solved_at_attempt"].items():
            lines.append(f"  attempt {number}: {solved} solved")
        for verdict, count in summary["unsolved_last_attempt"].items():
            lines.append(f"  unsolved: {count}, last attempt: {VERDICTS[verdict]}")
        lines += [
            f"  {line}" for line in skipped_lines(summary["skipped"], summary["first_skipped"])
        ]
        if summary["tokens_written"]:
            lines.append(
                f"  tokens: {summary['tokens_read']:,} read, {summary['tokens_written']:,} written"
            )
        if drafts := summary.get("drafts"):
            lines.append(f"  drafts: {acceptance_text(drafts)}")
        return "\n".join(lines)


def generate(options: GenerateOptions) -> GenerationResult:
    """Have a model solve the questions of a file, and keep the responses whose final answer is right.

    Unsolved questions are asked again, up to ``attempts`` times in all. After an interruption the same call resumes.

    Raises:
        ConfigError, DataError: the model cannot be used, or a file cannot be written; stored attempts are kept.
    """
    options.check()
    problem_set = read_problems(options)
    problems = problem_set.problems
    fingerprint = digest_of(map(astuple, problems))
    solved = Path(str(options.output_file))
    unsolved = solved.with_suffix(".unsolved.jsonl")
    record_file = solved.with_suffix(".jsonl.meta.json")
    output = Output(
        Paths((solved, unsolved), record_file, solved.with_suffix(".partial")),
        {**options.deciding(), "data": fingerprint},
        overwrite=options.overwrite,
        inputs=[Path(str(options.file))],
    )
    if output.complete is not None:
        with reading_record(record_file):
            earlier = GenerationResult(output.complete["summary"], solved, already=True)
            # Printing reads the rest of the record, so a damaged one fails here.
            str(earlier)
            return earlier
    with Bar() as bar:
        generator, description = load_generator(options, bar.say)
        log = ReplyLog(output)
        with output.opened(log.take):
            bar.say(f"model    {options.model_name} ({description})")
            bar.say(f"input    {problem_set.source}: {len(problems)} questions")
            last = solve(problems, options, generator, log, bar)
            rows = [
                _result_row(problem, attempt, options)
                for problem, attempt in zip(problems, last, strict=True)
            ]
            summary = _summary(problem_set, last, log)
            results = {solved: [json_line(row) for row in rows if row["correct"]]}
            if summary["unsolved"]:
                results[unsolved] = [json_line(row) for row in rows if not row["correct"]]
            record = {
                "stepjepa": __version__,
                "identity": output.identity,
                "input": {"file": problem_set.source, "questions": len(problems)},
                "summary": summary,
            }
            output.finish(results, record)
    return GenerationResult(summary, solved)


def load_generator(options: GenerateOptions, say: Callable[[str], None]) -> tuple[Generator, str]:
    """Load the generator of a backend, and describe it in a phrase. Raises ConfigError: it cannot be loaded."""
    # `place` imports torch, which a server does not need.
    if options.backend == "openai":
        from stepjepa.generation.endpoint import EndpointGenerator

        endpoint = EndpointGenerator(options, say)
        return endpoint, f"{endpoint.url}, {options.concurrency} requests at a time"
    from stepjepa.generation import place

    model = place.find_model(str(options.model_name))
    tokenizer = place.load_place_tokenizer(model, options.trust_remote_code)
    prompter = model.prompter(tokenizer, options)
    if prompter.note:
        say(f"note     {prompter.note}")
    return place.load_generator(model, prompter, options)


class Attempt(NamedTuple):
    """An attempt at a question: its number from 1, the reply, and `RIGHT` or a key of `VERDICTS`."""

    number: int
    reply: Reply
    verdict: str


def solve(
    problems: Sequence[Problem],
    options: GenerateOptions,
    generator: Generator,
    log: ReplyLog,
    bar: Bar,
) -> list[Attempt]:
    """Ask until every question is solved or has had all its attempts.

    Attempt a (from 1) at the question in position p of N is request number (a - 1) N + p.

    Returns:
        The last attempt at each question.

    Raises:
        ConfigError: the model cannot be used.
        DataError: the attempts cannot be stored.
    """
    last: dict[int, Attempt] = {}
    unsolved = list(range(len(problems)))
    # At temperature 0 every attempt would give the same response.
    attempts = options.attempts if options.temperature else 1
    for number in range(1, attempts + 1):
        if not unsolved:
            break
        # When work is resumed, stored attempts pass through here too, so the same questions remain unsolved.
        first = (number - 1) * len(problems)
        requests = [_request(first + place, problems[place], number, options) for place in unsolved]
        log.ask(generator, requests, f"attempt {number}", bar)
        for place in unsolved:
            reply = log.replies[first + place]
            last[place] = Attempt(number, reply, _verdict(reply, problems[place], options))
        unsolved = [place for place in unsolved if last[place].verdict != RIGHT]
    return [last[place] for place in range(len(problems))]


def _request(row: int, problem: Problem, attempt: int, options: GenerateOptions) -> Request:
    messages = [
        {"role": "user", "content": options.prompt_template.replace(QUESTION, problem.question)}
    ]
    if options.system_prompt:
        messages.insert(0, {"role": "system", "content": options.system_prompt})
    return Request(row, messages, options.temperature, seed_of(options.seed, problem.row, attempt))


def _verdict(reply: Reply, problem: Problem, options: GenerateOptions) -> str:
    """Compare the final answer of a response with the known one."""
    if reply.refused is not None:
        return "refused"
    # A number in a response that was cut off may be an intermediate result.
    if not reply.stopped and not options.accept_truncated:
        return "truncated"
    answer = final_answer(reply.text)
    if answer is None:
        return "no_answer"
    return RIGHT if answers_match(answer, problem.ground_truth) else "wrong"


def _summary(problem_set: ProblemSet, last: Sequence[Attempt], log: ReplyLog) -> Record:
    """Counts that add up to all rows that were read: solved by attempt, unsolved by reason, and skipped by reason."""
    solved = Counter(attempt.number for attempt in last if attempt.verdict == RIGHT)
    return {
        "rows_read": problem_set.rows_read,
        "solved": solved.total(),
        # Keys as text, which they are in JSON.
        "solved_at_attempt": {str(number): solved[number] for number in sorted(solved)},
        "unsolved": len(last) - solved.total(),
        "unsolved_last_attempt": dict(
            Counter(attempt.verdict for attempt in last if attempt.verdict != RIGHT)
        ),
        "skipped": dict(problem_set.rows_skipped),
        "first_skipped": problem_set.first_skipped,
        "tokens_read": sum(reply.prompt_tokens for reply in log.replies.values()),
        "tokens_written": sum(reply.new_tokens for reply in log.replies.values()),
        "drafts": acceptance(reply.drafts for reply in log.replies.values()),
    }


def _result_row(problem: Problem, attempt: Attempt, options: GenerateOptions) -> Record:
    reply = attempt.reply
    row = {
        "question": problem.question,
        "answer": problem.answer,
        "ground_truth": problem.ground_truth,
        "response": reply.text.strip(),
        "attempt": attempt.number,
        "model": str(options.model_name),
        "correct": attempt.verdict == RIGHT,
        "final_answer": final_answer(reply.text),
        "row": problem.row,
        "stopped": reply.stopped,
        "new_tokens": reply.new_tokens,
    }
    optional = {"refused": reply.refused, "reasoning": reply.reasoning}
    return row | {name: text for name, text in optional.items() if text is not None}
