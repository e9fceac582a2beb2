"""The demo: the same small model with and without the JEPA objective, on a built-in task, side by side.

All arms share data, seed, initialisation, order and number of examples; each is a process, so that they run at once.
Answers are decoded greedily, and the task says whether they are right.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stepjepa.config.option import Names, check_fields, option
from stepjepa.data.tasks import generate_split, make_task, task_class
from stepjepa.errors import ConfigError, StepJepaError
from stepjepa.objectives.regular import Regular
from stepjepa.objectives.step_jepa import StepJEPA
from stepjepa.utils.files import check_writable, json_bytes, read_json, write_json, write_whole
from stepjepa.utils.terminal import say
from stepjepa.utils.text import PAGE, text_table, wrapped, written

_RESULT = "demo_result.json"
Values = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What is shown of a task.

    Attributes:
        difficulty: options of the task.
        arms: options of training that each has, by name: plain, with the objective, and perhaps a control of that.
        base: options that all share.
        max_new_tokens: enough for the longest solution.
    """

    train_rows: int
    batch_size: int
    learning_rate: float
    arms: Mapping[str, Values]
    model: str = "tiny"
    difficulty: Values = field(default_factory=dict)
    base: Values = field(default_factory=dict)
    max_new_tokens: int = 160


_PLAIN, _STEP = Values(objective=Regular.name), Values(objective=StepJEPA.name, predictors=2, lbd=0.1)
_HEADS = Values(_STEP, step_pairs="plan", horizon=3, predictors=0, predictor_head="mlp", lbd=1.0)
_PLAN = Values(_HEADS, jepa_loss="infonce", infonce_temperature=0.1)
SETTINGS = {
    "arithmetic": Setting(
        16_000, 8, 2e-3, {Regular.name: _PLAIN, StepJEPA.name: _STEP}, base=Values(lr_scheduler_type="cosine")
    ),
    "path_star": Setting(
        108_800,
        64,
        2e-3,
        {Regular.name: _PLAIN, StepJEPA.name: _PLAN, "shuffled": Values(_PLAN, control="shuffled")},
        model="micro",
        difficulty=Values(path_length=4, nodes=9),
        base=Values(weight_decay=0.1, lr_scheduler_type="constant_with_warmup"),
        max_new_tokens=8,
    ),
}


@dataclass
class DemoOptions:
    """Options of ``stepjepa demo``. Those of arithmetic were chosen on `regular` alone (docs/demo.md)."""

    output_dir: str = option("runs/demo", "Folder for the models, metrics.json and report.html.", "demo")
    overwrite_output_dir: bool = option(False, "Remove what an earlier demo left in output_dir.", "demo")
    seed: int = option(0, "Seed of the data, the initialisation and the order.", "demo")
    task: str = option("arithmetic", "The built-in task.", "demo", choices=tuple(SETTINGS))
    train_rows: int | None = option(
        None, "Generated problems to train on, once each. Default: 16000 of arithmetic.", "demo", at_least=1
    )
    test_rows: int = option(300, "Held-out problems to evaluate on.", "demo", at_least=1)
    batch_size: int | None = option(None, "Examples an optimizer step. Default: the task's.", "demo", at_least=1)
    learning_rate: float | None = option(None, "Peak learning rate of all arms. Default: the task's.", "demo")
    predictors: int | None = option(None, "K, predictor tokens of the step_jepa arm. Default: the task's.", "demo")
    lbd: float | None = option(None, "lambda of the step_jepa arm. Default: the task's.", "demo")

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def setting(self) -> Setting:
        """The task's, with the values that are given; those of the method for every arm that has them."""
        own, given = SETTINGS[self.task], {key: value for key, value in vars(self).items() if value is not None}
        size = {key: given[key] for key in given.keys() & vars(own)}
        arms = {name: {**arm, **{key: given[key] for key in given.keys() & arm}} for name, arm in own.arms.items()}
        return replace(own, **size, arms=arms)


_NAME = Names(DemoOptions)


@dataclass
class ArmResult:
    """What one arm came to on the held-out problems.

    Attributes:
        accuracy, stopped: shares of answers that are right, and that ended by themselves.
        correct: for every problem, whether it was right.
        lm_loss: nats per token of the held-out solutions.
        jepa_loss: None for plain training, and for a loss that is not the cosine.
        cosine, shuffled_cosine: means over source and target views, matched and with targets shuffled. Plain training is
            read at the last token of the source, the others at their last predictor or after their head.
        history: the Trainer's log.
    """

    accuracy: float
    correct: list[bool]
    stopped: float
    lm_loss: float
    jepa_loss: float | None
    cosine: float
    shuffled_cosine: float
    target_std: float
    effective_rank: float
    examples_per_second: float
    train_seconds: float
    eval_seconds: float
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)


