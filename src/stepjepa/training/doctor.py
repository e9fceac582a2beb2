"""Which settings compute exact numbers on this machine, their speed and their memory: ``stepjepa doctor``."""

from __future__ import annotations

import gc
import statistics
from dataclasses import dataclass
from importlib.metadata import version
from itertools import cycle, islice, product
from math import isnan, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from stepjepa.config.option import Names
from stepjepa.config.parser import build
from stepjepa.data.sources import RowSource
from stepjepa.data.tasks import generate_rows
from stepjepa.errors import ConfigError, DataError, said
from stepjepa.modeling.flops import card_peak
from stepjepa.modeling.masks import attention_in
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import DoctorOptions, RunOptions
from stepjepa.training.run import circumstances, make_trainer
from stepjepa.training.trainer import JEPATrainer
from stepjepa.utils.files import Record, json_line, write_whole
from stepjepa.utils.terminal import Bar, only_results
from stepjepa.utils.text import text_table, written

_NAME = Names(RunOptions, JEPAConfig)
_ROWS = 4
_STEPS = 8  # optimizer steps per setting
# Batch sizes to try on a GPU; a larger batch repeats the rows, so the mean LM loss stays the same.
_SIZES = (8, 16, 32, 64, 128, 256)
_DEFAULT = "(default)"
_FASTER = 1.1  # smallest speed-up over the default that is recommended
_NEAR = 0.01  # tolerated relative difference from the loss of the first setting that trains


@dataclass(frozen=True)
class Tried:
    """The result of one setting. Numbers that were not measured are NaN.

    Attributes:
        flags: flags of ``stepjepa train``.
        attention: the attention or forward that the start-up trial found exact.
        fault: what is wrong with the setting; empty if nothing is.
        speed: tokens per second, the median of the steps.
        mebibytes: peak memory of tensors on a GPU, in MiB.
        lm_loss: LM loss at the last step.
        mfu: share of the GPU's peak FLOPs that the steps reach.
    """

    flags: str
    attention: str = ""
    fault: str = ""
    speed: float = nan
    mebibytes: float = nan
    lm_loss: float = nan
    mfu: float = nan


@dataclass(frozen=True)
class Diagnosis:
    """The result of `doctor`; ``stepjepa doctor`` prints its text.

    Attributes:
        about: facts about the machine: names and values by topic.
        tried: the results of the settings; the first is the default.
        recommended: the recommended command.
    """

    about: dict[str, Record]
    tried: list[Tried]
    recommended: str

    def __str__(self) -> str:
        figures = {"speed": ",.0f", "mebibytes": ",.1f", "lm_loss": ".4f"}
        header = ["setting", "attention", "tok/s", "MiB", "LM loss"]
        if _on_gpu():
            figures["mfu"] = ".1%"
            header.append("MFU")
        rows = []
        for one in self.tried:
            row = [one.flags or _DEFAULT, one.attention.removeprefix("stepjepa_")]
            for figure, form in figures.items():
                value = getattr(one, figure)
                row.append(written(None if isnan(value) else value, form))
            rows.append(row)
        notes = []
        for topic, values in self.about.items():
            words = [f"{name} {value}" for name, value in values.items()]
            notes.append(f"{topic}: {', '.join(words)}")
        notes += [f"{one.flags or _DEFAULT}: {one.fault}" for one in self.tried if one.fault]
        notes.append(f"recommended: {self.recommended}")
        return "\n".join([*text_table(header, rows), "", *notes])


def doctor(options: DoctorOptions) -> Diagnosis:
    """Train on one batch with every attention implementation and dtype, after the start-up trial. On a GPU, then train with
    the best setting on larger batches until one is no faster or does not fit, in which case gradient checkpointing is tried
    too.
    Nothing is kept.

    Raises:
        ConfigError, DataError: the model or the data cannot be used.
    """
    disable_progress_bar()  # shown while a model is loaded
    attention = _NAME.attn_implementation
    kernels = [{}, *({attention: one} for one in ("sdpa", "eager", "flex_attention"))]
    dtypes: list[Record] = [{}, {_NAME.bf16: True}, {_NAME.dtype: "bfloat16"}]
    settings = [{**kernel, **dtype} for kernel, dtype in product(kernels, dtypes)] + [
        {"torch_compile": True}
    ]
    rows: list[Any] = generate_rows(_ROWS)
    if options.train_file is not None:
        rows = [row for _, row in islice(RowSource(options.train_file), _ROWS)]
    tried = list[Tried]()
    with TemporaryDirectory() as folder, Bar() as bar:
        file = Path(folder, "rows.jsonl")
        write_whole(file, map(json_line, rows))
        common: Record = {
            _NAME.train_file: [str(file)],
            _NAME.model_name: options.model_name,
            _NAME.max_steps: _STEPS,
            _NAME.per_device_train_batch_size: _ROWS,
            _NAME.logging_steps: 1,
            _NAME.output_dir: folder,
            _NAME.save_strategy: "no",
            _NAME.train_sampling_strategy: "sequential",
            _NAME.track_flop: True,
        }
        bar.begin("settings", len(settings))
        for given in settings:
            try:
                with only_results():
                    tried.append(_tried(given, common, first=not tried))
            except (ConfigError, DataError) as error:
                error.args = (str(error).replace(str(file), options.train_file or file.name),)
                raise
            bar.step(1)
        best = _best(tried)
        if best is not None and _on_gpu():
            write_whole(file, map(json_line, islice(cycle(rows), _SIZES[-1])))
            with only_results():
                tried += _larger(settings[tried.index(best)], best.speed, common)
    return Diagnosis(_about(), tried, _recommended(tried, options))


