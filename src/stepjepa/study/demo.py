"""The demo: `regular` and `step_jepa` on built-in arithmetic, the same seed, the same examples, side by side.

The steps of so small a model gain nothing from a second thread, so each arm is a process of its own with half the cores.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from stepjepa.analysis.plots import plot_curves
from stepjepa.data.answers import answers_match, final_answer
from stepjepa.data.chat import ChatRenderer
from stepjepa.data.examples import ExampleStore
from stepjepa.data.synthetic import generate_split
from stepjepa.errors import ConfigError, StepJepaError
from stepjepa.generation.local import generate_batch
from stepjepa.study.demo_options import ARMS, DemoOptions
from stepjepa.training.config import JEPAConfig
from stepjepa.training.encoding import encode
from stepjepa.training.meter import collapse_signs
from stepjepa.training.run import run_training
from stepjepa.training.run_options import RunOptions
from stepjepa.training.trainer import JEPATrainer
from stepjepa.utils.files import check_writable, json_bytes, write_json, write_whole
from stepjepa.utils.terminal import print_text, say

# Long enough for the longest solution of the generator's default difficulty.
MAX_NEW_TOKENS = 160
RESULT = "demo_result.json"


@dataclass
class ArmResult:
    """What one arm came to on the held-out problems.

    Attributes:
        accuracy: share of right final answers under greedy decoding.
        correct: for every problem, whether it was right.
        stopped: share of answers that ended by themselves.
        lm_loss: nats per token of the held-out solutions.
        jepa_loss: held-out JEPA loss, None for `regular`.
        cosine, shuffled_cosine: mean cosine of source and target views, matched and with targets shuffled. `regular` is
            read at the last token of step 1, `step_jepa` at its last predictor.
        target_std, effective_rank: collapse signs of the target states.
        examples_per_second, train_seconds, eval_seconds: cost.
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


def run_demo(options: DemoOptions) -> dict[str, ArmResult]:
    """Generate the data, train and evaluate both arms, write everything to `options.output_dir`.

    Raises:
        ConfigError: the folder holds something.
    """
    output = Path(options.output_dir)
    check_writable(output)
    if output.is_dir() and any(output.iterdir()) and not options.overwrite_output_dir:
        raise ConfigError(
            f"--output_dir {output}: the folder is not empty; give another one, or start over with "
            "--overwrite_output_dir (make demo ARGS=--overwrite_output_dir)"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "the demo draws its curves with matplotlib; install it with: pip install 'stepjepa[analysis]'"
        )
    train, test = generate_split(options.train_rows, options.test_rows, seed=options.seed)
    output.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("test", test)):
        write_rows(output / f"{name}.jsonl", rows)
    say(f"{len(train)} problems to train on, {len(test)} held out, seed {options.seed}; both arms at once\n")
    run_arms(options)
    results = {arm: read_result(output / arm / RESULT) for arm in ARMS}
    write_json(output / "metrics.json", {"options": asdict(options), **{k: asdict(v) for k, v in results.items()}})
    plot_curves({arm: r.history for arm, r in results.items()}, output / "curves.png", "stepjepa demo")
    return results


def run_arms(options: DemoOptions) -> None:
    """Start a process for each arm and pass its lines on, with the arm's name in front.

    Raises:
        StepJepaError: an arm failed; its own message stands above.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // 2))}
    processes = {}
    for arm in ARMS:
        command = [sys.executable, "-m", "stepjepa.study.child", "demo", arm, json.dumps(asdict(options))]
        processes[arm] = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A plain process takes one GPU at most; so small a model is as fast without.
            env={**environment, "CUDA_VISIBLE_DEVICES": ""},
        )
    readers = [threading.Thread(target=pass_on, args=(arm, process)) for arm, process in processes.items()]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
            process.wait()
    failed = [arm for arm, process in processes.items() if process.returncode != 0]
    if failed:
        raise StepJepaError(f"the arm {failed[0]} failed; its last lines stand above")


def pass_on(arm: str, process: subprocess.Popen[str]) -> None:
    """Print what a process prints, line by line."""
    assert process.stdout is not None
    width = max(map(len, ARMS))
    for line in process.stdout:
        print_text(f"{arm:<{width}}  {line.rstrip()}")


def run_one_arm(arm: str, written: str) -> None:
    """One arm on the data that the demo has written; leaves its result beside the model.

    Args:
        written: the demo's options, as JSON.
    """
    options = DemoOptions(**json.loads(written))
    output = Path(options.output_dir)
    disable_progress_bar()
    with open(output / "test.jsonl", encoding="utf-8") as file:
        test = [json.loads(line) for line in file]
    result = run_arm(arm, options, output, test)
    write_json(output / arm / RESULT, asdict(result))


def read_result(path: Path) -> ArmResult:
    """What `run_one_arm` wrote."""
    with open(path, encoding="utf-8") as file:
        return ArmResult(**json.load(file))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSONL; the file appears whole or not at all."""
    write_whole(path, (json_bytes(row) + b"\n" for row in rows))


