"""Damaged files and odd options through every command: it ends with 0, 1 or 2, in one line where it fails, and in time.

``python tests/faults/fuzz.py --cases 5000`` runs the cases 0 to 4999. A case is made from its number alone, so that
``--first N --cases 1`` repeats it. The commands run in children that are forked once everything was imported.
"""

import argparse
import contextlib
import gc
import io
import json
import logging
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

SECONDS, WAITING = 20, 180  # of a case: of this process, so that a busy machine is no fault, and of the clock
LONGEST = 500  # characters of an error line
MEMORY = 24 * 2**30  # address space of a child
CHUNK = 100  # cases of a child
STUDY = """\
title: A study
data: {builtin: {train_rows: 6, select_rows: 2, test_rows: 2}}
base: {model_name: tiny, max_steps: 4, learning_rate: 1e-3}
arms:
  regular: {objective: regular}
  step_jepa: {objective: step_jepa, lbd: 0.5, tune: {predictors: [1, 2]}}
tune: {learning_rate: [1e-3, 1e-2]}
seeds: [1, 2, 3]
controls: [shuffled]
metrics: [answer_nll, gsm8k]
mini: {seeds: [1], base: {max_steps: 2}}
"""
SET = "base.max_steps seeds mini.seeds arms.regular.lbd jobs alpha data blocks.a.seeds tune.lbd base a..b".split()
CONFIG = """\
model_name: tiny
step_jepa: true
step_pairs: all
predictors: 2
lbd: 0.5
max_length: 128
chat_template_kwargs: {enable_thinking: false}
multi_horizon: [1, 2]
max_steps: 1
per_device_train_batch_size: 2
"""
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
OBJECTIVES = (
    "llm_jepa step_jepa split semantic_tube next_latent multi_token future_summary steps_to_answer regular".split()
)
SPLITTERS = "auto separator lines numbered sentence regex list".split()
COLUMNS = [["messages"], ["question", "answer"], ["text"], ["question", "answer", "steps"]]
NUMBERS = ["-1", "0", "1", "-inf", "inf", "nan", "1e400", "10" * 15, "0.5", "x", "none"]
ODD: list[Any] = [
    None, True, -1, 0, 3, 2**31, 10**20, 10**400, 1e308, -1e308, float("nan"), float("inf"), "", " ", "none",
    "\x1b[31mred\x1b]0;title\x07", "\ud800", "\u202e", "\x9b2J", "[/]", "x" * 3000, "\x00", [], {}, [[]], [{}], [None],
    {"a": {"b": [1]}}, "9" * 5000, "../..", "null", "\n\n", "{{", "{% for %}", "\\boxed{", "<think>", "####", "a\nb",
]  # fmt: skip
BYTES = [
    b"", b"\x00", b"\xff", b"\xed\xa0\x80", b'"', b"{", b"}", b"[", b",", b":", b"\n", b"\r", b"- ", b"&a [*a]", b"\x1b[2J",
    b"[" * 100_000, b"9" * 5000, b"null", b"NaN", b"Infinity", b"-", b"{{ ", b" %}", b"!!python/object:os.system ", b"\t",
]  # fmt: skip


def home_files(home: Path) -> None:
    """What the cases damage: rows, a run with a checkpoint, predictions, states."""
    from stepjepa.cli.main import main

    rows, run = home / "rows.jsonl", home / "run"
    write_rows(rows, good_rows())
    for words, out in (
        (f"train --train_file {rows} --model_name tiny --step_jepa --max_steps 1 --save_steps 1 --batch_size 2", run),
        (f"evaluate {run} {rows} --metric gsm8k --max_new_tokens 4 --max_examples 4", home / "scored"),
        (f"analyze {rows} --models {run} --layers 0 -1", home / "states"),
    ):
        if main([*words.split(), "--output_dir", str(out)]) != 0:
            raise SystemExit("the files that are to be damaged could not be made")
    for name, text in (("study.yaml", STUDY), ("config.yaml", CONFIG), ("template.jinja", TEMPLATE)):
        (home / name).write_text(text)


