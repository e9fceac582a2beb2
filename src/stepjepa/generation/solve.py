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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from stepjepa.data.answers import answers_match, final_answer
from stepjepa.errors import ConfigError
from stepjepa.generation.base import Generator, Reply, Request, mended, seed_of
from stepjepa.generation.options import QUESTION, GenerateOptions, deciding
from stepjepa.generation.questions import REASONS, Problem, ProblemSet, read_problems
from stepjepa.generation.store import Output, Paths, Record, json_line
from stepjepa.utils.terminal import Bar
from stepjepa.version import __version__

VERDICTS = {
    "wrong": "wrong answer",
    "truncated": "cut off at max_new_tokens",
    "no_answer": "no final answer",
    "refused": "request refused",
}
# So many refusals and no response: the request itself is wrong, not the questions.
_REFUSALS = 5


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
        for reason, count in summary["skipped"].items():
            lines.append(
                f"  skipped {count}: {REASONS.get(reason, reason)} (first: {summary['first_skipped'][reason]})"
            )
        if summary["tokens_written"]:
            lines.append(f"  tokens: {summary['tokens_read']:,} read, {summary['tokens_written']:,} written")
        if not self.already:
            lines += [f"  written: {path} ({rows} rows)" for path, rows in self.files.items() if rows or path == output]
        return "\n".join(lines)


def generate(options: GenerateOptions) -> GenerationResult:
    """Let a model solve the questions of a file, and keep the responses whose final answer is right.

    What is unsolved is asked again, ``attempts`` times in all. Interrupted, the same call resumes.

    Raises:
        StepJepaError: the model cannot be asked, or the files not written; what is stored by then is kept.
    """
    options.check()
    problems = read_problems(options)
    output, source = open_output(options, problems)
    if output.complete is not None:
        return _result(output, output.complete["summary"], already=True)
    with Bar() as bar:
        generator, description = load_generator(options, bar.say)
        solver = Solver(problems, options)
        with output.opened(solver.take):
            bar.say(f"model    {options.model_name} ({description})")
            resumed = f", {len(solver.last)} of them asked before" if solver.last else ""
            bar.say(f"input    {problems.source}: {len(problems.problems)} questions{resumed}")
            solver.ask(generator, output, bar)
            summary, settings = solver.summary(), deciding(options)
            record = {"stepjepa": __version__, "state": "complete", "settings": settings}
            output.finish(solver.files(output, options), {**record, "input": source, "summary": summary})
    return _result(output, summary)


def open_output(options: GenerateOptions, problems: ProblemSet) -> tuple[Output, Record]:
    """The files that the command writes, not yet opened, and what is recorded of the input.

    Raises:
        ConfigError: files are there that may not be touched, or the input is one of them.
    """
    path = Path(str(options.output_file))
    stem = path.name.removesuffix(".jsonl")
    unsolved, attempts = (path.with_name(f"{stem}.{kind}.jsonl") for kind in ("unsolved", "attempts"))
    paths = Paths(
        (path, unsolved, attempts), path.with_name(f"{path.name}.meta.json"), path.with_name(f"{stem}.partial")
    )
    source = {"file": problems.source, "questions": len(problems.problems), "fingerprint": problems.fingerprint()}
    identity = {**deciding(options), "data": source["fingerprint"]}
    inputs = [Path(str(options.file))]
    output = Output(paths, identity, {}, options.overwrite, inputs, "--overwrite", _identity)
    if not options.resume and (output.begun or output.complete is not None):
        raise ConfigError(f"{path} exists, and --no_resume forbids to resume it; --overwrite replaces it")
    return output, source


def _identity(record: Record) -> tuple[Record, Record]:
    if record["state"] != "complete":
        raise KeyError("state")
    return {**deciding(GenerateOptions()), **record["settings"], "data": record["input"]["fingerprint"]}, {}


def _result(output: Output, summary: Record, already: bool = False) -> GenerationResult:
    solved, unsolved, *_ = output.paths.results
    return GenerationResult(summary, {solved: summary["solved"], unsolved: summary["unsolved"]}, already)


