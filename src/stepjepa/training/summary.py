"""What a run says: notes on its options, the start-up summary, and the result when it is done."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from stepjepa.config.option import Names, unread_options
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import names_steps
from stepjepa.errors import StepJepaError
from stepjepa.modeling.load import is_preset
from stepjepa.objectives.base import find_objective, objective_of
from stepjepa.training.config import JEPAConfig, usual_learning_rate
from stepjepa.training.metrics import clock, short
from stepjepa.training.options import JEPAOptions, RunOptions, loss_line, without_effect
from stepjepa.training.trainer import JEPATrainer
from stepjepa.utils.text import counted

_NAME = Names(RunOptions, JEPAConfig)
_ROWS = 20  # of each file, to see whether their answers have steps
_FAR = 5  # times the default learning rate, or a part of it, from where on a rate is unusual
_LABELS = 7  # columns of the labels

# Notes


def run_notes(run: RunOptions, options: JEPAOptions, given: Collection[str]) -> list[str]:
    """Lines to print before a run; `given` are the names of the options that were given."""
    objective = objective_of(options)
    lines = objective.notes(given)
    if run.additive_mask:
        lines.append(f"--{_NAME.additive_mask}: not needed; the packed forward computes the same numbers in one row")
    if find_objective(options.objective).makes_pairs and not objective.makes_pairs and _NAME.lbd in given:
        lines.append(f"--{_NAME.lbd} 0: no pair is made, and the run trains exactly like objective {objective.name}")
    if objective.makes_pairs and not options.jepa_ratio:
        lines.append(f"--{_NAME.jepa_ratio} 0: no example keeps its pairs, so the LM loss alone is trained")
    lines += map(str, without_effect(options, given))
    if _NAME.objective not in given and has_steps(run, options):
        lines.append(
            f"the data has steps and no objective is given: this trains {options.objective} with K = "
            f"{options.predictors}, whose views are question and answer; --step_jepa trains Step-JEPA, step 1 -> step 2"
        )
    return [*lines, *run_options_unread(run, given)]


def run_options_unread(run: RunOptions, given: Collection[str]) -> list[str]:
    """A line for every option of data, evaluation and LoRA that the run does not read."""
    plain = RunOptions()
    changed = {name for name in given if hasattr(plain, name) and getattr(run, name) != getattr(plain, name)}
    return [str(option) for option in unread_options(run, changed)]


def has_steps(run: RunOptions, options: JEPAOptions) -> bool:
    """Whether the first rows of the training data say that their answers have steps."""
    try:
        sources = [RowSource(name, run.dataset_split, options.streaming) for name in run.train_file or ()]
        return any(names_steps(row, options.steps_column) for rows in sources for _, row in islice(rows, _ROWS))
    except StepJepaError:  # the run reports it
        return False


# The summary


def start_summary(trainer: JEPATrainer, run: RunOptions, checkpoint: Path | None) -> str:
    """What will be trained, on what, at what cost, and what will be written where."""
    args = trainer.args
    width = max(_LABELS, *(len(name) + 1 for name in trainer.data_reports))
    parts: list[tuple[str, Sequence[str]]] = []
    for name, report in trainer.data_reports.items():
        lines = report.lines()
        if args.streaming and name.startswith("train"):
            lines = [f"{report.source}: streamed, up to {args.shuffle_buffer:,} examples shuffled together"]
            lines += report.steps.lines()
        parts.append((name, [line.removeprefix("  ") for line in lines]))
    parts.append(("mix", mixing_lines(trainer)))
    # The model and its loss.
    model: Any = trainer.model
    trained, every = model.num_parameters(only_trainable=True), model.num_parameters()
    kind = ", LoRA" if run.lora else ""
    size = f"{run.model_name}: {every:,} parameters, {trained:,} trained ({100 * trained / every:.3g} %{kind})"
    objective, loss = trainer.setup.objective, "LM loss alone"
    if objective.makes_pairs:
        loss = loss_line(args)
    elif find_objective(args.objective).makes_pairs:
        loss += f" (lbd is 0: trains exactly like {objective.name})"
    loss = f"{args.objective}: {loss}; forward {trainer.setup.forward}; {rate_line(args, run)}"
    parts += [("model", [size]), ("loss", [loss])]
    # How long, and where to.
    if trainer.at_equal_compute:
        regular, ratio = trainer.equal_compute
        steps = f"{trainer.requested_steps} steps for {regular} regular ones"
        parts.append(("flop", [f"a step costs {ratio:.2f} times a regular one: {steps}"]))
    resumed = f" (resumed from {checkpoint.name})" if checkpoint else ""
    files = "model and tokenizer, resolved.yaml, run.json, data_report.json, metrics.json"
    logs = [f"logs to {', '.join(args.report_to)}"] if args.report_to else []
    output = [f"{args.output_dir}{resumed}: {files}", checkpoints_line(args), *logs]
    parts += [("steps", [steps_line(trainer)]), ("output", output)]
    return "\n".join(labelled(parts, width))


def conclusion(trainer: JEPATrainer, run: RunOptions, metrics: dict[str, float], stopped: str = "") -> str:
    """The result of a run, and where it is.

    Args:
        trainer: after its training.
        run: what was read.
        metrics: the final ones, as in ``metrics.json``.
        stopped: why an evaluation ended it before its last step, if one did.
    """
    output = str(trainer.args.output_dir)
    parts: list[tuple[str, Sequence[str]]] = []
    if trainer.args.streaming:  # only now is known what the rows hold
        for name, report in trainer.data_reports.items():
            if name.startswith("train"):
                read = f"{report.source}: {report.rows_read:,} rows read"
                parts.append(("data", [read, *report.row_lines(), *report.steps.lines(), *report.prompts.lines()]))

    steps = counted(trainer.state.global_step, "step")
    done = [f"{steps} in {clock(metrics.get('train_runtime', 0.0))}"]
    speeds = [entry["tokens_per_second"] for entry in trainer.state.log_history if "tokens_per_second" in entry]
    if speeds:
        done[0] += f", {median(speeds):,.0f} tokens/s (median of the log)"
    if stopped:
        done.append(stopped)
    parts.append(("done", done))

    final = [short(metrics)]
    answers = [f"eval_{name}" for name in (*(run.eval_metrics or ()), "did_not_stop")]
    final.append("  ".join(f"{name} {metrics[name]:.4f}" for name in answers if name in metrics))
    parts.append(("final", [line for line in final if line]))
    files = "metrics.json, run.json, data_report.json, resolved.yaml"
    parts.append(("output", [f"{output}: model and records ({files})"]))
    parts.append(("load", [f"AutoModelForCausalLM.from_pretrained({output!r})"]))
    return "\n".join(["", *labelled(parts)])


def labelled(parts: Sequence[tuple[str, Sequence[str]]], width: int = _LABELS) -> list[str]:
    """Lines after their labels, which are in a column of their own."""
    texts = []
    for label, lines in parts:
        for number, line in enumerate(lines):
            texts.append(f"{'' if number else label:<{width}}{line}")
    return texts


def rate_line(args: JEPAConfig, run: RunOptions) -> str:
    """``learning rate 2e-05 (low for LoRA: the default is 0.0002)``: of a rate far from the default of the mode."""
    scratch = is_preset(run.model_name) or run.pretrain
    usual = usual_learning_rate(scratch, run.lora)
    rate = args.settled_learning_rate(scratch, run.lora)
    line = f"learning rate {rate:g}"
    optimizer = str(getattr(args.optim, "value", args.optim))
    if "adam" not in optimizer:  # other optimizers have other scales
        return line
    if usual / _FAR <= rate <= usual * _FAR:
        return line
    kind = "low" if rate < usual else "high"
    mode = "all weights of a pretrained model"
    if scratch:
        mode = "a model from random weights"
    elif run.lora:
        mode = "LoRA"
    return f"{line} ({kind} for {mode}: the default is {usual:g})"


def mixing_lines(trainer: JEPATrainer) -> list[str]:
    """The share of each of several data sets: ``a.jsonl: 75 %, 2.4 times its 1,000 examples an epoch``."""
    args = trainer.args
    names = [report.source for name, report in trainer.data_reports.items() if name.startswith("train")]
    if not args.mixing_weights:
        return []
    shares = [f"{weight / sum(args.mixing_weights):.1%}" for weight in args.mixing_weights]
    if args.streaming:
        return [f"{name}: {share} of the rows" for name, share in zip(names, shares, strict=True)]
    mixture = trainer.train_dataset.mixture  # type: ignore[union-attr]
    return [
        f"{name}: {share}, {count / size:.2f} times its {size:,} examples an epoch"
        for name, share, size, count in zip(names, shares, *mixture, strict=True)
    ]


def steps_line(trainer: JEPATrainer) -> str:
    """``1,000 of 32 examples (8 x 2 accumulated x 2 processes), 4.3 epochs``."""
    args, cut = trainer.args, trainer.cut
    size = f"{cut.batch:,} examples"
    if cut.batch > cut.size:
        size += f" ({cut})"
    if args.streaming:
        return f"{args.max_steps:,} of {size}"
    dataset: Any = trainer.train_dataset
    steps = trainer.requested_steps
    epochs = f"{steps * cut.batch / len(dataset):.3g}"
    return f"{steps:,} of {size}, {epochs} {'epoch' if epochs == '1' else 'epochs'}"


def checkpoints_line(args: JEPAConfig) -> str:
    """``checkpoint-N every 500 steps and at the end; the newest 2 are kept``."""
    strategy = getattr(args.save_strategy, "value", args.save_strategy)
    if strategy == "no":
        return "no checkpoints"
    every = f"every {args.save_steps:,.0f} steps" if args.save_steps >= 1 else f"every {args.save_steps:.0%} of the run"
    when = {"steps": f"{every} and at the end", "epoch": "every epoch", "best": "whenever the metric is better"}
    limit = args.save_total_limit
    kept = f"the newest {limit} are kept" if limit and limit > 0 else "all are kept"
    return f"checkpoint-N {when.get(strategy, strategy)}; {kept}"