def good_rows(count: int = 8) -> list[dict[str, Any]]:
    rows = []
    for n in range(1, count + 1):
        answer = f"First, halve {2 * n}.\n\nThat gives {n}.\n\nSo the answer is \\boxed{{{n}}}.\n#### {n}"
        question = f"What is half of {2 * n}?"
        chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        rows.append({"messages": chat, "question": question, "answer": answer, "steps": answer.split("\n\n"), "id": n})
    return rows


def write_rows(path: Path, rows: list[Any]) -> None:
    """Rows in the format of the file's name; as JSON lines where that cannot hold them."""
    import pandas

    try:
        if path.suffix == ".parquet":
            pandas.DataFrame(rows).to_parquet(path)
        elif path.suffix == ".csv":
            pandas.DataFrame(rows).to_csv(path, index=False)
        else:
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    except Exception:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def damaged_value(tree: Any, rng: random.Random) -> Any:
    """A copy of nested lists and objects with one value replaced, removed, renamed or filled in."""
    if not isinstance(tree, dict | list) or not tree:
        return rng.choice(ODD)
    tree = tree.copy()
    key = rng.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
    value, kind = tree[key], rng.random()
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        tree[key] = damaged_value(value, rng)
    elif kind < 0.15:
        del tree[key]
    elif kind < 0.25 and isinstance(tree, dict):
        tree[str(rng.choice(ODD))[:50]] = tree.pop(key)
    elif kind < 0.4 and isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        tree[key] = value[:at] + str(rng.choice(ODD)) + value[at:]
    else:
        tree[key] = rng.choice(ODD)
    return tree


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes that are cut, flipped, filled in, removed, repeated, or all gone."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, count = rng.randrange(len(data) + 1), rng.randrange(1, 40)
        head, some, tail = data[:at], data[at : at + count], data[at + count :]
        flipped = bytes(byte ^ (1 << rng.randrange(8)) for byte in some[:1]) + some[1:]
        ways = [b"", flipped + tail, rng.choice(BYTES) + some + tail, tail, some * 3 + tail]
        ways.append(rng.randbytes(count) + some + tail)
        data = b"" if rng.random() < 0.03 else head + rng.choice(ways)
    return data