def load_generator(options: GenerateOptions, say: Callable[[str], None]) -> tuple[Generator, str]:
    """The generator of a backend, and a phrase that describes it.

    Raises:
        ConfigError: it cannot be loaded.
    """
    if options.backend == "openai":
        from stepjepa.generation.endpoint import EndpointGenerator

        endpoint = EndpointGenerator(
            str(options.base_url),
            str(options.model_name),
            options.max_new_tokens,
            options.top_p,
            api_key=options.api_key(),
            concurrency=options.concurrency,
            timeout=options.timeout,
            max_retries=options.max_retries,
            extra_body=options.extra_body,
            say=say,
        )
        return endpoint, f"{endpoint.url}, {options.concurrency} requests at a time"
    from transformers.utils.logging import disable_progress_bar

    from stepjepa.data.prompts import Prompter
    from stepjepa.generation.local import BATCH_SIZE, LocalGenerator, move_to_device, refuse_preset
    from stepjepa.generation.vllm import VllmGenerator, require_vllm
    from stepjepa.modeling.load import load_model, load_tokenizer

    disable_progress_bar()
    if options.backend == "vllm":
        require_vllm()
    name = str(options.model_name)
    refuse_preset(name)
    tokenizer = load_tokenizer(name, trust_remote_code=options.trust_remote_code)
    prompter = Prompter(tokenizer, options.chat_template, options.plain)
    if options.backend == "vllm":
        return VllmGenerator(name, prompter, options), "vLLM"
    model = load_model(
        name,
        tokenizer,
        dtype=options.dtype,
        attn_implementation=options.attn_implementation,
        trust_remote_code=options.trust_remote_code,
    )
    size = options.batch_size or BATCH_SIZE
    description = f"{move_to_device(model, name, 'use --backend vllm or openai')}, batches of {size}"
    return LocalGenerator(model, prompter, options.max_new_tokens, options.top_p, size), description


