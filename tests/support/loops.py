"""Loops of your own on two processes, next to `JEPATrainer` on the same rows: with Accelerate, and under FSDP2.

As a program, which torchrun starts, it runs every case and writes the weights at the end:

    python -m torch.distributed.run --nproc_per_node 2 -m support.loops FOLDER
"""

import importlib.util
import sys
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stepjepa import parts
from stepjepa.modeling.load import load_tokenizer
from stepjepa.training.run import leave_process_group
from support.models import tiny_model
from support.rows import step_rows
from support.sharding import whole
from support.training import Options, trainer_for

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS, SIZE, ACCUMULATION, RATE = 5, 2, 2, 1e-3
WINDOW: Options = {"size": SIZE, "accumulation": ACCUMULATION, "learning_rate": RATE}
EMA: Options = {"target_encoder": "ema", "ema_momentum": 0.5}
CASES: dict[str, Options] = {
    "step_jepa": {"objective": "step_jepa", "predictors": 2, "lbd": 0.5},
    "pairs": {"objective": "step_jepa", "step_pairs": "random", "lbd": 0.5, "predictor_head": "linear"},
    "next_latent": {"objective": "next_latent", "lbd": 0.5},
    "ema": {"objective": "step_jepa", "lbd": 0.5, "lbd_warmup_ratio": 0.5, **EMA},
    "regular": {"objective": "regular"},
}
SPREAD = ("step_jepa", "next_latent", "ema")  # on two processes


def example(name: str) -> Any:
    """A script of `examples/` as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(processes: int = 1) -> list[dict[str, Any]]:
    """Those of two and a half epochs of the five steps."""
    return step_rows(2 * SIZE * ACCUMULATION * processes, seed=5)


def model_for(tokenizer: Any) -> Any:
    return tiny_model("llama", vocab_size=len(tokenizer))


def saved(model: Any) -> dict[str, torch.Tensor]:
    return {name: whole(weight) for name, weight in model.state_dict().items()}


def trainer_weights(folder: Path, tokenizer: Any, options: Options, processes: int = 1) -> dict[str, torch.Tensor]:
    """What `JEPATrainer` comes to in this process, or in as many as there are."""
    AcceleratorState._reset_state()  # the process group stays
    run = {"gradient_accumulation_steps": ACCUMULATION, "learning_rate": RATE, "optim": "adamw_torch"}
    run |= {"lr_scheduler_type": "constant", "train_sampling_strategy": "sequential", "max_steps": STEPS}
    trainer = trainer_for(
        folder, tokenizer, rows(processes), SIZE, model=model_for(tokenizer), **run, max_grad_norm=1.0, **options
    )
    trainer.train()
    return saved(trainer.accelerator.unwrap_model(trainer.model))


def loop_weights(tokenizer: Any, options: Options, sharded: bool) -> dict[str, torch.Tensor]:
    """What a loop comes to: with Accelerate, or with a model that is sharded over the processes with FSDP2."""
    AcceleratorState._reset_state()
    accelerator = None if sharded else Accelerator(cpu=True)
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = model_for(tokenizer)
    encoder = parts.Encoder(tokenizer, model, **options)
    data = encoder.read(rows(processes))
    model = parts.attach(model, encoder).train()
    if sharded:
        mesh = init_device_mesh("cpu", (processes,))
        for part in (*model.model.layers, model):
            fully_shard(part, mesh=mesh)
    collate = parts.Collator(encoder, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    clip, backward = torch.nn.utils.clip_grad_norm_, torch.Tensor.backward
    if accelerator is not None:
        model, optimizer = accelerator.prepare(model, optimizer)
        clip, backward = accelerator.clip_grad_norm_, accelerator.backward
    stream = islice(example("own_loop").batches(encoder, data, collate, SIZE), rank, None, processes)
    for step in range(STEPS):
        window = list(islice(stream, ACCUMULATION))
        counts = parts.counts(encoder, window)
        if accelerator is not None:
            counts = accelerator.reduce(counts)
        else:
            for number in counts.values():
                torch.distributed.all_reduce(number)
        for number, batch in enumerate(window, 1):
            waiting = accelerator is not None and number < ACCUMULATION
            with accelerator.no_sync(model) if waiting else nullcontext():
                output = parts.forward(model, batch, step)
                loss = parts.loss(output, encoder.lbd(step, STEPS), counts)
                backward(loss * processes)
        clip(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        parts.move_target_encoder(model, (step + 1) / STEPS)
    assert sharded == all(hasattr(weight, "full_tensor") for weight in model.parameters())
    return saved(parts.detach(model))


def main(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    for name in SPREAD:
        options = CASES[name]
        weights = {
            "trainer": trainer_weights(folder / name, tokenizer, options, processes=2),
            "accelerate": loop_weights(tokenizer, options, sharded=False),
            "fsdp": loop_weights(tokenizer, options, sharded=True),
        }
        if torch.distributed.get_rank() == 0:
            torch.save(weights, folder / f"{name}.pt")
    leave_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