def damage(path: Path, rng: random.Random) -> None:
    """Damage a file in place: its values where it is JSON, else, and now and then, its bytes; or remove it."""
    if rng.random() < 0.05:
        path.unlink()
    elif path.suffix in (".json", ".jsonl") and rng.random() < 0.6:
        texts = [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
        at = rng.randrange(len(texts))
        texts[at] = json.dumps(damaged_value(json.loads(texts[at]), rng))
        path.write_text("\n".join(texts) + "\n")
    else:
        path.write_bytes(damaged_bytes(path.read_bytes(), rng))


def in_folder(folder: Path, name: str, rng: random.Random) -> str:
    """A path for an output, sometimes an impossible one."""
    return str(folder / rng.choice([name] * 12 + ["x" * 300, "\udcff", "\x1b[31m", "a\nb", "rows.jsonl/x"]))


def copied(source: Path, to: Path, *without: str) -> Path:
    return shutil.copytree(source, to, ignore=shutil.ignore_patterns(*without))


# Each makes the files of a case in `folder` from what is in `home`, and gives the command line.


def case_rows(rng: random.Random, home: Path, folder: Path) -> list[str]:
    name = rng.choice(["rows", "rows", "\x1b[31mrows"]) + rng.choice([".jsonl"] * 4 + [".csv", ".parquet", ".json"])
    file, rows = folder / name, good_rows(rng.choice((1, 3, 6)))
    if rng.random() < 0.6:
        columns = rng.choice([*COLUMNS, list(rows[0])])
        rows = [{name: row.get(name, row["answer"]) for name in columns} for row in rows]
        rows = [damaged_value(row, rng) if rng.random() < 0.5 else row for row in rows]
    write_rows(file, rows)
    if rng.random() < 0.4:
        file.write_bytes(damaged_bytes(file.read_bytes(), rng))
    tiny, objective = ["--model_name", "tiny"], ["--objective", rng.choice(OBJECTIVES)]
    splitter, out = ["--step_splitter", rng.choice(SPLITTERS)], in_folder(folder, "out.jsonl", rng)
    short = ["--max_steps", "1", "--batch_size", "2", "--save_strategy", "no"]
    commands: list[tuple[int, list[str]]] = [
        (3, ["check", str(file), *splitter, *rng.choice((["--json"], [], []))]),
        (2, ["check", str(file), *tiny, *objective, *splitter]),
        (2, ["inspect", str(file), *tiny, *objective, "--row", str(rng.randrange(3))]),
        (2, ["prepare", str(file), *splitter, "--output_file", out, *rng.choice(([], [], ["--valid_ratio", "0.5"]))]),
        (1, ["inspect", str(file), *tiny, "--html", in_folder(folder, "page.html", rng)]),
    ]
    if rng.random() < 0.02:
        return ["train", "--train_file", str(file), *tiny, *short, *objective, "--output_dir", out]
    return rng.choices([words for _, words in commands], [weight for weight, _ in commands])[0]


def case_config(rng: random.Random, home: Path, folder: Path) -> list[str]:
    file, lines = folder / "config.yaml", CONFIG.splitlines()
    if rng.random() < 0.7:
        at = rng.randrange(len(lines))
        lines[at] = f"{lines[at].partition(':')[0]}: {json.dumps(rng.choice(ODD))}"
        file.write_text("\n".join(lines))
    else:
        file.write_bytes(damaged_bytes(CONFIG.encode(), rng))
    rows = str(home / ("rows.jsonl" if rng.random() < 0.05 else "nothing.jsonl"))
    return ["train", "--config", str(file), "--train_file", rows, "--output_dir", in_folder(folder, "out", rng)]


def case_study(rng: random.Random, home: Path, folder: Path) -> list[str]:
    file = folder / "study.yaml"
    file.write_bytes(damaged_bytes(STUDY.encode(), rng) if rng.random() < 0.7 else STUDY.encode())
    words = ["--mini"] if rng.random() < 0.3 else []
    if rng.random() < 0.5:
        words += ["--set", f"{rng.choice(SET)}={rng.choice(ODD)}"]
    return ["study", str(file), "--dry_run", *words, "--output_dir", in_folder(folder, "out", rng)]


def case_predictions(rng: random.Random, home: Path, folder: Path) -> list[str]:
    file, good = folder / rng.choice(("a.jsonl", "a.json", "\x1b[31mred.jsonl")), home / "scored" / "predictions.jsonl"
    rows = [json.loads(line) for line in good.read_text().splitlines()]
    rows = [damaged_value(row, rng) if rng.random() < 0.4 else row for row in rows]
    file.write_text(json.dumps(rows) if file.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    if rng.random() < 0.3:
        file.write_bytes(damaged_bytes(file.read_bytes(), rng))
    more = rng.choice((["--json"], ["--show", "3"], ["--metric", "gsm8k"]))
    return ["evaluate", "--analyze", str(file), *([str(good)] if rng.random() < 0.3 else []), *more]


def case_report(rng: random.Random, home: Path, folder: Path) -> list[str]:
    run = copied(home / "run", folder / "run", "*.safetensors", "*.pt", "*.pth", "tokenizer.json")
    copied(home / "scored", run / "evaluation-rows")
    copied(home / "states", run / "analysis-rows", "*.png")
    files = sorted(path for path in run.rglob("*") if path.suffix in (".json", ".yaml", ".jsonl", ".csv"))
    for file in rng.sample(files, rng.choice((1, 2, 5))):
        damage(file, rng)
    return ["report", str(run), "--output_file", in_folder(folder, "report.html", rng)]


def case_model(rng: random.Random, home: Path, folder: Path) -> list[str]:
    model, rows = copied(home / "run", folder / "model", "checkpoint-*"), str(home / "rows.jsonl")
    names = "config.json tokenizer.json tokenizer_config.json model.safetensors run.json data_report.json"
    damage(rng.choice([model / name for name in names.split() if (model / name).is_file()]), rng)
    named, metric = ["--model_name", str(model)], rng.choice(("gsm8k", "answer_nll"))
    page = ["inspect", rows, *named, "--html", str(folder / "page.html")]
    states = ["analyze", rows, "--models", str(model), "--layers", "-1", "--output_dir", str(folder / "states")]
    scores = ["evaluate", str(model), rows, "--metric", metric, "--max_new_tokens", "2", "--max_examples", "2"]
    commands = [["check", rows, *named], page, scores, states, page]
    return rng.choices(commands, (5, 2, 1, 1, 1))[0]


def case_checkpoint(rng: random.Random, home: Path, folder: Path) -> list[str]:
    run = copied(home / "run", folder / "run")
    for file in rng.sample(sorted(path for path in run.rglob("*") if path.is_file()), 2):
        damage(file, rng)
    flags = "--model_name tiny --step_jepa --max_steps 2 --save_steps 1 --batch_size 2 --disable_tqdm true".split()
    resume = ["--resume_from_checkpoint", rng.choice(("true", "true", str(run / "checkpoint-1")))]
    return ["train", "--train_file", str(home / "rows.jsonl"), *flags, *resume, "--output_dir", str(run)]


def case_template(rng: random.Random, home: Path, folder: Path) -> list[str]:
    file = folder / "template.jinja"
    file.write_bytes(damaged_bytes(TEMPLATE.encode(), rng))
    words = ["--model_name", "tiny", "--chat_template", str(file)]
    if rng.random() < 0.3:
        words += ["--chat_template_kwargs", json.dumps(damaged_value({"tools": [], "enable_thinking": True}, rng))]
    return [rng.choice(("check", "inspect")), str(home / "rows.jsonl"), *words]


# The command line, the options that get odd values, and those of them that the command line has or that do harm.
SHORT_TRAIN = "train --train_file {few} --model_name tiny --max_steps 1 --output_dir {out}"
SHORT_EVALUATE = "evaluate {run} {rows} --output_file {out} --max_new_tokens 2 --max_examples 1 --metric exact"
LEFT_OUT = "output_dir dataset_num_proc deepspeed fsdp push_to_hub debug report_to ray_scope"
FLAGS = [
    ("check {rows} --model_name tiny", "inspect.check:CheckOptions", "file eval_file"),
    ("inspect {rows} --model_name tiny", "inspect.view:InspectOptions", "file html png"),
    ("prepare {rows} --output_file {out}", "data.options:PrepareOptions", "file output_file num_proc"),
    (SHORT_EVALUATE, "evaluation.options:EvaluateOptions", "output_dir output_file analyze"),
    ("analyze {rows} --models {run} --output_dir {out} --layers -1", "analysis.options:AnalyzeOptions",
     "output_dir"),
    (SHORT_TRAIN, "training.config:JEPAConfig", LEFT_OUT),
    (SHORT_TRAIN, "training.options:RunOptions", "debug_level"),
]  # fmt: skip


def case_flags(rng: random.Random, home: Path, folder: Path) -> list[str]:
    command, options, left_out = rng.choice(FLAGS)
    module, _, name = options.partition(":")
    few = home / ("rows.jsonl" if rng.random() < 0.1 else "nothing.jsonl")
    paths = {"rows": home / "rows.jsonl", "run": home / "run", "few": few, "out": in_folder(folder, "out", rng)}
    words = [word.format(**paths) for word in command.split()]
    for flag in rng.sample(sorted(getattr(import_module(f"stepjepa.{module}"), name).__dataclass_fields__), 2):
        if flag not in left_out.split():
            value = rng.choice(NUMBERS) if rng.random() < 0.7 else str(rng.choice(ODD)).replace("\x00", "")
            words.append(f"--{flag}={value}")
    return words


MAKERS: list[tuple[Callable[[random.Random, Path, Path], list[str]], int]] = [
    (case_rows, 30), (case_config, 8), (case_study, 8), (case_predictions, 12), (case_report, 10), (case_model, 12),
    (case_checkpoint, 2), (case_template, 8), (case_flags, 12),
]  # fmt: skip


def run_case(number: int, home: Path, folder: Path) -> tuple[str, list[str], int | None, list[str]]:
    """Kind, command line, exit status, and what is wrong with how it ended."""
    from stepjepa.cli.main import main

    rng = random.Random(number)
    maker = rng.choices([one for one, _ in MAKERS], [weight for _, weight in MAKERS])[0]
    argv: list[str] = []
    status, out, err = None, io.BytesIO(), io.BytesIO()
    streams = [io.TextIOWrapper(stream, encoding="utf-8", write_through=True) for stream in (out, err)]
    try:
        argv = maker(rng, home, folder)
        os.chdir(folder)
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            status = main(argv)
        trouble = list(wrong_with(status, out.getvalue().decode(), err.getvalue().decode()))
    except BaseException:
        trouble = [traceback.format_exc()]
    return maker.__name__.removeprefix("case_"), argv, status, trouble


def wrong_with(status: int | None, out: str, err: str) -> Iterator[str]:
    """What an end lacks of a good one."""
    if status not in (0, 1, 2):
        yield f"exit status {status}"
    errors = [line for line in err.splitlines() if ": error: " in line]
    if len(errors) != (0 if status == 0 else 1):
        yield f"{len(errors)} error lines with exit status {status}: {err[-600:]!r}"
    for line in errors:
        if len(line) >= LONGEST:
            yield f"an error line of {len(line)} characters"
    if "Traceback" in err + out:
        yield f"a traceback: {err[-3000:]}"
    raw = re.search(r"[^\n\t\r -~\xa0-\U0010ffff]|[\ud800-\udfff\u202a-\u202e\u2028]", out + err)
    if raw is not None:
        yield f"a raw {raw[0]!r} in what is printed"


def run_cases(numbers: range, home: Path) -> tuple[Counter[str], list[str]]:
    """Run cases in forked children; how they ended, and a text for every failure."""
    names = "stepjepa.analysis.run stepjepa.training.run stepjepa.study.run datasets peft pandas "
    names += "matplotlib.backends.backend_agg matplotlib.font_manager sklearn.linear_model scipy.stats"
    for name in names.split():  # so that no child spends its time on them
        with contextlib.suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()  # nor on going through them in search of garbage
    ends: Counter[str] = Counter()
    failures: list[str] = []
    left = list(numbers)
    while left:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
            child = os.fork()
            if child == 0:
                status = 70
                try:
                    in_child(left[:CHUNK], home, Path(temporary))
                    status = 0
                finally:  # whatever it raised must not go on in a copy of the test's process
                    os._exit(status)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            lines = (Path(temporary) / "results.jsonl").read_text().splitlines()
        for number, (kind, argv, status, trouble) in zip(left, map(json.loads, lines), strict=False):
            ends[f"{kind} {status}"] += 1
            if trouble:
                failures.append(f"case {number} ({kind}): {' '.join(trouble)}\n  argv: {argv!r}")
        left = left[len(lines) :]
        if code != 0:
            late = -code in (signal.SIGXCPU, signal.SIGALRM)
            failures.append(f"case {left.pop(0)}: " + ("too slow" if late else f"it ended the process ({code})"))
    return ends, failures


def in_child(numbers: list[int], home: Path, temporary: Path) -> None:
    """Run cases within their limits, and write a line on each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    for handler in logging.getLogger("transformers").handlers:
        if isinstance(handler, logging.StreamHandler):  # whose stream may be that of a test that has ended
            handler.setStream(sys.__stderr__)
    with open(temporary / "results.jsonl", "w") as results:
        for number in numbers:
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SECONDS, resource.RLIM_INFINITY))
            signal.alarm(WAITING)
            folder = temporary / str(number)
            folder.mkdir()
            print(json.dumps(run_case(number, home, folder)), file=results, flush=True)
            shutil.rmtree(folder, ignore_errors=True)


def main_of_fuzz(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    options = parser.parse_args(argv)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
            home_files(home)
        ends, failures = run_cases(range(options.first, options.first + options.cases), home)
    print("\n\n".join(failures))
    print(f"{sum(ends.values())} cases in {time.monotonic() - begin:.0f} s: ", end="")
    print(", ".join(f"{count} {name}" for name, count in sorted(ends.items())))
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    # A Hub that does not answer would take a minute for every name.
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main_of_fuzz())
