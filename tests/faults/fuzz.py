"""Damaged files and odd options through every command: it ends with 0, 1 or 2, in one line where it fails, and in time.

``python tests/faults/fuzz.py --cases 5000`` runs the cases 0 to 4999. A case is made from its number alone, so that
``--first N --cases 1`` repeats it. The commands run in children that were forked once everything was imported.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import importlib
import io
import json
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
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # a Hub that does not answer would take a minute for every name
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SECONDS = 20
LONGEST = 500
MEMORY = 24 * 2**30  # address space of a child
CHUNK = 100  # cases of a child
STUDY = """\
title: A study
data: {builtin: {train_rows: 6, select_rows: 2, test_rows: 2}}
base: {model_name: tiny, max_steps: 4, learning_rate: 1e-3}
arms:
  regular: {objective: regular}
  step_jepa: {objective: step_jepa, lbd: 0.5, grid: {predictors: [1, 2]}}
tune: {learning_rate: [1e-3, 1e-2]}
seeds: [1, 2, 3]
controls: [shuffled]
metrics: [answer_nll, gsm8k]
mini: {seeds: [1], base: {max_steps: 2}}
"""
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
SPLITTERS = "auto separator lines numbered connectives headings sentence regex list".split()
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

    write_rows(home / "rows.jsonl", good_rows())
    flags = "--model_name tiny --step_jepa --max_steps 1 --save_steps 1 --batch_size 2 --disable_tqdm true".split()
    must(main(["train", "--train_file", str(home / "rows.jsonl"), *flags, "--output_dir", str(home / "run")]))
    words = ["--metric", "gsm8k", "--max_new_tokens", "4", "--max_examples", "4"]
    must(main(["evaluate", str(home / "run"), str(home / "rows.jsonl"), *words, "--output_dir", str(home / "scored")]))
    states = ["--coordinates", "pca", "--layers", "0", "-1", "--output_dir", str(home / "states")]
    must(main(["analyze", str(home / "rows.jsonl"), "--models", str(home / "run"), *states]))
    (home / "study.yaml").write_text(STUDY)
    (home / "config.yaml").write_text(CONFIG)
    (home / "template.jinja").write_text(TEMPLATE)


def must(status: int) -> None:
    if status != 0:
        raise SystemExit("the files that are to be damaged could not be made")


def good_rows(count: int = 8) -> list[dict[str, Any]]:
    rows = []
    for n in range(1, count + 1):
        answer = f"First, halve {2 * n}.\n\nThat gives {n}.\n\nSo the answer is \\boxed{{{n}}}.\n#### {n}"
        question = f"What is half of {2 * n}?"
        chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        rows.append({"messages": chat, "question": question, "answer": answer, "steps": answer.split("\n\n"), "id": n})
    return rows


def write_rows(path: Path, rows: list[Any]) -> None:
    if path.suffix == ".parquet":
        import datasets

        datasets.Dataset.from_list(rows).to_parquet(str(path))
    elif path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
        path.write_bytes(text.getvalue().encode("utf-8", "surrogatepass"))
    else:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with contextlib.suppress(UnicodeEncodeError):
            path.write_bytes(text.encode())
            return
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def damaged_value(tree: Any, rng: random.Random) -> Any:
    """A copy of nested lists and objects with one value replaced, removed or added."""
    tree = copy.deepcopy(tree)
    node, parent, key = tree, None, None
    while isinstance(node, (dict, list)) and node and rng.random() < 0.85:
        parent, key = node, rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        node = node[key]
    if parent is None:
        return rng.choice(ODD)
    draw = rng.random()
    if draw < 0.15:
        del parent[key]
    elif draw < 0.25 and isinstance(parent, dict):
        parent[str(rng.choice(ODD))[:50]] = parent.pop(key)
    elif draw < 0.4 and isinstance(node, str):
        place = rng.randrange(len(node) + 1)
        parent[key] = node[:place] + str(rng.choice(ODD)) + node[place:]
    else:
        parent[key] = copy.deepcopy(rng.choice(ODD))
    return tree


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes that are cut, flipped, emptied, filled in, or doubled."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        place, more = rng.randrange(len(data) + 1), rng.randrange(1, 40)
        kind = rng.randrange(7)
        if kind == 0:
            data = data[:place]
        elif kind == 1 and data:
            flipped = bytearray(data)
            flipped[place % len(data)] ^= 1 << rng.randrange(8)
            data = bytes(flipped)
        elif kind == 2:
            data = data[:place] + rng.choice(BYTES) + data[place:]
        elif kind == 3:
            data = data[:place] + data[place + more :]
        elif kind == 4:
            data = data[:place] + data[place : place + more] * 3 + data[place + more :]
        elif kind == 5:
            data = data[:place] + bytes(rng.randrange(256) for _ in range(more)) + data[place:]
        elif rng.random() < 0.2:
            data = b""
    return data


def damage(path: Path, rng: random.Random) -> None:
    """Damage a file in place: its values where it is JSON, else, and now and then, its bytes."""
    if rng.random() < 0.05:
        path.unlink()
        return
    if path.suffix in (".json", ".jsonl") and rng.random() < 0.6:
        text = path.read_text()
        if path.suffix == ".json":
            path.write_text(json.dumps(damaged_value(json.loads(text), rng)))
        else:
            lines = text.splitlines()
            place = rng.randrange(len(lines))
            lines[place] = json.dumps(damaged_value(json.loads(lines[place]), rng))
            path.write_text("\n".join(lines) + "\n")
        return
    path.write_bytes(damaged_bytes(path.read_bytes(), rng))


def flag_values(rng: random.Random, options: type, skip: str = "") -> list[str]:
    """A few options of a command with odd values."""
    words: list[str] = []
    numbers = ["-1", "0", "1", "-inf", "inf", "nan", "1e400", "10" * 15, "0.5", "x", "none"]
    for name in rng.sample(list(options.__dataclass_fields__), 2):
        if name not in skip.split():
            value = rng.choice(numbers) if rng.random() < 0.7 else str(rng.choice(ODD)).replace("\x00", "")
            words.append(f"--{name}={value}")
    return words


def in_folder(folder: Path, name: str, rng: random.Random) -> str:
    """A path for an output, sometimes an impossible one."""
    return str(folder / rng.choice([name] * 12 + ["x" * 300, "\udcff", "\x1b[31m", "a\nb", "rows.jsonl/x"]))


# Each makes the files of a case in `folder` from what is in `home`, and gives the command line.
def case_rows(rng: random.Random, home: Path, folder: Path) -> list[str]:
    rows, suffix = good_rows(rng.choice((1, 3, 6))), rng.choice([".jsonl"] * 4 + [".csv", ".parquet", ".json"])
    file = folder / f"{rng.choice(['rows', 'rows', chr(27) + '[31mrows'])}{suffix}"
    if rng.random() < 0.6:
        keep = rng.choice(
            (["messages"], ["question", "answer"], ["text"], ["question", "answer", "steps"], list(rows[0]))
        )
        rows = [{name: row.get(name, row["answer"]) for name in keep} for row in rows]
        rows = [damaged_value(row, rng) if rng.random() < 0.5 else row for row in rows]
    try:
        write_rows(file, rows)
    except Exception:  # no Parquet or CSV file can hold such rows
        file = folder / "rows.jsonl"
        write_rows(file, rows)
    if rng.random() < 0.4:
        file.write_bytes(damaged_bytes(file.read_bytes(), rng))
    objective = ["--objective", rng.choice(("llm_jepa", "step_jepa", "split", "semantic_tube", "regular"))]
    splitter = ["--step_splitter", rng.choice(SPLITTERS)]
    kind = rng.randrange(10)
    if kind < 3:
        return ["check", str(file), *splitter, *(["--json"] if rng.random() < 0.3 else ["--show", "2"])]
    if kind < 5:
        return ["check", str(file), "--model_name", "tiny", *objective, *splitter]
    if kind < 7:
        return ["inspect", str(file), "--model_name", "tiny", *objective, "--row", str(rng.randrange(3))]
    if kind < 9:
        how = ["--step_splitter", rng.choice(SPLITTERS[:-1]), "--output_file", in_folder(folder, "out.jsonl", rng)]
        return ["prepare", str(file), *how, *(["--valid_ratio", "0.5"] if rng.random() < 0.3 else [])]
    words = ["--model_name", "tiny", "--max_steps", "1", "--batch_size", "2", "--save_strategy", "no"]
    if rng.random() < 0.2:
        return ["train", "--train_file", str(file), *words, *objective, "--output_dir", in_folder(folder, "out", rng)]
    return ["inspect", str(file), "--model_name", "tiny", "--html", in_folder(folder, "page.html", rng)]


def case_config(rng: random.Random, home: Path, folder: Path) -> list[str]:
    file = folder / "config.yaml"
    file.write_bytes(damaged_bytes(CONFIG.encode(), rng))
    if rng.random() < 0.7:
        lines = CONFIG.splitlines()
        place = rng.randrange(len(lines))
        lines[place] = f"{lines[place].partition(':')[0]}: {json.dumps(rng.choice(ODD))}"
        file.write_text("\n".join(lines))
    rows = str(home / ("rows.jsonl" if rng.random() < 0.05 else "nothing.jsonl"))
    return ["train", "--config", str(file), "--train_file", rows, "--output_dir", in_folder(folder, "out", rng)]


def case_study(rng: random.Random, home: Path, folder: Path) -> list[str]:
    file = folder / "study.yaml"
    file.write_bytes(damaged_bytes(STUDY.encode(), rng) if rng.random() < 0.7 else STUDY.encode())
    words = ["--mini"] if rng.random() < 0.3 else []
    if rng.random() < 0.5:
        keys = (
            "base.max_steps seeds mini.seeds arms.regular.lbd jobs alpha data blocks.a.seeds tune.lbd base a..b".split()
        )
        words += ["--set", f"{rng.choice(keys)}={rng.choice(ODD)}"]
    return ["study", str(file), "--dry_run", *words, "--output_dir", in_folder(folder, "out", rng)]


def case_predictions(rng: random.Random, home: Path, folder: Path) -> list[str]:
    file = folder / rng.choice(("predictions.jsonl", "predictions.json", "\x1b[31mred.jsonl"))
    rows = [json.loads(line) for line in (home / "scored" / "predictions.jsonl").read_text().splitlines()]
    rows = [damaged_value(row, rng) if rng.random() < 0.4 else row for row in rows]
    file.write_text(json.dumps(rows) if file.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    if rng.random() < 0.3:
        file.write_bytes(damaged_bytes(file.read_bytes(), rng))
    other = [str(home / "scored" / "predictions.jsonl")] if rng.random() < 0.3 else []
    return [
        "evaluate",
        "--analyze",
        str(file),
        *other,
        *rng.choice((["--json"], ["--show", "3"], ["--metric", "gsm8k"])),
    ]


def case_report(rng: random.Random, home: Path, folder: Path) -> list[str]:
    run = folder / "run"
    shutil.copytree(
        home / "run", run, ignore=shutil.ignore_patterns("*.safetensors", "*.pt", "*.pth", "tokenizer.json")
    )
    shutil.copytree(home / "scored", run / "evaluation-rows")
    shutil.copytree(home / "states", run / "analysis-rows", ignore=shutil.ignore_patterns("*.png"))
    files = sorted(p for p in run.rglob("*") if p.suffix in (".json", ".yaml", ".jsonl", ".csv"))
    for file in rng.sample(files, rng.choice((1, 2, 5))):
        damage(file, rng)
    return ["report", str(run), "--output_file", in_folder(folder, "report.html", rng)]


def case_model(rng: random.Random, home: Path, folder: Path) -> list[str]:
    model = folder / "model"
    shutil.copytree(home / "run", model, ignore=shutil.ignore_patterns("checkpoint-*"))
    names = "config.json tokenizer.json tokenizer_config.json model.safetensors run.json data_report.json"
    files = [model / name for name in names.split() if (model / name).is_file()]
    damage(rng.choice(files), rng)
    rows = str(home / "rows.jsonl")
    kind = rng.randrange(10)
    if kind < 5:
        return ["check", rows, "--model_name", str(model)]
    if kind < 7:
        return ["inspect", rows, "--model_name", str(model), "--no_run_model", "--html", str(folder / "page.html")]
    if kind < 8:
        words = ["--metric", rng.choice(("gsm8k", "answer_nll")), "--max_new_tokens", "2", "--max_examples", "2"]
        return ["evaluate", str(model), rows, *words]
    if kind < 9:
        return [
            "analyze",
            "--energy",
            rows,
            "--model_name",
            str(model),
            "--predictors",
            "0",
            "--output_file",
            str(folder / "e.jsonl"),
        ]
    return ["inspect", rows, "--model_name", str(model), "--html", str(folder / "page.html")]


def case_checkpoint(rng: random.Random, home: Path, folder: Path) -> list[str]:
    run = folder / "run"
    shutil.copytree(home / "run", run)
    for file in rng.sample(sorted(p for p in run.rglob("*") if p.is_file()), 2):
        damage(file, rng)
    flags = "--model_name tiny --step_jepa --max_steps 2 --save_steps 1 --batch_size 2 --disable_tqdm true".split()
    resume = rng.choice(("true", "true", str(run / "checkpoint-1")))
    words = [*flags, "--resume_from_checkpoint", resume, "--output_dir", str(run)]
    return ["train", "--train_file", str(home / "rows.jsonl"), *words]


def case_states(rng: random.Random, home: Path, folder: Path) -> list[str]:
    states = folder / "states"
    shutil.copytree(home / "states", states, ignore=shutil.ignore_patterns("*.png"))
    damage(rng.choice(sorted(states.iterdir())), rng)
    output = ["--output_dir", in_folder(folder, "out", rng)]
    if rng.random() < 0.7:
        return ["analyze", "--from_states", str(states), *output, "--map_layers", rng.choice(("0", "-1", "9"))]
    run = folder / "run"
    shutil.copytree(home / "run", run, ignore=shutil.ignore_patterns("*.safetensors", "*.pt", "*.pth"))
    damage(run / "metrics.json", rng)
    return ["analyze", "--runs", str(run), *output]


def case_template(rng: random.Random, home: Path, folder: Path) -> list[str]:
    file = folder / "template.jinja"
    file.write_bytes(damaged_bytes(TEMPLATE.encode(), rng))
    words = ["--chat_template", str(file)]
    if rng.random() < 0.3:
        words += ["--chat_template_kwargs", json.dumps(damaged_value({"tools": [], "enable_thinking": True}, rng))]
    command = rng.choice((["check", str(home / "rows.jsonl")], ["inspect", str(home / "rows.jsonl")]))
    return [*command, "--model_name", "tiny", *words]


def case_flags(rng: random.Random, home: Path, folder: Path) -> list[str]:
    from stepjepa.analysis.options import AnalyzeOptions, EnergyOptions
    from stepjepa.cli.check import CheckOptions
    from stepjepa.cli.inspect import InspectOptions
    from stepjepa.data.prepare import PrepareOptions
    from stepjepa.evaluation.options import EvaluateOptions
    from stepjepa.training.config import JEPAConfig
    from stepjepa.training.options import RunOptions

    rows, out = str(home / "rows.jsonl"), in_folder(folder, "out.jsonl", rng)
    kind = rng.randrange(8)
    if kind < 1:
        return ["check", rows, "--model_name", "tiny", *flag_values(rng, CheckOptions, "file eval_file")]
    if kind < 2:
        return ["inspect", rows, "--model_name", "tiny", *flag_values(rng, InspectOptions, "file html png")]
    if kind < 3:
        return ["prepare", rows, "--output_file", out, *flag_values(rng, PrepareOptions, "file output_file num_proc")]
    if kind < 4:
        words = ["--output_file", out, "--max_new_tokens", "2", "--max_examples", "1", "--metric", "exact"]
        return [
            "evaluate",
            str(home / "run"),
            rows,
            *words,
            *flag_values(rng, EvaluateOptions, "output_dir output_file analyze"),
        ]
    if kind < 5:
        words = ["--output_file", out, "--max_examples", "2", *flag_values(rng, EnergyOptions, "questions output_file")]
        return ["analyze", "--energy", rows, "--model_name", str(home / "run"), *words]
    if kind < 6:
        words = ["--models", str(home / "run"), "--output_dir", str(folder / "out"), "--layers", "-1"]
        return ["analyze", rows, *words, *flag_values(rng, AnalyzeOptions, "runs from_states base_model output_dir")]
    few = str(home / ("rows.jsonl" if rng.random() < 0.1 else "nothing.jsonl"))
    flags = flag_values(
        rng, JEPAConfig, "output_dir dataset_num_proc deepspeed fsdp push_to_hub debug report_to ray_scope"
    )
    words = [*flag_values(rng, RunOptions, "debug_level"), *flags, "--output_dir", str(folder / "out")]
    return ["train", "--train_file", few, "--model_name", "tiny", "--max_steps", "1", *words]


Maker = Callable[[random.Random, Path, Path], list[str]]
MAKERS: list[tuple[Maker, int]] = [
    (case_rows, 30),
    (case_config, 8),
    (case_study, 8),
    (case_predictions, 12),
    (case_report, 10),
    (case_model, 12),
    (case_checkpoint, 2),
    (case_states, 4),
    (case_template, 8),
    (case_flags, 12),
]


class TooLong(BaseException):
    """No `Exception`, so that nothing on the way takes it for a failure of its own."""


def run_case(number: int, home: Path, folder: Path) -> tuple[str, list[str], int | None, list[str]]:
    """Kind, command line, exit status, and what is wrong with how it ended."""
    from stepjepa.cli.main import main

    rng = random.Random(number)
    maker = rng.choices([one for one, _ in MAKERS], [weight for _, weight in MAKERS])[0]
    folder.mkdir(parents=True)
    try:
        argv = maker(rng, home, folder)
    except Exception:
        return maker.__name__, [], None, [traceback.format_exc()]
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]

    def stop(*_: object) -> None:
        raise TooLong

    # Of this process, so that a busy machine is no fault; nothing may wait for ever either.
    for number, timer, seconds in (
        (signal.SIGPROF, signal.ITIMER_PROF, SECONDS),
        (signal.SIGALRM, signal.ITIMER_REAL, 180),
    ):
        signal.signal(number, stop)
        signal.setitimer(timer, seconds)
    status, trouble = None, []
    try:
        os.chdir(folder)
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            status = main(argv)
    except TooLong:
        trouble.append(f"took more than {SECONDS} s")
    except BaseException:
        trouble.append(traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
    if not trouble:
        trouble = list(wrong_with(status, out, err))
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


def run_cases(numbers: range, home: Path, stop_at: float = float("inf")) -> tuple[Counter[str], list[str]]:
    """Run cases in forked children; how they ended, and a text for every failure."""
    ends: Counter[str] = Counter()
    failures: list[str] = []
    left = list(numbers)
    while left and time.monotonic() < stop_at:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            work(left[:CHUNK], home, writing)
        os.close(writing)
        with open(reading, encoding="utf-8", errors="backslashreplace") as lines:
            for line in lines:
                number, kind, status, trouble = json.loads(line)
                left.remove(number)
                ends[f"{kind} {status}"] += 1
                if trouble:
                    failures.append(f"case {number} ({kind}): {trouble}")
        code = os.waitpid(child, 0)[1]
        if code != 0:
            failures.append(f"case {left[0]}: it ended the process (status {code})")
            left = left[1:]
    return ends, failures


def load_everything() -> None:
    """Import what the commands import, so that no child spends its time on it."""
    names = "stepjepa.analysis.energy stepjepa.analysis.run stepjepa.training.run stepjepa.study.run datasets peft "
    names += "matplotlib.backends.backend_agg matplotlib.font_manager sklearn.linear_model scipy.stats"
    for name in names.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def work(numbers: list[int], home: Path, writing: int) -> None:
    """In a child: run cases and write a line on each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    with open(writing, "w", encoding="utf-8") as lines:
        for number in numbers:
            folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
            kind, argv, status, trouble = run_case(number, home, folder / "case")
            shutil.rmtree(folder, ignore_errors=True)
            words = f"{' '.join(trouble)}\n  argv: {argv!r}" if trouble else ""
            print(json.dumps([number, kind, status, words]), file=lines, flush=True)
    os._exit(0)


def main_of_fuzz(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--keep", help="folder for the files that are damaged; made where it is not there")
    options = parser.parse_args(argv)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(options.keep or temporary) / "home"
        if not home.is_dir():
            home.mkdir(parents=True)
            with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
                home_files(home)
        load_everything()
        ends, failures = run_cases(range(options.first, options.first + options.cases), home)
    for failure in failures:
        print(failure, end="\n\n")
    print(f"{sum(ends.values())} cases in {time.monotonic() - begin:.0f} s: ", end="")
    print(", ".join(f"{count} {name}" for name, count in sorted(ends.items())))
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main_of_fuzz())
