"""A checkpoint, which holds what training needs, as the final model of its run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from stepjepa.errors import ConfigError
from stepjepa.modeling.export import export_model
from stepjepa.modeling.extras import PREDICTORS_FILE, attach_saved
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import is_preset, load_adapter, load_model, load_tokenizer
from stepjepa.objectives.base import trained_pairs
from stepjepa.utils.files import check_writable, read_json, write_whole
from stepjepa.utils.manifest import MANIFEST, mismatch

_ADAPTER = "adapter_config.json"


class Export(NamedTuple):
    """A model that was exported: the folder, and the names of its files."""

    folder: str
    files: list[str]

    def __str__(self) -> str:
        return f"output {self.folder}: {', '.join(self.files)}"


def export_checkpoint(
    checkpoint: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    base_model: str | None = None,
    merge_lora: bool | None = None,
    keep_predictors: bool = False,
    overwrite: bool = False,
    trust_remote_code: bool = False,
) -> list[str]:
    """Write what `JEPATrainer.save_model` writes with the weights of a checkpoint.

    Args:
        checkpoint: ``checkpoint-N`` of a run, or any folder with a model or an adapter.
        base_model: of an adapter, its base; None for the one that it names, or that its run has initialised.
        merge_lora, keep_predictors: see `export_model`; `merge_lora` None is as the run has it.
        overwrite: write into a folder that is not empty.

    Returns:
        Names of the files.

    Raises:
        ConfigError: the checkpoint cannot be read, or the folder not be written.
    """
    folder, target = Path(checkpoint), Path(output_dir)
    if not (folder / "config.json").is_file() and not (folder / _ADAPTER).is_file():
        raise ConfigError(f"{folder}: no checkpoint (neither config.json nor {_ADAPTER})")
    problem = checkpoint_fault(folder)
    if problem is not None:
        raise ConfigError(f"{folder}: {problem}; take another checkpoint")
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: is a file; give a folder")
    if target.resolve() == folder.resolve():
        raise ConfigError(f"{target}: is the checkpoint itself; write elsewhere")
    if (target / "metrics.json").is_file() or any(target.glob("checkpoint-*")):
        raise ConfigError(f"{target}: is the folder of a run, whose records are not the checkpoint's; write elsewhere")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise ConfigError(f"{target}: the folder is not empty; give another one, or --overwrite_output_dir")
    check_writable(target)
    settings = run_settings(folder)
    predictors = trained_pairs(settings) and settings.get("predictors")
    if predictors and (folder / "trainer_state.json").is_file() and not (folder / PREDICTORS_FILE).is_file():
        raise ConfigError(
            f"{folder}: {PREDICTORS_FILE} is missing, as in checkpoints of version 0.1; export it with that"
        )
    tokenizer = load_tokenizer(str(folder), trust_remote_code=trust_remote_code)
    if (folder / _ADAPTER).is_file():
        base = load_base(folder, tokenizer, settings, base_model, trust_remote_code)
        model = load_adapter(base, folder, str(folder), "its base")
    elif base_model is not None:
        raise ConfigError(f"{folder}: is no adapter; leave out --base_model")
    else:
        model = load_model(str(folder), tokenizer, dtype="auto", trust_remote_code=trust_remote_code)
    attach_saved(causal_lm(model), folder)
    merge = bool(settings.get("merge_lora") if merge_lora is None else merge_lora)
    written = export_model(model, tokenizer, target, merge_lora=merge, keep_predictors=keep_predictors)
    return [*written, *copy_records(folder, target)]


def copy_records(folder: Path, target: Path) -> list[str]:
    """Copy what tells how the weights were trained (the system prompts, for one, which `evaluate` asks for); the names."""
    run = run_of(folder)
    copied = [name for name in ("run.json", "data_report.json") if (run / name).is_file()]
    for name in copied:
        write_whole(target / name, [(run / name).read_bytes()])
    return copied


def checkpoint_fault(folder: Path) -> str | None:
    """What is wrong with a run's checkpoint or final model by its manifest; None where nothing is, or where there is none to
    expect."""
    in_run = folder.name.startswith("checkpoint-") and run_of(folder) != folder.resolve()
    checkpoint = in_run or (folder / "trainer_state.json").is_file()
    if (folder / MANIFEST).exists():
        return mismatch(folder, only_weights=not checkpoint)
    return f"it has no {MANIFEST}: cut short, or written by version 0.1" if checkpoint else None


def run_of(folder: Path) -> Path:
    """The folder with the records of the run that a checkpoint or a final model is of; itself where there are none."""
    place = folder.resolve()
    return next((run for run in (place, place.parent) if (run / "run.json").is_file()), place)


def run_settings(folder: Path) -> dict[str, Any]:
    """The settings of the run that a checkpoint or a final model is of; empty where nothing says so."""
    try:
        found = read_json(run_of(folder) / "run.json").get("settings")
    except (OSError, ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def load_base(
    folder: Path, tokenizer: Any, settings: dict[str, Any], base_model: str | None, trust_remote_code: bool
) -> Any:
    """The base of an adapter, with its weights; random ones as its run drew them where the run began with such.

    Raises:
        ConfigError: it is not known or cannot be loaded.
    """
    name, drawn = base_model, False
    if name is None:
        name = settings.get("model_name")
        drawn = bool(name) and (is_preset(str(name)) or bool(settings.get("pretrain")))
    if name is None:
        try:
            name = read_json(folder / _ADAPTER).get("base_model_name_or_path")
        except (OSError, ValueError, AttributeError):
            raise ConfigError(f"{folder}: {_ADAPTER} cannot be read") from None
    if not name:
        raise ConfigError(f"{folder}: the adapter names no base; give --base_model")
    dtype = settings.get("dtype") or "auto"
    return load_model(
        str(name), tokenizer, pretrain=drawn, seed=int(settings.get("seed") or 0), dtype=dtype,
        trust_remote_code=trust_remote_code,
    )  # fmt: skip
