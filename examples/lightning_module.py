# /// script
# requires-python = ">=3.10"
# dependencies = ["stepjepa", "lightning"]
# [tool.uv.sources]
# stepjepa = { path = ".." }
# ///
"""A JEPA objective in a Lightning module, by manual optimization: a batch of the loader is one optimizer step.

    pip install lightning
    python examples/lightning_module.py --model_name path/to/model --steps 100

Lightning is imported when the script runs; the class takes its base class as an argument.
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from stepjepa import parts
from stepjepa.data.sources import texts_of
from stepjepa.modeling.load import load_model, load_tokenizer

DATA = Path(__file__).with_name("arithmetic.jsonl")


def window_of(examples, collate, size):
    """The micro-batches of an optimizer step."""
    return [collate(examples[first : first + size]) for first in range(0, len(examples), size)]


def jepa_module(base):
    """The module's class, made from `lightning.LightningModule`."""

    class JEPAModule(base):
        def __init__(self, model, encoder, steps, learning_rate=1e-3):
            super().__init__()
            self.automatic_optimization = False  # the loss is divided by the counts of the whole step
            self.model, self.encoder = model, encoder
            self.steps, self.learning_rate = steps, learning_rate

        def training_step(self, window, batch_idx):
            optimizer, step = self.optimizers(), self.global_step
            counts = parts.counts(self.encoder, window)
            # Gradients are averaged over the processes, and counts are summed.
            processes = self.trainer.world_size
            counts = {name: self.trainer.strategy.reduce(count, reduce_op="sum") for name, count in counts.items()}
            total = 0.0
            for batch in window:
                output = parts.forward(self.model, batch, step)
                loss = parts.loss(output, self.encoder.lbd(step, self.steps), counts) * processes
                self.manual_backward(loss)
                total += loss.item()
            self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            optimizer.step()
            optimizer.zero_grad()
            parts.move_target_encoder(self.model, (step + 1) / self.steps)
            self.log("loss", total, prog_bar=True, batch_size=len(window))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.model.parameters(), lr=self.learning_rate, weight_decay=0.0)

    return JEPAModule


def main():
    from lightning import LightningModule, Trainer

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--train_file", default=str(DATA), help="rows with messages (default: arithmetic.jsonl)")
    parser.add_argument("--model_name", default="micro", help="folder or Hub id; default: a small one is made here")
    parser.add_argument("--objective", default="step_jepa", help="default %(default)s")
    parser.add_argument("--steps", type=int, default=20, help="default %(default)s")
    args = parser.parse_args()
    tokenizer = load_tokenizer(args.model_name, texts_of([args.train_file]))
    model = load_model(args.model_name, tokenizer)
    encoder = parts.Encoder(tokenizer, model, objective=args.objective)
    examples = encoder(args.train_file)
    model = parts.attach(model, encoder).train()
    collate = partial(window_of, collate=parts.Collator(encoder, model), size=4)
    loader = DataLoader(examples, batch_size=8, shuffle=True, drop_last=True, collate_fn=collate)
    module = jepa_module(LightningModule)(model, encoder, args.steps)
    Trainer(max_steps=args.steps, logger=False, enable_checkpointing=False).fit(module, loader)
    parts.detach(model)


if __name__ == "__main__":
    main()
