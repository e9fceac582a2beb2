"""Trainers whose weights are sharded over two processes (FSDP2), on CPU over gloo, and the same ones in one process.

accelerate shards on accelerators only. `shard_on_cpu` lets it shard here; everything else is its own. As a program this
runs the cases of a file, or the command line:

    python -m torch.distributed.run --nproc_per_node 2 -m support.sharding train --fsdp true ...
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from stepjepa.generation.local import generate_batch
from stepjepa.modeling.load import load_tokenizer
from stepjepa.modeling.lora import lora_config
from stepjepa.training.run import leave_process_group
from support.models import tiny_model
from support.rows import step_rows
from support.training import Options, logs_of, trainer_for

STEPS, BATCH = 5, 4  # optimizer steps, and examples of each


def shard_on_cpu() -> None:
    own = AcceleratorState.__init__

    def init(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        own(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is None or self.distributed_type == DistributedType.FSDP:
            return
        # What it does where the processes have accelerators.
        PartialState._shared_state["distributed_type"] = self.distributed_type = DistributedType.FSDP
        if self._mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(self._mixed_precision)
        self.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = init


def launch(
    arguments: Sequence[object], module: str = __name__, timeout: int = 300, processes: int = 2
) -> subprocess.CompletedProcess:
    """Run this module, or another, in several processes, with torchrun."""
    run = ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m", module]
    folder = str(Path(__file__).parents[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([folder, environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", *run, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)


def rows() -> list[dict[str, Any]]:
    """Eighteen chats in order. Each process gets two of every four: the second one none with a pair in the first step, the
    first one none in the third, and in the last step there is nothing for the second at all."""
    found = step_rows(18, seed=3)
    for number in (2, 3, 8, 9):
        found[number]["messages"][-1]["content"] = "One step."
    return found


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that may be sharded, gathered. Every process must call it."""
    full: Any = tensor.detach()
    return (full.full_tensor() if hasattr(full, "full_tensor") else full).clone().cpu()


def parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters by their names without FSDP's activation checkpointing."""
    return ((name.replace("_checkpoint_wrapped_module.", ""), one) for name, one in model.named_parameters())


def score(model: Any, tokenizer: Any, process: int, processes: int) -> dict[str, tuple[float, int]]:
    """As many answers as the process has a number, from 1, so that no two processes generate as often."""
    prompts = [[5, 6, 7 + number] for number in range(process + 1)]
    answers = [generate_batch(model, [prompt], 2, [])[0] for prompt in prompts]
    return {"answers": (float(sum(len(answer) for answer in answers)), len(answers))}


def results(folder: Path, tokenizer: Any, options: Options, processes: int) -> dict[str, Any]:
    """Train; what every step logged, its gradients before clipping, the weights at the end, how many are sharded, the dtypes
    of the losses. The final model is in ``final``, that of a run resumed after step 3 in ``resumed``."""
    options = {"optim": "sgd", "max_steps": STEPS, "train_sampling_strategy": "sequential", **options}
    tied, lora, scored, resume = (options.pop(name, False) for name in ("tied", "lora", "scored", "resume"))
    options |= {"fsdp": True} if processes > 1 else {}
    options |= {"save_strategy": "steps", "save_steps": 3} if resume else {}

    def make() -> Any:
        AcceleratorState._reset_state()  # the process group stays
        model = tiny_model("llama", vocab_size=len(tokenizer), tie_word_embeddings=tied)
        evaluation = {"eval_rows": step_rows(5, seed=4), "eval_strategy": "steps", "eval_steps": 2} if scored else {}
        peft = lora_config(4, dropout=0.0) if lora else None
        made = trainer_for(folder, tokenizer, rows(), BATCH // processes, peft, model=model, **evaluation, **options)
        made.score_answers = score if scored else None
        return made

    trainer = make()
    gradients, dtypes, clip, compute_loss = [], set(), trainer._clip_grad_norm, trainer.compute_loss

    def keep_gradients(model: Any) -> Any:
        gradients.append({name: whole(p.grad) for name, p in parameters(model) if p.grad is not None})
        return clip(model)

    def keep_dtypes(model: Any, inputs: Any, **counts: Any) -> Any:
        loss, output = compute_loss(model, inputs, True, **counts)
        dtypes.update(str(part.sum.dtype) for part in output.parts.values())
        return loss

    trainer._clip_grad_norm, trainer.compute_loss = keep_gradients, keep_dtypes
    trainer.train()
    sharded = sum(hasattr(p, "full_tensor") for p in trainer.model.parameters())
    weights = {name: whole(p) for name, p in parameters(trainer.model)}
    trainer.save_model(str(folder / "final"))
    if resume:
        resumed = make()
        resumed.train(resume_from_checkpoint=str(folder / "out" / "checkpoint-3"))
        resumed.save_model(str(folder / "resumed"))
    return {
        "evaluations": [entry for entry in trainer.state.log_history if "eval_loss" in entry],
        "logs": logs_of(trainer),
        "gradients": gradients,
        "weights": weights,
        "sharded": sharded,
        "dtypes": dtypes,
    }


def run_cases(folder: Path) -> None:
    """Run the cases of ``cases.json`` in this folder, options by name; process 0 writes what each came to."""
    cases: Mapping[str, Options] = json.loads((folder / "cases.json").read_text())
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    for name, options in cases.items():
        found = results(folder / name, tokenizer, options, processes=2)
        if torch.distributed.get_rank() == 0:
            torch.save(found, folder / f"{name}.pt")
    leave_process_group()


if __name__ == "__main__":
    from stepjepa.cli.main import main

    shard_on_cpu()
    if Path(sys.argv[1]).is_dir():
        run_cases(Path(sys.argv[1]))
    else:
        sys.exit(main())