# Lines of the table: name, attribute of an arm, format.
_ROWS = (
    ("accuracy", "accuracy", ".1%"),
    ("LM loss", "lm_loss", ".4f"),
    ("JEPA loss", "jepa_loss", ".4f"),
    ("cosine of source and target", "cosine", ".4f"),
    ("  with targets shuffled", "shuffled_cosine", ".4f"),
    ("target std", "target_std", ".3f"),
    ("effective rank of targets", "effective_rank", ".1f"),
    ("answers that stop", "stopped", ".1%"),
    ("examples/s", "examples_per_second", ".0f"),
)


@dataclass
class DemoResult:
    """All arms by name, and their report; `str` of it is the table, and what it does and does not say."""

    options: DemoOptions
    arms: dict[str, ArmResult]
    page: Path | None = None

    def __str__(self) -> str:
        from stepjepa.evaluation.intervals import conclusion, paired_counts, paired_difference

        lines = [f"{self.options.test_rows} held-out problems, seed {self.options.seed}"]
        rows = [[name, *(written(getattr(arm, of), form) for arm in self.arms.values())] for name, of, form in _ROWS]
        spent = (f"{arm.train_seconds:.0f} + {arm.eval_seconds:.0f} s" for arm in self.arms.values())
        lines += text_table(["", *self.arms], [*rows, ["training + evaluation", *spent]])
        plain, jepa, *controls = self.arms
        counts = {
            other: paired_counts(self.arms[other].correct, self.arms[jepa].correct) for other in (plain, *controls)
        }
        gains = {other: paired_difference(*counted) for other, counted in counts.items()}
        lines.append("")
        for other, gain in gains.items():
            control = " (the control)" if other in controls else ""
            lines.append(f"{jepa} - {other}{control}: {gain.percent('+', 'points')}, 95 % interval over the problems.")
        lines += [
            *wrapped(conclusion(gains[plain], plain, jepa, bool(controls), counts=counts[plain]), PAGE),
            "If the cosine is no higher than with targets shuffled, the states have collapsed.",
            f"'{plain}' is read at the last token of the source.",
            f"Written to {self.options.output_dir}: {'/ and '.join(self.arms)}/ (models), metrics.json",
        ]
        return "\n".join([*lines, f"All of it on a page: {self.page}"] if self.page else lines)


def demo(options: DemoOptions) -> DemoResult:
    """Generate the data, train and evaluate all arms, write everything to `options.output_dir`.

    Raises:
        ConfigError: the folder holds something.
        StepJepaError: an arm failed; its own message was printed.
    """
    output = Path(options.output_dir)
    check_writable(output)
    if output.is_dir() and any(output.iterdir()) and not options.overwrite_output_dir:
        raise ConfigError(
            f"--{_NAME.output_dir} {output}: the folder is not empty; give another one, or start over with "
            f"--{_NAME.overwrite_output_dir} (make demo ARGS=--{_NAME.overwrite_output_dir})"
        )
    setting = options.setting
    task = make_task(options.task, **setting.difficulty)
    train, test = generate_split(setting.train_rows, options.test_rows, seed=options.seed, task=task)
    output.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("test", test)):
        write_whole(output / f"{name}.jsonl", (json_bytes(row) + b"\n" for row in rows))
    say(f"{len(train)} problems to train on, {len(test)} held out, seed {options.seed}; all arms at once\n")
    _run_arms(options)
    arms = {arm: ArmResult(**read_json(output / arm / _RESULT)) for arm in setting.arms}
    write_json(output / "metrics.json", {"options": asdict(options), **{k: asdict(v) for k, v in arms.items()}})
    return DemoResult(options, arms)


def _run_arms(options: DemoOptions) -> None:
    """Start a process for each arm and print its lines, with the arm's name in front."""
    from stepjepa.study.stages import kill_group, start_process  # not for --help

    # A plain process takes one GPU at most; so small a model is as fast without.
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // 2)), "CUDA_VISIBLE_DEVICES": ""}
    arms, given = options.setting.arms, json.dumps(asdict(options))
    processes = {arm: start_process(["stepjepa.study.demo", arm, given], environment, subprocess.PIPE) for arm in arms}

    def pass_on(arm: str, process: subprocess.Popen[bytes]) -> None:
        for line in process.stdout or ():
            say(f"{arm:<{max(map(len, arms))}}  {line.decode('utf-8', 'replace').rstrip()}")
        process.wait()

    readers = [threading.Thread(target=pass_on, args=pair) for pair in processes.items()]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    finally:
        for process in processes.values():
            kill_group(process)
    failed = [arm for arm, process in processes.items() if process.returncode != 0]
    if failed:
        raise StepJepaError(f"the arm {failed[0]} failed; its last lines are above")