class Solver:
    """Asks questions and judges the answers.

    Attributes:
        last: the last attempt at each row that was asked.
    """

    def __init__(self, problems: ProblemSet, options: GenerateOptions):
        self._set, self._options = problems, options
        self._problems = {problem.row: problem for problem in problems.problems}
        self.last: dict[int, Attempt] = {}
        self._every: list[Attempt] = []  # with --keep_attempts
        self._tokens_read = self._tokens_written = 0

    def take(self, line: Record) -> None:
        """Take the attempts of a stored line.

        Raises:
            KeyError, TypeError: it holds none, or about another row.
        """
        for values in line["attempts"]:
            one = Attempt(**values)
            self.last[self._problems[one.row].row] = one
            self._tokens_read += one.prompt_tokens
            self._tokens_written += one.new_tokens
            if self._options.keep_attempts:
                self._every.append(one)

    def ask(self, generator: Generator, output: Output, bar: Bar) -> None:
        """Ask until every question is solved or has had all its attempts. Each group of replies is stored as it comes.

        Raises:
            StepJepaError: the model cannot be asked, or the attempts not stored.
        """
        options, last = self._options, self.last
        answered = any(one.verdict != "refused" for one in last.values())
        for attempt in range(1, options.attempts + 1):
            # Those that were not solved before this attempt; some may have been asked in it, before an interruption.
            asked = [
                problem
                for row, problem in self._problems.items()
                if row not in last or last[row].verdict != "right" or last[row].attempt >= attempt
            ]
            done = {problem.row for problem in asked if problem.row in last and last[problem.row].attempt >= attempt}
            if len(done) == len(asked):
                continue
            bar.begin(f"attempt {attempt}", len(asked), len(done), "0 solved")
            solved = 0
            requests = [self.request(problem, attempt) for problem in asked]
            for replies in _unless_all_refused(generator.answer(requests, done), answered):
                attempts = [self._judge(reply, attempt) for reply in replies]
                line = {"attempts": [asdict(one) for one in attempts]}
                output.append(line)
                self.take(line)
                solved += sum(one.verdict == "right" for one in attempts)
                bar.step(len(attempts), f"{solved} solved")
            answered = True

    def request(self, problem: Problem, attempt: int) -> Request:
        """What attempt number `attempt` at a question asks."""
        options = self._options
        messages = [{"role": "user", "content": options.prompt_template.replace(QUESTION, problem.question)}]
        if options.system_prompt:
            messages.insert(0, {"role": "system", "content": options.system_prompt})
        temperature = 0.0 if options.greedy_first and attempt == 1 else options.temperature
        return Request(problem.row, messages, temperature, seed_of(options.seed, problem.row, attempt))

    def _judge(self, reply: Reply, attempt: int) -> Attempt:
        """Compare the final answer of a response with the known one. A response that was cut off is no solution."""
        text = mended(reply.text).strip()
        found = final_answer(text) if reply.refused is None else None
        if reply.refused is not None:
            verdict = "refused"
        elif not reply.stopped and not self._options.accept_truncated:
            verdict = "truncated"
        elif answers_match(found, self._problems[reply.row].ground_truth):
            verdict = "right"
        else:
            verdict = "no_answer" if found is None else "wrong"
        sizes = reply.stopped, reply.prompt_tokens, reply.new_tokens
        return Attempt(reply.row, attempt, verdict, text, found, *sizes, reply.refused, reply.reasoning)

    def summary(self) -> Record:
        """Where every row that was read has ended: solved at an attempt, unsolved, or skipped."""
        last, problems = self.last.values(), self._set
        numbers = range(1, max((one.attempt for one in last), default=0) + 1)
        solved = Counter(one.attempt for one in last if one.verdict == "right")
        return {
            "rows_read": problems.rows_read,
            "solved": sum(solved.values()),
            "solved_at_attempt": {str(number): solved[number] for number in numbers},
            "asked_at_attempt": {str(number): sum(one.attempt >= number for one in last) for number in numbers},
            "attempts_allowed": self._options.attempts,
            "unsolved": len(problems.problems) - sum(solved.values()),
            "unsolved_last_attempt": dict(Counter(one.verdict for one in last if one.verdict != "right")),
            "skipped": dict(problems.skipped),
            "first_skipped": problems.first_skipped,
            "tokens_read": self._tokens_read,
            "tokens_written": self._tokens_written,
        }

    def files(self, output: Output, options: GenerateOptions) -> Mapping[Path, Iterable[bytes]]:
        """The results, in the order of the input."""
        solved, unsolved, attempts = output.paths.results
        right = {row for row, one in self.last.items() if one.verdict == "right"}
        files: dict[Path, Iterable[bytes]] = {solved: (self._row(row) for row in self._problems if row in right)}
        if len(right) < len(self._problems):
            files[unsolved] = (self._row(row) for row in self._problems if row not in right)
        if options.keep_attempts:
            files[attempts] = (json_line(asdict(one)) for one in self._every)
        return files

    def _row(self, row: int) -> bytes:
        """A line of the output."""
        problem, one = self._problems[row], self.last[row]
        values = {
            "question": problem.question,
            "answer": problem.answer,
            "ground_truth": problem.ground_truth,
            self._options.response_field: one.response,
            "attempt": one.attempt,
            "model": str(self._options.model_name),
            "correct": one.verdict == "right",
            "final_answer": one.final_answer,
            "row": one.row,
            "stopped": one.stopped,
            "new_tokens": one.new_tokens,
        }
        extra = {"refused": one.refused, "reasoning": one.reasoning}
        return json_line({**values, **{name: value for name, value in extra.items() if value is not None}})


def _unless_all_refused(groups: Iterator[list[Reply]], answered: bool) -> Iterator[list[Reply]]:
    """Hold refused replies back until one is answered.

    Raises:
        ConfigError: none is.
    """
    held: list[Reply] = []
    for group in groups:
        answered = answered or any(reply.refused is None for reply in group)
        held += group
        if answered:
            yield held
            held = []
        elif len(held) >= _REFUSALS:
            break
    if held:
        raise ConfigError(f"the model refuses every request: {held[0].refused}")
