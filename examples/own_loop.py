# /// script
# requires-python = ">=3.10"
# dependencies = ["stepjepa"]
# [tool.uv.sources]
# stepjepa = { path = ".." }
# ///
"""A JEPA objective in a plain PyTorch loop, without the Trainer: the same weights, bit for bit, as `JEPATrainer`'s.

python examples/own_loop.py
python examples/own_loop.py --model_name path/to/model --objective next_latent --steps 100 --output_dir runs/own_loop
"""

import argparse
from itertools import count, islice
from pathlib import Path

import torch

from stepjepa import parts
from stepjepa.data.sources import texts_of
from stepjepa.errors import StepJepaError
from stepjepa.modeling.load import load_model, load_tokenizer

DATA = Path(__file__).with_name("arithmetic.jsonl")


def batches(encoder, data, collate, size):
    """Micro-batches without end. Every epoch samples again what the objective samples."""
    for epoch in count():
        examples = encoder(data, epoch)
        for first in range(0, len(examples) - size + 1, size):
            yield collate(examples[first : first + size])


def train(model, tokenizer, rows, steps=5, size=4, accumulation=2, learning_rate=1e-3, log=print, **options):
    encoder = parts.Encoder(tokenizer, model, **options)
    data = encoder.read(rows)
    log(f"{len(data)} examples, {encoder.report.pairs} pairs")
    model = parts.attach(model, encoder).train()
    stream = batches(encoder, data, parts.Collator(encoder, model), size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    for step in range(steps):
        window = [batch.to(model.device) for batch in islice(stream, accumulation)]
        counts = parts.counts(encoder, window)  # labels and pairs of the whole step
        total = 0.0
        for batch in window:
            output = parts.forward(model, batch, step)
            loss = parts.loss(output, encoder.lbd(step, steps), counts)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        parts.move_target_encoder(model, (step + 1) / steps)
        log(f"step {step + 1}/{steps}  loss {total:.4f}")
    return parts.detach(model)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--train_file", default=str(DATA), help="rows with messages (default: arithmetic.jsonl)")
    parser.add_argument("--model_name", default="micro", help="folder or Hub id; default: a small one is made here")
    parser.add_argument("--objective", default="step_jepa", help="default %(default)s")
    parser.add_argument("--steps", type=int, default=20, help="default %(default)s")
    parser.add_argument("--output_dir", help="folder for the model and its tokenizer")
    args = parser.parse_args()
    try:
        tokenizer = load_tokenizer(args.model_name, texts_of([args.train_file]))
        model = load_model(args.model_name, tokenizer)
        model = train(model, tokenizer, args.train_file, args.steps, objective=args.objective)
    except StepJepaError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    if args.output_dir:
        model.save_pretrained(args.output_dir)
        tokenizer.save_pretrained(args.output_dir)


if __name__ == "__main__":
    main()
