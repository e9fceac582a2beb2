"""``stepjepa generate``: every question once, then the unsolved ones again, as long as there are attempts left.

The files (see `stepjepa.generation.output`):

    out.jsonl             the solved questions in the order of the input
    out.unsolved.jsonl    the questions without a right response, with their last one
    out.jsonl.meta.json   settings, input and summary
    out.partial           while it runs: every attempt
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepjepa.config.option import Names
from stepjepa.data.answers import answers_match, final_answer
from stepjepa.data.report import skipped_lines
from stepjepa.generation.options import QUESTION, GenerateOptions
from stepjepa.generation.output import (
    Generator,
    Output,
    Paths,
    Record,
    Reply,
    ReplyLog,
    Request,
    json_line,
    reading_record,
    seed_of,
)
from stepjepa.generation.problems import Problem, ProblemSet, read_problems
from stepjepa.utils.terminal import Bar
from stepjepa.version import __version__

_NAME = Names(GenerateOptions)
RIGHT = "right"
VERDICTS = {
    "wrong": "wrong answer",
    "truncated": f"cut off at {_NAME.max_new_tokens}",
    "no_answer": "no final answer",
    "refused": "request refused",
}


@dataclass(frozen=True)
class Attempt:
    """One attempt at a question.

    Attributes:
        number: of the try, from 1.
        verdict: `RIGHT`, or a key of `VERDICTS`.
        final_answer: what the response ends in, None without one.
    """

    number: int
    reply: Reply
    verdict: str
    final_answer: str | None


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
        summary = self.summary
        output = next(iter(self.files))
        lines = [f"{output} is complete already"] if self.already else []
        unsolved = summary["unsolved"]
        skipped = sum(summary["skipped"].values())
        counts = f"{summary['solved']} solved, {unsolved} unsolved, {skipped} skipped"
        lines.append(f"{summary['rows_read']} rows read: {counts}")
        for number, asked in summary["asked_at_attempt"].items():
            solved = summary["solved_at_attempt"][number]
            percent = 100 * solved / asked
            lines.append(f"  attempt {number}: {solved} of {asked} solved ({percent:.1f} %)")
        if unsolved:
            reasons = [f"{VERDICTS[verdict]} {count}" for verdict, count in summary["unsolved_last_attempt"].items()]
            lines.append(f"  unsolved {unsolved}, by the last attempt: {', '.join(reasons)}")
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
    source, settings = problems.record(), options.deciding()
    output = _open_output(options, {**settings, "data": source["fingerprint"]})
    solved, unsolved = output.paths.results
    if output.complete is not None:
        with reading_record(output.paths.record):
            summary = output.complete["summary"]
            files = {solved: summary["solved"], unsolved: summary["unsolved"]}
            earlier = GenerationResult(summary, files, already=True)
            str(earlier)  # reads the rest of the record
            return earlier
    with Bar() as bar:
        generator, description = load_generator(options, bar.say)
        log = ReplyLog(output)
        with output.opened(log.take):
            bar.say(f"model    {options.model_name} ({description})")
            resumed = f", {len(log.replies)} attempts done before" if log.replies else ""
            bar.say(f"input    {source['file']}: {source['questions']} questions{resumed}")
            attempts = solve(problems.problems, options, generator, log, bar)
            last = list(zip(problems.problems, (tries[-1] for tries in attempts), strict=True))
            right = [_result_row(problem, one, options) for problem, one in last if one.verdict == RIGHT]
            wrong = [_result_row(problem, one, options) for problem, one in last if one.verdict != RIGHT]
            results = {solved: map(json_line, right)}
            if wrong:
                results[unsolved] = map(json_line, wrong)
            summary = _summary(problems, attempts, options)
            record = {"stepjepa": __version__, "state": "complete", "settings": settings}
            output.finish(results, {**record, "input": source, "summary": summary})
    return GenerationResult(summary, {solved: len(right), unsolved: len(wrong)})


def _open_output(options: GenerateOptions, identity: Record) -> Output:
    path = Path(str(options.output_file))
    results = path, path.with_name(f"{path.stem}.unsolved.jsonl")
    paths = Paths(results, path.with_name(f"{path.name}.meta.json"), path.with_suffix(".partial"))

    def identity_of(record: Record) -> Record:
        if record["state"] != "complete":
            raise KeyError("state")
        return {**record["settings"], "data": record["input"]["fingerprint"]}

    inputs = [Path(str(options.file))]
    return Output(paths, identity, overwrite=options.overwrite, inputs=inputs, identity_of=identity_of)


def load_generator(options: GenerateOptions, say: Callable[[str], None]) -> tuple[Generator, str]:
    """The generator of a backend, and a phrase that describes it. Raises ConfigError: it cannot be loaded."""
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


def solve(
    problems: Sequence[Problem], options: GenerateOptions, generator: Generator, log: ReplyLog, bar: Bar
) -> list[list[Attempt]]:
    """Ask until every question is solved or has had all its attempts; the attempts at each question.

    Attempt a (from 1) at the question in position p of N is request number (a - 1) N + p.

    Raises:
        ConfigError: the model cannot be asked.
        DataError: the attempts cannot be stored.
    """
    attempts: list[list[Attempt]] = [[] for _ in problems]
    left = list(range(len(problems)))
    for number in range(1, options.attempts + 1):
        first = (number - 1) * len(problems)
        requests = [_request(first + place, problems[place], number, options) for place in left]
        log.ask(generator, requests, f"attempt {number}", bar)
        unsolved = []
        for place in left:
            attempt = _judged(log.replies[first + place], problems[place], number, options)
            attempts[place].append(attempt)
            if attempt.verdict != RIGHT:
                unsolved.append(place)
        left = unsolved
    return attempts


def _request(row: int, problem: Problem, attempt: int, options: GenerateOptions) -> Request:
    messages = [{"role": "user", "content": options.prompt_template.replace(QUESTION, problem.question)}]
    if options.system_prompt:
        messages.insert(0, {"role": "system", "content": options.system_prompt})
    return Request(row, messages, options.temperature, seed_of(options.seed, problem.row, attempt))


def _judged(reply: Reply, problem: Problem, number: int, options: GenerateOptions) -> Attempt:
    """Compare the final answer of a response with the known one. A response that was cut off is no solution."""
    if reply.refused is not None:
        return Attempt(number, reply, "refused", None)
    answer = final_answer(reply.text)
    if not reply.stopped and not options.accept_truncated:
        verdict = "truncated"
    elif answers_match(answer, problem.ground_truth):
        verdict = RIGHT
    else:
        verdict = "no_answer" if answer is None else "wrong"
    return Attempt(number, reply, verdict, answer)


def _summary(problems: ProblemSet, attempts: Sequence[Sequence[Attempt]], options: GenerateOptions) -> Record:
    """Where every row that was read has ended: solved at an attempt, unsolved, or skipped."""
    every = [one for tries in attempts for one in tries]
    last = [tries[-1] for tries in attempts]
    asked = Counter(one.number for one in every)
    solved = Counter(one.number for one in last if one.verdict == RIGHT)
    return {
        "rows_read": problems.rows_read,
        "solved": solved.total(),
        "solved_at_attempt": {str(number): solved[number] for number in sorted(asked)},
        "asked_at_attempt": {str(number): asked[number] for number in sorted(asked)},
        "attempts_allowed": options.attempts,
        "unsolved": len(last) - solved.total(),
        "unsolved_last_attempt": dict(Counter(one.verdict for one in last if one.verdict != RIGHT)),
        "skipped": dict(problems.rows_skipped),
        "first_skipped": problems.first_skipped,
        "tokens_read": sum(one.reply.prompt_tokens for one in every),
        "tokens_written": sum(one.reply.new_tokens for one in every),
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
        "final_answer": attempt.final_answer,
        "row": problem.row,
        "stopped": reply.stopped,
        "new_tokens": reply.new_tokens,
    }
    optional = {"refused": reply.refused, "reasoning": reply.reasoning}
    return row | {name: text for name, text in optional.items() if text is not None}
