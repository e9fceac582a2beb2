"""``stepjepa generate``: every question once, then the unsolved ones again, as long as there are attempts left.

The files (see `stepjepa.generation.output`):

    out.jsonl             the solved questions in the order of the input
    out.unsolved.jsonl    the questions without a right response, with their last one
    out.jsonl.meta.json   settings, input and summary
    out.partial           while it runs: every attempt
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepjepa.config.option import Names
from stepjepa.data.answers import answers_match, final_answer
from stepjepa.data.report import skipped_lines
from stepjepa.errors import ConfigError
from stepjepa.generation.options import QUESTION, GenerateOptions
from stepjepa.generation.output import Output, Paths, Record, ReplyLog, json_line, reading_record
from stepjepa.generation.problems import Problem, ProblemSet, read_problems
from stepjepa.generation.protocol import Generator, Reply, Request, mended, seed_of
from stepjepa.utils.terminal import Bar
from stepjepa.version import __version__

_NAME = Names(GenerateOptions)
VERDICTS = {
    "wrong": "wrong answer",
    "truncated": f"cut off at {_NAME.max_new_tokens}",
    "no_answer": "no final answer",
    "refused": "request refused",
}
_REFUSALS = 5  # so many and no response: the request itself is wrong, not the questions


@dataclass(frozen=True)
class Attempt:
    """One attempt at a question and what came of it.

    Attributes:
        number: of the try, from 1.
        verdict: ``right``, or a key of `VERDICTS`.
        response: its text; `final_answer`: what it ends in, None without one.
    """

    number: int
    verdict: str
    response: str
    final_answer: str | None
    reply: Reply


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
            reasons = []
            for verdict, count in summary["unsolved_last_attempt"].items():
                reasons.append(f"{VERDICTS[verdict]} {count}")
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

    def result(summary: Record, already: bool) -> GenerationResult:
        return GenerationResult(summary, {solved: summary["solved"], unsolved: summary["unsolved"]}, already)

    if output.complete is not None:
        with reading_record(output.paths.record):
            earlier = result(output.complete["summary"], already=True)
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
            summary = _summary(problems, attempts, options)
            right, wrong = _result_rows(problems.problems, attempts, options)
            files = {solved: map(json_line, right)}
            if wrong:
                files[unsolved] = map(json_line, wrong)
            record = {"stepjepa": __version__, "state": "complete", "settings": settings}
            output.finish(files, {**record, "input": source, "summary": summary})
    return result(summary, already=False)


def _open_output(options: GenerateOptions, identity: Record) -> Output:
    path = Path(str(options.output_file))
    stem = path.name.removesuffix(".jsonl")
    paths = Paths(
        (path, path.with_name(f"{stem}.unsolved.jsonl")),
        path.with_name(f"{path.name}.meta.json"),
        path.with_name(f"{stem}.partial"),
    )

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


class _UnlessAllAreRefused:
    """A generator whose refusals wait until a request is answered: where none ever is, the requests are wrong, not the
    questions."""

    def __init__(self, generator: Generator, answered: bool):
        self._generator, self._answered = generator, answered

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """As `Generator.answer`. Raises ConfigError: every request is refused."""
        held: list[Reply] = []
        for replies in self._generator.answer(requests, done):
            held += replies
            if any(reply.refused is None for reply in replies):
                self._answered = True
            if self._answered:
                yield held
                held = []
            elif len(held) >= _REFUSALS:
                break
        if held:
            raise ConfigError(f"the model refuses every request: {held[0].refused}")


def solve(
    problems: Sequence[Problem], options: GenerateOptions, generator: Generator, log: ReplyLog, bar: Bar
) -> list[list[Attempt]]:
    """Ask until every question is solved or has had all its attempts; the attempts at each question.

    Attempt a (from 1) at the question in position p of N is request number (a - 1) N + p.

    Raises:
        ConfigError: the model cannot be asked, or refuses every request.
        DataError: the attempts cannot be stored.
    """
    answered = any(reply.refused is None for reply in log.replies.values())
    generator = _UnlessAllAreRefused(generator, answered)
    attempts: list[list[Attempt]] = [[] for _ in problems]
    left = list(range(len(problems)))
    for number in range(1, options.attempts + 1):
        first = (number - 1) * len(problems)
        requests = [_request(first + place, problems[place], number, options) for place in left]
        log.ask(generator, requests, f"attempt {number}", bar)
        for place in left:
            reply = log.replies[first + place]
            attempt = _judged(reply, problems[place], number, options)
            attempts[place].append(attempt)
        left = [place for place in left if attempts[place][-1].verdict != "right"]
    return attempts


def _request(row: int, problem: Problem, attempt: int, options: GenerateOptions) -> Request:
    messages = [{"role": "user", "content": options.prompt_template.replace(QUESTION, problem.question)}]
    if options.system_prompt:
        messages.insert(0, {"role": "system", "content": options.system_prompt})
    return Request(row, messages, options.temperature, seed_of(options.seed, problem.row, attempt))


def _judged(reply: Reply, problem: Problem, number: int, options: GenerateOptions) -> Attempt:
    """Compare the final answer of a response with the known one. A response that was cut off is no solution."""
    text = mended(reply.text).strip()
    if reply.refused is not None:
        return Attempt(number, "refused", text, None, reply)
    answer = final_answer(text)
    if not reply.stopped and not options.accept_truncated:
        verdict = "truncated"
    elif answers_match(answer, problem.ground_truth):
        verdict = "right"
    else:
        verdict = "no_answer" if answer is None else "wrong"
    return Attempt(number, verdict, text, answer, reply)


def _summary(problems: ProblemSet, attempts: Sequence[Sequence[Attempt]], options: GenerateOptions) -> Record:
    """Where every row that was read has ended: solved at an attempt, unsolved, or skipped."""
    every = [one for tries in attempts for one in tries]
    last = [tries[-1] for tries in attempts]
    asked = Counter(one.number for one in every)
    solved = Counter(one.number for one in last if one.verdict == "right")
    return {
        "rows_read": problems.rows_read,
        "solved": solved.total(),
        "solved_at_attempt": {str(number): solved[number] for number in sorted(asked)},
        "asked_at_attempt": {str(number): asked[number] for number in sorted(asked)},
        "attempts_allowed": options.attempts,
        "unsolved": len(last) - solved.total(),
        "unsolved_last_attempt": dict(Counter(one.verdict for one in last if one.verdict != "right")),
        "skipped": dict(problems.rows_skipped),
        "first_skipped": problems.first_skipped,
        "tokens_read": sum(one.reply.prompt_tokens for one in every),
        "tokens_written": sum(one.reply.new_tokens for one in every),
    }


def _result_rows(
    problems: Sequence[Problem], attempts: Sequence[Sequence[Attempt]], options: GenerateOptions
) -> tuple[list[Record], list[Record]]:
    """The rows of the output, solved and unsolved, in the order of the input."""
    right, wrong = list[Record](), list[Record]()
    for problem, tries in zip(problems, attempts, strict=True):
        last = tries[-1]
        correct = last.verdict == "right"
        reply = last.reply
        row = {
            "question": problem.question,
            "answer": problem.answer,
            "ground_truth": problem.ground_truth,
            "response": last.response,
            "attempt": last.number,
            "model": str(options.model_name),
            "correct": correct,
            "final_answer": last.final_answer,
            "row": problem.row,
            "stopped": reply.stopped,
            "new_tokens": reply.new_tokens,
        }
        if reply.refused is not None:
            row["refused"] = reply.refused
        if reply.reasoning is not None:
            row["reasoning"] = reply.reasoning
        (right if correct else wrong).append(row)
    return right, wrong
