"""The commands on the pages are understood by the parsers they are for, and run shortened; code and YAML can be read.

docs/tutorial.md and docs/howto/your_objective.md have tests of their own that run theirs (test_tutorial.py,
test_your_objective.py). Of the README everything runs.
"""

import ast
import importlib
import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pandas
import pytest
import yaml
from transformers import TrainingArguments

from stepjepa.cli.main import main, run
from stepjepa.config.parser import StrictParser
from stepjepa.errors import ConfigError
from stepjepa.inspect.record import KINDS
from stepjepa.modeling.load import load_model, load_tokenizer
from support.answers import harness_stand_in
from support.pages import read_page
from support.rows import step_rows, write

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
INSPECT = ROOT / "docs" / "inspect.md"


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page, of these languages only if any is named."""
    found = re.findall(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block for _, language, block in found if not languages or language in languages]


LINE = re.compile(r"^ *(?:\$ )?(?:(?:srun|torchrun|accelerate launch|python)\b.* -m )?stepjepa (.+)", re.MULTILINE)
# What is not run here, and where it is run.
PARSED_ONLY = {
    "--backend": "needs a server: tests/generation",
    "--ray_workers": "needs Ray: tests/utils/test_ray.py",
    "--draft_tokens": "needs heads: tests/generation/test_drafting.py",
    "--harness": "needs lm-eval: tests/cli/test_harness.py",
    "--fsdp": "needs several accelerators: tests/training/test_fsdp.py",
    "--load_in_4bit": "needs bitsandbytes: tests/modeling/test_quantized.py",
    "report": "needs trained runs: its own tests",
    "demo": "minutes: tests/cli/test_demo.py",
    "doctor": "a minute: tests/cli/test_doctor.py",
}


def commands() -> list[tuple[str, str]]:
    """(page, what follows `stepjepa`) of every command line in a block, continued lines joined."""
    return [
        (str(page.relative_to(ROOT)), command)
        for page in PAGES
        if page.name != "your_objective.md"  # its commands need the file that it shows
        for block in blocks(page, "", "bash", "sh", "shell", "console", "text")
        for command in LINE.findall(re.sub(r"\\\n\s*", " ", block))
    ]


def words_of(command: str) -> list[str]:
    return [word for word in shlex.split(command, comments=True) if word != "..."]


def is_run(page: str, command: str) -> bool:
    return page == "README.md" or page != "docs/tutorial.md" and not PARSED_ONLY.keys() & set(words_of(command))


class Parsed(Exception):
    """Stops a command after its parser."""


@pytest.mark.parametrize(("page", "command"), [one for one in commands() if not is_run(*one)])
def test_it_is_understood(page, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = words_of(command)
    if "--config" in words:
        Path(words[words.index("--config") + 1]).write_text("seed: 1\n")
    values = StrictParser.values

    def parse_only(parser, argv=None):
        values(parser, argv)
        raise Parsed

    monkeypatch.setattr(StrictParser, "values", parse_only)
    with pytest.raises(Parsed):
        run(words[0], words[1:])


# Flags of other programs, of benchmarks and examples, and of the published evaluation.
FOREIGN = set("""address min_nodes nproc_per_node nnodes logdir profile threads clock template notes startswith max_lora_rank
base apply_chat_template use_fsdp fsdp_version help help_all version config quiet""".split())  # fmt: skip


def test_flags_in_the_text_exist(reference):
    known = {*FOREIGN, *TrainingArguments.__dataclass_fields__}
    for parser in reference.parsers().values():
        known |= {*parser.options, *parser.aliases}
    unknown = []
    for page in PAGES:
        text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        text = re.sub(r"that are not here\n.*?\n#", "", text, flags=re.DOTALL)  # of published flags
        spans = re.findall(r"`(?!python|pip|make|git|sbatch|torchrun|accel)([^`\n]+)`", text)
        flags = {flag.replace("-", "_") for span in spans for flag in re.findall(r"(?<![\w-])--([A-Za-z][\w-]*)", span)}
        left = flags - known - {f"no_{name}" for name in known}
        unknown += [f"{page.name}: {flag}" for flag in sorted(left) if not flag.endswith("_")]
    assert not unknown


@pytest.fixture(scope="module")
def made(tmp_path_factory, tokenizer):
    """Files and models of the names that the pages use."""
    folder = tmp_path_factory.mktemp("made")
    rows = [{**row, "rationale": "Add one number after the other."} for row in step_rows(12)]
    raw = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1.\nSo {n + 1}.\n#### {n + 1}"} for n in range(12)]
    answers = [f"First we add the number 1 to {n}.\n\nThe answer is then \\boxed{{{n + 1}}}." for n in range(12)]
    solved = [{"problem": row["question"], "solution": text} for row, text in zip(raw, answers, strict=True)]
    (folder / "shards").mkdir()
    for name in ("data", "train", "valid", "train.valid", "gsm8k", "regex", "huge", "shards/train-0"):
        write(folder / f"{name}.jsonl", rows)
    shutil.copytree(ROOT / "examples", folder / "examples")
    (mia,) = [block for block in blocks(INSPECT) if block.startswith("{")]
    (folder / "mia.jsonl").write_text(mia)
    for name in ("gsm8k_train", "questions", "test", "solved.unsolved"):
        write(folder / f"{name}.jsonl", raw)
    write(folder / "solved.jsonl", [{"question": row["problem"], "response": row["solution"]} for row in solved])
    pandas.DataFrame(solved).to_parquet(folder / "MATH.parquet")
    (folder / "run.yaml").write_text("train_file: data.jsonl\nobjective: step_jepa\nmodel_name: tiny\n")
    (study,) = [block for block in blocks(ROOT / "docs" / "study.md", "yaml") if block.startswith("title:")]
    (folder / "study.yaml").write_text(f"{study}mini: {{base: {{max_steps: 2}}}}\n")
    load_model("tiny", tokenizer, seed=1).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder


SHORT = {
    "train": ["--max_steps", "1", "--save_strategy", "no"],
    "evaluate": ["--max_new_tokens", "2", "--max_examples", "2"],
    "generate": ["--max_new_tokens", "2", "--attempts", "1", "--max_examples", "2"],
    "study": ["--dry_run"],
}


def shortened(words: list[str]) -> list[str]:
    """The command with few steps and tokens, and a model that lies here in place of a large one or one of the Hub."""
    if "--model_name" in words:
        at = words.index("--model_name") + 1
        words[at] = "tiny" if words[at] in ("tiny", "mini") else words[at] if Path(words[at]).exists() else "model"
    words = [name for word in words for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
    if words[0] == "study" and {"--list", "--dry_run"} & set(words) or {"evaluate", "--analyze"} <= set(words):
        return words
    return words + SHORT.get(words[0], [])


RUN = [one for one in commands() if is_run(*one)]
# Their options are read and checked here; that such runs train is proved by tests/training and tests/cli/test_published.py.
TRAININGS = [one for one in RUN if one[0] != "README.md" and words_of(one[1])[0] == "train"]


@pytest.mark.parametrize(("page", "command"), TRAININGS)
def test_the_options_of_a_training_fit_together(page, command, made, monkeypatch, capsys):
    monkeypatch.chdir(made)
    monkeypatch.setattr("stepjepa.training.run.run_training", Mock(side_effect=ConfigError("far enough")))
    assert main(shortened(words_of(command))) == 2 and "error: far enough" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command"), [pytest.param(*one, marks=pytest.mark.long if one in TRAININGS else ()) for one in RUN]
)
def test_it_runs(page, command, made, tmp_path, monkeypatch, capsys):
    if "tensorboard" in command:
        pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "copy"))
    harness_stand_in(monkeypatch)
    words = words_of(command.replace("mmlu,ifeval", "sums,capitals"))
    for word in words:  # the models, predictions and records that earlier commands of the page leave
        run = re.match(r"runs/(?!geometry|study)\w+(?:/checkpoint-\d+)?", word)
        if run and words[0] in ("evaluate", "analyze", "inspect", "report") and not Path(run[0]).exists():
            shutil.copytree("model", run[0])
            if words[0] == "report":
                (Path(run[0]) / "metrics.json").write_text('{"log_history": [{"step": 1, "loss": 1.0}]}')
            if "--analyze" in words:
                main(f"evaluate {run[0]} test.jsonl --metric gsm8k --max_new_tokens 2".split())
    if words[0] in ("prepare", "generate"):
        Path(words[words.index("--output_file") + 1]).unlink(missing_ok=True)
        for made_too in ("train.valid.jsonl", "solved.unsolved.jsonl"):
            if made_too not in words:
                Path(made_too).unlink()
    assert main(shortened(words)) == 0, capsys.readouterr().err


def test_python_names_what_exists_and_yaml_can_be_read():
    assert len(commands()) > 50 and any(command.startswith("train --config") for _, command in commands())
    readme = [command.split()[0] for page, command in commands() if page == "README.md"]
    assert readme == ["check", "train", "train", "report"]
    for page in PAGES:
        assert all(isinstance(yaml.safe_load(block), dict | list) for block in blocks(page, "yaml")), page
        for block in blocks(page, "python"):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stepjepa"):
                    module = importlib.import_module(node.module)
                    names = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                    assert all(find_spec(f"{node.module}.{name}") for name in names), block


def test_the_page_on_inspect(made, tmp_path, monkeypatch):
    """Its Python writes a page, and its table explains every letter."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(made / "data.jsonl", tmp_path)
    (code,) = blocks(INSPECT, "python")
    exec(code, {"tokenizer": load_tokenizer(str(made / "model"))})
    assert read_page(Path("row.html"))["title"] == "row 3 (data.jsonl line 4), step_jepa: 1 * LM + 0.1 * cosine, K = 2"
    table = re.findall(r"^\| `(.)` ", INSPECT.read_text(encoding="utf-8"), re.MULTILINE)
    assert table == [kind.letter for kind in KINDS.values()]
