"""The sub-commands of `stepjepa`: a function each, which takes the words after the command and returns the exit status.

A function's docstring is the command's help: its usage, what it does, an example. Options are imported inside the functions,
so that ``stepjepa COMMAND --help`` loads those of one command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepjepa import api
from stepjepa.config.option import Names
from stepjepa.config.parser import StrictParser, build
from stepjepa.config.spellings import PUBLISHED, published
from stepjepa.errors import ConfigError
from stepjepa.utils.terminal import ending, is_main_process, print_drawn, print_json, print_text, show_log
from stepjepa.utils.text import folded

Command = Callable[[list[str]], int]


def _values(command: Command, options: type, argv: list[str], *positional: str) -> dict[str, Any]:
    """The options that the words give, by name; free words fill the options `positional`."""
    aliases = published(options)
    parser = StrictParser((options,), command.__doc__, aliases=aliases, positional=positional)
    return parser.values(argv)


def _file(values: dict[str, Any], command: str) -> str:
    """The data file, taken out of the values.

    Raises:
        ConfigError: none was given.
    """
    file = values.pop("file", None)
    if not file:
        raise ConfigError(f"no data file given; write: stepjepa {command} FILE")
    return str(file)


def prepare(argv: list[str]) -> int:
    """stepjepa prepare INPUT

    Turn raw questions and answers (GSM8K, generated responses, any columns) into chat rows with steps, which
    stepjepa train reads.

    example: stepjepa prepare gsm8k_train.jsonl --output_file train.jsonl --valid_ratio 0.05
    """
    from stepjepa.data.options import PrepareOptions

    values = _values(prepare, PrepareOptions, argv, "file")
    file = _file(values, "prepare")
    print_text(str(api.prepare(file=file, **values)))
    return 0


def check(argv: list[str]) -> int:
    """stepjepa check FILE

    Check roles, texts and steps of a data file, and list unusable rows and warnings. With --model_name also report what a
    model will see of it: pairs, lengths, truncation.

    example: stepjepa check train.jsonl --model_name mini --step_jepa --eval_file test.jsonl
    """
    from stepjepa.inspect.check import CheckOptions

    values = _values(check, CheckOptions, argv, "file")
    as_json = values.pop("json", False)
    file = _file(values, "check")
    report = api.check(file, values.pop("model_name", None), **values)
    if as_json:
        print_json(report.to_dict())
    else:
        print_drawn(str(report))
    return 0


def inspect(argv: list[str]) -> int:
    """stepjepa inspect FILE

    Show one row as the model sees it in training: tokens, views, predictors, and who sees whom. The options of training
    mean what they mean for stepjepa train.

    example: stepjepa inspect train.jsonl --row 3 --step_jepa --step_pairs all --predictors 2
    """
    from stepjepa.inspect.view import InspectOptions

    values = _values(inspect, InspectOptions, argv, "file")
    file = _file(values, "inspect")
    tokenizer = values.pop("model_name", InspectOptions.model_name)
    print_drawn(str(api.inspect(file, tokenizer, **values)))
    return 0


def train(argv: list[str]) -> int:
    """stepjepa train FILE

    Train a causal language model with gamma * LM + lbd * JEPA, or with the LM loss alone.

    example: stepjepa train data.jsonl --model_name mini --step_jepa --predictors 2 --output_dir run
    """
    from stepjepa.training.options import JEPAOptions, RunOptions, TrainerOptions

    every_option = "--help_all" in argv
    if not every_option:
        # The help, and a slip in a name, are answered before torch is loaded, which takes seconds.
        parser = _train_parser(RunOptions, JEPAOptions, TrainerOptions)
        if "-h" in argv or "--help" in argv:
            parser.values(argv)  # exits
        parser.check_names(argv)
    from stepjepa.training.config import JEPAConfig

    parser = _train_parser(RunOptions, JEPAConfig)
    if every_option:
        parser.headings = ()
        parser.values(["--help", *argv])  # exits
    return _train(parser.values(argv))


def _train_parser(*options: type) -> StrictParser:
    from stepjepa.training.options import COMMON, RunOptions, inherited_names

    first = "options run model method loss views".split()
    last = "data lora output".split()
    return StrictParser(
        options,
        train.__doc__,
        aliases=published(*options),
        positional=(Names(RunOptions).train_file,),
        headings=(*first, "semantic tube", "looking ahead", *last, COMMON),
        others=(*PUBLISHED, *inherited_names()),
    )


def _train(options: dict[str, Any]) -> int:
    """Train and print the result."""
    import gc
    import logging

    from transformers.utils.logging import disable_progress_bar

    from stepjepa.training.options import RunOptions
    from stepjepa.training.run import leave_process_group

    if not gc.get_freeze_count():
        gc.freeze()  # the modules stay: no collection during training looks through them
    debug = options.get(Names(RunOptions).debug_level, 0)
    show_log(logging.DEBUG if debug >= 5 else logging.INFO if debug >= 1 else logging.WARNING)
    disable_progress_bar()  # of loading and writing; training has its own
    result = api.train(**options)
    if is_main_process():
        print_text(str(result))
    del result  # the wrapped model must go before the process group
    leave_process_group()
    return 0


def evaluate(argv: list[str]) -> int:
    """stepjepa evaluate RUN TEST_FILE

    Let a model answer the questions of a file, and score the answers. Interrupted, the same command resumes. With
    --analyze, look into the predictions of one evaluation, or compare those of two.

    example: stepjepa evaluate runs/a test.jsonl --metric gsm8k; then stepjepa evaluate --analyze
    runs/a/evaluation-test/predictions.jsonl
    """
    from stepjepa.evaluation.options import EvaluateOptions

    name = Names(EvaluateOptions)
    values = _values(evaluate, EvaluateOptions, argv, name.model_name, name.test_file)
    if name.analyze in values:
        return _analyze_predictions(values)
    with ending("evaluate", "what is done is kept"):
        result = api.evaluate(**values)
    if values.get("json"):
        print_json(result.record)
    else:
        print_text(str(result))
    return 0


def _analyze_predictions(values: dict[str, Any]) -> int:
    from stepjepa.evaluation.options import EvaluateOptions

    (options,) = build((EvaluateOptions,), values)
    options.check()
    metric = options.metric[0] if options.metric else None
    comparison = api.compare(*options.analyze, show=options.show, metric=metric)
    if options.json:
        print_json(comparison.record())
    else:
        print_text("\n".join([*options.notes(), str(comparison)]))
    return 0


def generate(argv: list[str]) -> int:
    """stepjepa generate FILE

    Let a model solve the questions of a file, and keep the responses whose final answer is right. What is unsolved is asked
    again, --attempts times in all.

    example: stepjepa generate train.jsonl --model_name Qwen/Qwen2.5-7B-Instruct --output_file solved.jsonl
    """
    from stepjepa.generation.options import GenerateOptions

    values = _values(generate, GenerateOptions, argv, "file")
    with ending("generate", "what is done is kept"):
        print_text(str(api.generate(**values)))
    return 0


def analyze(argv: list[str]) -> int:
    """stepjepa analyze FILE --models RUN_A RUN_B

    Where are source and target views? Hidden states of both views in one or more models, as training reads them; matched
    against shuffled pairs, retrieval, ranks, by layer and step; signs of collapse. The options of training mean
    what they mean for stepjepa train. docs/geometry.md explains the numbers.

    example: stepjepa analyze test.jsonl --models runs/regular runs/llm_jepa --objective llm_jepa
    """
    from stepjepa.analysis.options import AnalyzeOptions

    print_text(str(api.analyze(**_values(analyze, AnalyzeOptions, argv, "file"))))
    return 0


def study(argv: list[str]) -> int:
    """stepjepa study FILE

    Train the arms of a study over paired seeds, with shuffled and random targets as controls, at equal examples and at
    equal compute; choose hyper-parameters on the validation split, score the test split once, and say what is established.
    Started again, a study resumes where it stopped.

    example: stepjepa study study.yaml --jobs 2; docs/study.md describes the file
    """
    from stepjepa.study.spec import StudyOptions

    values = _values(study, StudyOptions, argv, "file")
    with ending("study", "every stage that is done is kept"):
        result = api.study(**values)
    print_text("\n".join(folded(result.lines)) if values.get("recipes") else str(result))
    return 1 if result.failed else 0


def demo(argv: list[str]) -> int:
    """stepjepa demo

    Train a small model with and without the JEPA objective on a built-in task, and compare: a study that ends with its
    report.

    example: stepjepa demo --output_dir runs/demo --seed 1
    """
    from stepjepa.study.demo import DemoOptions

    print_text(str(api.demo(**_values(demo, DemoOptions, argv))))
    return 0


def report(argv: list[str]) -> int:
    """stepjepa report RUN_OR_STUDY [RUN ...]

    Write one HTML page that needs no network: accuracies with paired differences, the curves of both losses, signs of
    collapse, answers side by side, the settings that differ, the tables of a study. Several runs are compared side by side.

    example: stepjepa report runs/regular runs/step_jepa --output_file report.html
    """
    from stepjepa.report.run import ReportOptions

    print_text(str(api.report(**_values(report, ReportOptions, argv, "folders"))))
    return 0


def export(argv: list[str]) -> int:
    """stepjepa export CHECKPOINT OUT

    Write a checkpoint as the final model of its run: plain Hugging Face form, vocabulary and tokenizer as they came, LoRA
    merged or as an adapter, the predictors in predictors.safetensors next to it.

    example: stepjepa export runs/step_jepa/checkpoint-500 exported --merge_lora true
    """
    from stepjepa.modeling.options import ExportOptions

    name = Names(ExportOptions)
    values = _values(export, ExportOptions, argv, name.checkpoint, name.output_dir)
    checkpoint, output = values.pop(name.checkpoint, None), values.pop(name.output_dir, None)
    if not checkpoint or not output:
        raise ConfigError("the checkpoint or the folder to write is missing; write: stepjepa export CHECKPOINT OUT")

    from transformers.utils.logging import disable_progress_bar

    from stepjepa.analysis.models import quiet

    disable_progress_bar()
    with quiet():
        written = api.export(checkpoint, output, **values)
    print_text(str(written))
    return 0


def doctor(argv: list[str]) -> int:
    """stepjepa doctor

    What this machine can do, to run first and to add to a bug report: versions and devices; for every attention and dtype
    whether it is exact, the time and memory of a training step; the flags to take. Nothing is kept.

    example: stepjepa doctor --model_name mini --data train.jsonl
    """
    from dataclasses import asdict

    from stepjepa.training.options import DoctorOptions

    values = _values(doctor, DoctorOptions, argv)
    as_json = values.pop("json", False)
    diagnosis = api.doctor(**values)
    if as_json:
        print_json(asdict(diagnosis))
    else:
        print_text(str(diagnosis))
    return 0