def run_arm(arm: str, options: DemoOptions, output: Path, test: list[dict[str, Any]]) -> ArmResult:
    """Train and evaluate one arm."""
    steps = math.ceil(options.train_rows / options.batch_size)
    config = JEPAConfig(
        output_dir=str(output / arm),
        overwrite_output_dir=options.overwrite_output_dir,
        objective=arm,  # type: ignore[arg-type]
        predictors=options.predictors if arm != "regular" else None,
        step_splitter="separator",
        lbd=options.lbd,
        per_device_train_batch_size=options.batch_size,
        num_train_epochs=1,
        learning_rate=options.learning_rate,
        adam_beta2=0.95,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, steps // 20),
        logging_steps=max(1, steps // 50),
        save_strategy="no",
        disable_tqdm=True,
        seed=options.seed,
    )
    run = RunOptions(train_file=[str(output / "train.jsonl")], model_name="tiny")
    begin = time.perf_counter()
    result = run_training(run, config)
    trainer, metrics = result.trainer, result.metrics
    assert trainer is not None, "a run that does not go on from a checkpoint is never complete before it starts"
    trained = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(output / arm)
    tokenizer = AutoTokenizer.from_pretrained(output / arm)
    renderer = ChatRenderer(tokenizer)
    prompts = [tokenizer(renderer.prompt(row["messages"][:-1]), add_special_tokens=False)["input_ids"] for row in test]
    answers = generate_batch(model, tokenizer, prompts, MAX_NEW_TOKENS, batch_size=100)
    correct = [
        answers_match(final_answer(answer.text), row["ground_truth"]) for answer, row in zip(answers, test, strict=True)
    ]
    geometry = held_out(trainer, tokenizer, test, options)
    return ArmResult(
        accuracy=sum(correct) / len(correct),
        correct=correct,
        stopped=sum(answer.stopped for answer in answers) / len(answers),
        jepa_loss=1 - geometry["cosine"] if arm != "regular" else None,
        examples_per_second=options.train_rows / metrics["train_runtime"],
        train_seconds=trained - begin,
        eval_seconds=time.perf_counter() - trained,
        history=trainer.state.log_history,
        **geometry,
    )


def held_out(
    trainer: JEPATrainer, tokenizer: Any, test: list[dict[str, Any]], options: DemoOptions
) -> dict[str, float]:
    """LM loss, cosines and collapse signs on the held-out problems, with first pairs in both arms."""
    paired = JEPAConfig(
        output_dir=options.output_dir,
        objective="step_jepa",
        predictors=len(trainer.setup.predictor_ids),
        report_to="none",
    )
    store, _ = encode(test, tokenizer, paired)
    collator, model = trainer.data_collator, trainer.model
    assert model is not None
    model.eval()
    lm, labels, sources, targets = 0.0, 0, [], []
    with torch.no_grad():
        for examples in batches(store, 50):
            batch = collator(examples).to(model.device)
            output = model(batch=batch)
            lm, labels = lm + float(output.lm_loss_sum), labels + batch.label_ids.numel()
            sources.append(output.source_states.float())
            targets.append(output.target_states.float())
    source, target = torch.cat(sources), torch.cat(targets)
    signs = collapse_signs([target])
    return {
        "lm_loss": lm / max(labels, 1),
        "cosine": float(F.cosine_similarity(source, target, dim=-1).mean()),
        "shuffled_cosine": float(F.cosine_similarity(source, target.roll(1, dims=0), dim=-1).mean()),
        "target_std": signs.get("target_std", float("nan")),
        "effective_rank": signs.get("effective_rank", float("nan")),
    }


def batches(store: ExampleStore, size: int) -> list[list[Any]]:
    """The examples of a store in batches."""
    return [[store[i] for i in range(start, min(start + size, len(store)))] for start in range(0, len(store), size)]