def _larger(given: Record, speed: float, common: Record) -> list[Tried]:
    """Try a setting, whose speed is `speed`, with larger batches until one is hardly faster or fails; a batch that fails is
    tried again with gradient checkpointing."""
    tried = list[Tried]()
    for size in _SIZES:
        given = {**given, _NAME.per_device_train_batch_size: size}
        tried.append(_tried(given, common, first=False))
        if tried[-1].fault:
            tried.append(_tried({**given, "gradient_checkpointing": True}, common, first=False))
            break
        if not tried[-1].speed > _FASTER * speed:
            break
        speed = tried[-1].speed
    return tried


def _on_gpu() -> bool:
    return torch.cuda.is_available()


def _recommended(tried: list[Tried], options: DoctorOptions) -> str:
    """The command to recommend: ``stepjepa train`` with the best setting."""
    best = _best(tried)
    if best is None:
        return "nothing, because no setting trains exactly"
    command = (
        f"stepjepa train --{_NAME.train_file} {options.train_file or 'FILE'} --{_NAME.model_name}"
    )
    return f"{command} {options.model_name} {best.flags}".strip()


def _best(tried: list[Tried]) -> Tried | None:
    """The fastest of the settings whose loss is close to that of the first setting that trains; the first of them if none is
    much faster."""
    trained = [one for one in tried if one.lm_loss > 0 and not one.fault]
    near = [one for one in trained if abs(1 - one.lm_loss / trained[0].lm_loss) < _NEAR]
    # Weights in bfloat16 lose small updates, which a few steps do not show, so they are not recommended.
    near = [one for one in near if _NAME.dtype not in one.flags]
    if not near:
        return None
    first = near[0]
    fastest = max(near, key=lambda one: one.speed)
    if fastest.speed <= _FASTER * first.speed:
        return first
    return fastest


def _about() -> dict[str, Record]:
    packages = ("stepjepa", "torch", "transformers", "accelerate", "peft", "datasets")
    devices = {"cpu": f"{torch.get_num_threads()} threads"}
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        memory = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
        name = torch.cuda.get_device_name(number)
        peak = card_peak(name)
        at_most = "unknown" if peak is None else f"{peak / 1e12:.0f} TFLOP/s in bfloat16"
        devices[f"cuda:{number}"] = f"{name}, {memory}, peak {at_most}"
    return {
        "versions": {name: version(name) for name in packages},
        "machine": circumstances(None, torch.device("cpu"))["machine"],
        "devices": devices,
    }


def _tried(given: Record, common: Record, first: bool) -> Tried:
    """Try one setting. An error in the model or the data is raised for the first setting; for any other, it is recorded as
    the fault."""
    flags = " ".join(f"--{name} {str(value).lower()}" for name, value in given.items())
    gc.collect()
    try:
        run, config = build((RunOptions, JEPAConfig), {**common, **given})
        on_gpu, config._n_gpu = config.device.type == "cuda", 1
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        trainer = make_trainer(run, config)
        trainer.train()
    except Exception as error:
        if first and isinstance(error, (ConfigError, DataError)):
            raise
        return Tried(flags, fault=said(error, lines=1)[:200])
    forward = trainer.setup.forward
    attention = attention_in(trainer.model)
    served = attention if forward == "packed" else forward
    log = [entry for entry in trainer.state.log_history if "tokens_per_second" in entry]
    # The first step warms up.
    speed = statistics.median(entry["tokens_per_second"] for entry in log[1:])
    memory = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else nan
    mfu = (
        _flops(trainer, speed) / (card_peak(torch.cuda.get_device_name()) or nan) if on_gpu else nan
    )
    return Tried(flags, served, "", speed, memory, log[-1]["lm_loss"], mfu)


def _flops(trainer: JEPATrainer, speed: float) -> float:
    """FLOPs per second at `speed` tokens per second, padding included. Every key of a row counts, even keys that
    FlexAttention skips."""
    batch = next(iter(trainer.get_train_dataloader()))
    tokens = sum(int(rows.filled.sum()) for rows in batch.every_rows)
    return trainer.floating_point_ops(batch) / tokens * speed
