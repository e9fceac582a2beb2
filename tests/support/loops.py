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
from support.models import tiny_model
from support.rows import step_rows
from support.sharding import whole
from support.training import Options, trainer_for

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS, SIZE, ACCUMULATION, RATE = 5, 2, 2, 1e-3
WINDOW: Options = {"size": SIZE, "accumulation": ACCUMULATION, "learning_rate": RATE}
CASES: dict[str, Options] = {
    "step_jepa": {"objective": "step_jepa", "predictors": 2, "lbd": 0.5},
    "pairs": {"objective": "step_jepa", "step_pairs": "random", "lbd": 0.5, "predictor_head": "linear"},
    "next_latent": {"objective": "next_latent", "lbd": 0.5},
    "ema": {
        "objective": "step_jepa",
        "lbd": 0.5,
        "target_encoder": "ema",
        "ema_momentum": 0.5,
        "lbd_warmup_ratio": 0.5,
    },
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


def accelerate_weights(tokenizer: Any, options: Options) -> dict[str, torch.Tensor]:
    """What a loop with Accelerate comes to."""
    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True)
    processes = accelerator.num_processes
    model = model_for(tokenizer)
    encoder = parts.Encoder(tokenizer, model, **options)
    data = encoder.read(rows(processes))
    model = parts.attach(model, encoder).train()
    collate = parts.Collator(encoder, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    stream = example("own_loop").batches(encoder, data, collate, SIZE)
    stream = islice(stream, accelerator.process_index, None, processes)
    for step in range(STEPS):
        window = list(islice(stream, ACCUMULATION))
        counts = accelerator.reduce(parts.counts(encoder, window))
        for number, batch in enumerate(window, 1):
            with nullcontext() if number == ACCUMULATION else accelerator.no_sync(model):
                output = parts.forward(model, batch, step)
                loss = parts.loss(output, encoder.lbd(step, STEPS), counts)
                accelerator.backward(loss * processes)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        parts.move_target_encoder(model, (step + 1) / STEPS)
    return saved(parts.detach(model))


def fsdp_weights(tokenizer: Any, options: Options) -> dict[str, torch.Tensor]:
    """What a loop comes to whose model is sharded over the processes with FSDP2."""
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = model_for(tokenizer)
    encoder = parts.Encoder(tokenizer, model, **options)
    data = encoder.read(rows(processes))
    model = parts.attach(model, encoder).train()
    mesh = init_device_mesh("cpu", (processes,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    collate = parts.Collator(encoder, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    stream = islice(example("own_loop").batches(encoder, data, collate, SIZE), rank, None, processes)
    for step in range(STEPS):
        window = list(islice(stream, ACCUMULATION))
        counts = parts.counts(encoder, window)
        for number in counts.values():
            torch.distributed.all_reduce(number)
        for batch in window:
            output = parts.forward(model, batch, step)
            loss = parts.loss(output, encoder.lbd(step, STEPS), counts)
            (loss * processes).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        parts.move_target_encoder(model, (step + 1) / STEPS)
    assert all(hasattr(weight, "full_tensor") for weight in model.parameters())
    return saved(parts.detach(model))


def main(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    for name in SPREAD:
        options = CASES[name]
        weights = {
            "trainer": trainer_weights(folder / name, tokenizer, options, processes=2),
            "accelerate": accelerate_weights(tokenizer, options),
            "fsdp": fsdp_weights(tokenizer, options),
        }
        if torch.distributed.get_rank() == 0:
            torch.save(weights, folder / f"{name}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