def run_arm(arm: str, options: DemoOptions) -> None:
    """Train and evaluate one arm on the data that the demo has written, and leave its result next to the model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from stepjepa.data.chat import ChatRenderer
    from stepjepa.generation.local import generate_batch
    from stepjepa.training.config import JEPAConfig
    from stepjepa.training.run import run_training
    from stepjepa.training.run_options import RunOptions

    disable_progress_bar()
    output = Path(options.output_dir)
    test = [json.loads(line) for line in (output / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    setting, solves = options.setting, task_class(options.task).solves
    method, steps = setting.arms[arm], math.ceil(setting.train_rows / setting.batch_size)
    config = JEPAConfig(
        output_dir=str(output / arm),
        overwrite_output_dir=options.overwrite_output_dir,
        per_device_train_batch_size=setting.batch_size,
        num_train_epochs=1,
        learning_rate=setting.learning_rate,
        adam_beta2=0.95,
        warmup_steps=max(1, steps // 20),
        logging_steps=max(1, steps // 50),
        save_strategy="no",
        disable_tqdm=True,
        seed=options.seed,
        **{**setting.base, **method},
    )
    begin = time.perf_counter()
    done = run_training(RunOptions(train_file=[str(output / "train.jsonl")], model_name=setting.model), config)
    trainer, metrics = done.trainer, done.metrics
    assert trainer is not None, "a run that does not resume is never complete before it starts"
    trained = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(output / arm)
    tokenizer = AutoTokenizer.from_pretrained(output / arm)
    renderer = ChatRenderer(tokenizer)
    prompts = [tokenizer(renderer.prompt(row["messages"][:-1]), add_special_tokens=False)["input_ids"] for row in test]
    answers = generate_batch(model, tokenizer, prompts, setting.max_new_tokens, batch_size=100)
    correct = [solves(row, answer.text) for answer, row in zip(answers, test, strict=True)]
    states = _held_out(trainer, tokenizer, test, list(setting.arms.values())[1])
    result = ArmResult(
        accuracy=sum(correct) / len(correct),
        correct=correct,
        stopped=sum(answer.stopped for answer in answers) / len(answers),
        jepa_loss=1 - states["cosine"] if _NAME.lbd in method and config.jepa_loss == "cosine" else None,
        examples_per_second=setting.train_rows / metrics["train_runtime"],
        train_seconds=trained - begin,
        eval_seconds=time.perf_counter() - trained,
        history=trainer.state.log_history,
        **states,
    )
    write_json(output / arm / _RESULT, asdict(result))


def _held_out(trainer: Any, tokenizer: Any, test: list[dict[str, Any]], method: Values) -> dict[str, float]:
    """LM loss, cosines and collapse signs on the held-out problems, with the pairs of `method` in all arms."""
    import torch
    import torch.nn.functional as F

    from stepjepa.training.config import JEPAConfig
    from stepjepa.training.datasets import encode
    from stepjepa.training.metrics import collapse_signs

    own = {**method, _NAME.predictors: method[_NAME.predictors] if trainer.setup.predictor_ids else 0}
    store, _ = encode(test, tokenizer, JEPAConfig(output_dir=trainer.args.output_dir, report_to="none", **own))
    model = trainer.model.eval()
    collator = replace(trainer.data_collator, shuffle_targets=False)
    lm, labels, sources, targets = 0.0, 0, [], []
    with torch.no_grad():
        for start in range(0, len(store), 50):
            examples = [store[i] for i in range(start, min(start + 50, len(store)))]
            batch = collator(examples).to(model.device)
            output = model(batch=batch)
            lm, labels = lm + float(output.lm_loss_sum), labels + batch.label_ids.numel()
            sources.append(output.source_states.float())
            targets.append(output.target_states.float())
    source, target = torch.cat(sources), torch.cat(targets)
    return {
        "lm_loss": lm / max(labels, 1),
        "cosine": float(F.cosine_similarity(source, target, dim=-1).mean()),
        "shuffled_cosine": float(F.cosine_similarity(source, target.roll(1, dims=0), dim=-1).mean()),
        "target_std": math.nan,
        "effective_rank": math.nan,
        **collapse_signs([target]),
    }


if __name__ == "__main__":  # one arm
    from stepjepa.study.stages import exit_status

    sys.exit(exit_status("demo", lambda: run_arm(sys.argv[1], DemoOptions(**json.loads(sys.argv[2])))))
