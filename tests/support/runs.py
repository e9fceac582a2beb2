"""Runs of ``stepjepa train`` in this process, and what they leave in their folder."""

import json
import shutil
from pathlib import Path
from typing import Any

from stepjepa.cli.main import main
from support.rows import step_rows, write

STEPS = 6
CONSTANT = ("--lr_scheduler_type", "constant")


def train(output: Path, *flags: Any) -> int:
    """Train a tiny model for `STEPS` steps of 20 rows, a checkpoint every second one; the exit status."""
    rows = output.parent / "rows.jsonl"
    if not rows.exists():
        write(rows, step_rows(20))
    words = (
        f"--train_file {rows} --output_dir {output} --model_name tiny --step_jepa --lbd 0.5 --max_steps {STEPS} "
        "--save_steps 2 --logging_steps 1 --per_device_train_batch_size 4 --learning_rate 0.01 --disable_tqdm true"
    )
    return main(["train", *words.split(), *map(str, flags)])


def resume(output: Path, *flags: Any) -> int:
    """The same, with ``--resume_from_checkpoint true``."""
    return train(output, "--resume_from_checkpoint", "true", *flags)


def copy_of(run: Path, folder: Path, killed_after: int | None = None) -> Path:
    """A copy of a run that has ended, with its rows; with a step, what a kill after its checkpoint would have left."""
    out = shutil.copytree(run, folder / "out")  # makes the folder
    shutil.copy(run.parent / "rows.jsonl", folder)
    if killed_after is not None:
        for name in ("metrics.json", "model.safetensors"):
            (out / name).unlink()
        for checkpoint in out.glob("checkpoint-*"):
            if int(checkpoint.name.partition("-")[2]) > killed_after:
                shutil.rmtree(checkpoint)
    return out


def files_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of change of every file, by its path inside the folder."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def result_of(folder: Path) -> dict[str, Any]:
    """Weights, metrics and log of a finished run, without times, speeds and mean loss, which depend on a resume."""

    def timeless(entry: dict[str, Any]) -> dict[str, Any]:
        varying = ("runtime", "per_second", "train_loss")
        return {name: value for name, value in entry.items() if not any(word in name for word in varying)}

    record = json.loads((folder / "metrics.json").read_text(), parse_constant=lambda word: f"no JSON: {word}")
    return {
        "weights": {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))},
        "metrics": timeless(record["metrics"]),
        "log": [timeless(entry) for entry in record["log_history"]],
    }


def printed(capture: Any, words: list[Any], status: int = 0) -> str:
    """What a command prints; its errors where it ends with another status than 0."""
    assert main([*map(str, words)]) == status
    said = capture.readouterr()
    assert "Traceback" not in said.err
    return said.err if status else said.out


def one_line(said: str, command: str = "train") -> str:
    """The error line of a command that said nothing else on standard error after its notes."""
    lines = said.strip().splitlines()
    assert lines and "Traceback" not in said, said
    assert [line for line in lines if "error" in line] == lines[-1:], said
    assert lines[-1].startswith(f"stepjepa {command}: error: ") and len(lines[-1]) < 500, lines[-1]
    return lines[-1]


def run_here(log: Path, argv: list[str], environment: Any) -> None:
    """Takes the place of `stepjepa.study.stages.run_process`: a stage for real, but here, where torch is loaded already."""
    from stepjepa.study.folder import StudyRunFolder
    from stepjepa.study.score import score_splits
    from stepjepa.study.stages import StageFailed

    status = main(argv) if argv[0] == "train" else score_splits(StudyRunFolder(log.parent), argv[2:])
    if status:
        raise StageFailed(f"exit status {status}")
