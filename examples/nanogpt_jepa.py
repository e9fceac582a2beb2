# /// script
# requires-python = ">=3.10"
# dependencies = ["stepjepa[analysis]"]
# [tool.uv.sources]
# stepjepa = { path = ".." }
# ///
"""A nanoGPT with the JEPA term: one GPT, one loop, plain PyTorch. stepjepa gives the layout, the mask and the losses.

    python examples/nanogpt_jepa.py                      # baseline, then JEPA: same seed, data order and first weights
    python examples/nanogpt_jepa.py --control shuffled   # and a third arm, which aims at another block's target
    python examples/nanogpt_jepa.py --tokenizer bpe --jepa_k 2 --jepa_lambda 1.0

The loss is ``CE + jepa_lambda * (1 - cos(prediction, target))``. A block x of T tokens is cut at s; the state behind
x[:s] and K copies of one learned predictor vector must point where the last state of x[s:], encoded alone, points:

    trunk    x[0] .. x[s-1] .. x[T-1]    positions 0 .. T-1      nanoGPT's own sequence: its CE does not change
    branch          +- <p> .. <p>        positions s .. s+K-1    sees x[:s] and itself, nothing sees it; read at its end
    target   x[s] .. x[T-1]              positions 0 .. T-1-s    sees itself alone, no gradient; read at its end

Where a part is shorter than two tokens the loss is CE alone.

For a nanoGPT of your own: take `lay_out` and `losses`, give wte one more row, let forward take positions and a mask.
Letters: B blocks, R rows, T tokens, D width, H heads, K predictors, N trunk tokens, V vocabulary.
"""

import argparse
import json
import math
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from stepjepa.data.tasks import generate_split
from stepjepa.data.types import Example
from stepjepa.forest.collate import ForestCollator
from stepjepa.forest.visibility import dense_mask
from stepjepa.losses.distances import cosine_loss
from stepjepa.losses.lm import linear_cross_entropy_sum
from stepjepa.objectives.split import Split
from stepjepa.training.options import JEPAOptions


class Attention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x, mask):
        qkv = self.c_attn(x).unflatten(-1, (3, self.n_head, -1))  # (R, T, 3, H, D / H)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (R, H, T, D / H) each
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)  # (R, H, T, D / H)
        return self.c_proj(y.transpose(1, 2).flatten(2))  # (R, T, D)


class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = Attention(n_embd, n_head)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(n_embd, 4 * n_embd), "c_proj": nn.Linear(4 * n_embd, n_embd)})

    def forward(self, x, mask):
        x = x + self.attn(self.ln_1(x), mask)  # (R, T, D)
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x))))  # (R, T, D)


class GPT(nn.Module):
    """nanoGPT's model and parameter names, with one more row in wte and a forward that takes positions and a mask."""

    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd):
        super().__init__()
        self.vocab_size = vocab_size
        wte = nn.Embedding(vocab_size + 1, n_embd)  # row V is the predictor: an input, never a class of the softmax
        wpe, ln_f = nn.Embedding(block_size, n_embd), nn.LayerNorm(n_embd)
        h = nn.ModuleList(Block(n_embd, n_head) for _ in range(n_layer))
        self.transformer = nn.ModuleDict({"wte": wte, "wpe": wpe, "h": h, "ln_f": ln_f})
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    @property
    def head(self):
        return self.transformer.wte.weight[: self.vocab_size]  # (V, D), tied

    def forward(self, idx, pos=None, mask=None):
        """States behind the final norm, (R, T, D). Without positions and a mask this is the plain causal GPT."""
        pos = torch.arange(idx.shape[1], device=idx.device) if pos is None else pos  # (T,) or (R, T)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)  # (R, T, D)
        for block in self.transformer.h:
            x = block(x, mask)  # (R, T, D)
        return self.transformer.ln_f(x)  # (R, T, D)


def lay_out(x, collator, split, device):
    """Blocks x (B, T) as rows of trunks with their branches, and their targets as rows of their own."""
    objective = Split(JEPAOptions(objective=Split.name, split_ratio=split, predictors=len(collator.predictor_ids)))
    found = [(block, objective.pairs_of_text(block)) for block in x]
    # No labels: a label is a token of the trunk, and y also holds the token behind the block.
    return collator([Example(block, (), pairs.segments, pairs.pairs) for block, pairs in found]).to(device)


def losses(model, batch, y):
    """CE (), each prediction's distance from its target (B,), and, to compare, from the next block's target (B,)."""
    rows = batch.rows
    hidden = model(rows.input_ids, rows.position_ids, dense_mask(rows))  # (R, T + K and padding, D)
    trunk = rows.segment == 0  # (R, T + K and padding)
    labels = y[rows.example[trunk], rows.order[trunk]]  # (N,), N = B * T
    ce = linear_cross_entropy_sum(hidden[trunk], model.head, labels) / len(labels)
    if batch.target_rows is None:  # a part of less than two tokens: cross-entropy alone
        return ce, torch.zeros(len(y), device=ce.device), torch.zeros(len(y), device=ce.device)
    prediction = hidden.flatten(0, 1)[batch.sources.positions]  # (B, D)
    # Targets in the same rows and a .detach() would give the same numbers, but the backward pass would then compute the
    # zeros of all their tokens. Rows of their own, in a pass that keeps no graph, are cheaper.
    rows = batch.target_rows
    with torch.no_grad():
        states = model(rows.input_ids, rows.position_ids, dense_mask(rows))  # (R, T - s and padding, D)
        target = states.flatten(0, 1)[batch.targets.positions]  # (B, D)
    return ce, cosine_loss(prediction, target), cosine_loss(prediction, target.roll(1, dims=0))


def make_streams(args):
    """Built-in arithmetic stories as streams of token ids, (length,) int32: training, held-out, vocabulary size."""
    rows = generate_split(args.num_texts, max(20, args.num_texts // 10), seed=0)
    train, held_out = (["\n".join(m["content"] for m in row["messages"]) + "\n\n\n" for row in side] for side in rows)
    if args.tokenizer == "char":
        table = {char: i for i, char in enumerate(sorted(set("".join(train + held_out))))}
        return *(np.array([table[c] for c in "".join(side)], np.int32) for side in (train, held_out)), len(table)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe, alphabet = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel.alphabet()
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    bpe.train_from_iterator(train, trainers.BpeTrainer(vocab_size=512, initial_alphabet=alphabet, show_progress=False))
    encoded = (np.concatenate([text.ids for text in bpe.encode_batch(side)]) for side in (train, held_out))
    return *(ids.astype(np.int32) for ids in encoded), bpe.get_vocab_size()


def get_batch(stream, starts, args):
    """x (B, T) int32, and y (B, T) int64, the token behind each of x."""
    rows = np.stack([stream[start : start + args.block_size + 1] for start in starts])  # (B, T + 1)
    return rows[:, :-1], torch.from_numpy(rows[:, 1:].astype(np.int64)).to(args.device)


@torch.no_grad()
def held_out_losses(model, stream, collator, args):
    """Means of (CE, JEPA, JEPA to another block's target) over `eval_iters` batches, the same ones for every arm."""
    starts = np.linspace(0, len(stream) - args.block_size - 1, args.eval_iters * args.batch_size).astype(int)
    sums = torch.zeros(3, device=args.device)
    for some in starts.reshape(args.eval_iters, args.batch_size):
        x, y = get_batch(stream, some, args)
        parts = losses(model, lay_out(x, collator, args.jepa_split, args.device), y)
        sums += torch.stack([part.mean() for part in parts])
    return (sums / args.eval_iters).tolist()


def train_arm(name, train, held_out, vocab_size, args):
    """Train one model. Returns what was logged, the last held-out losses, tokens a second and seconds of training."""
    torch.manual_seed(args.seed)  # the same first weights for every arm,
    order = np.random.default_rng(args.seed)  # and the same blocks in the same order
    model = GPT(vocab_size, args.block_size, args.n_layer, args.n_head, args.n_embd).to(args.device)
    matrices, vectors = ([p for p in model.parameters() if (p.dim() == 2) == wanted] for wanted in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate, betas=(0.9, 0.99))
    predictors, tokens = (vocab_size,) * args.jepa_k, args.batch_size * args.block_size
    collator = ForestCollator(predictors, pad_token_id=0, separate_targets=True)
    own = ForestCollator(predictors, pad_token_id=0, separate_targets=True, shuffle_targets=name == "shuffled")
    print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters, {tokens:,} tokens an iteration")

    log, speeds, seconds, since = [], [], 0.0, 0
    sums, begun = torch.zeros(2, device=args.device), time.perf_counter()
    for step in range(1, args.max_iters + 1):
        rate = args.learning_rate * min(1, step / 50)  # a short warm-up, then a cosine down to a tenth
        for group in optimizer.param_groups:
            group["lr"] = rate * (0.55 + 0.45 * math.cos(math.pi * step / args.max_iters))
        x, y = get_batch(train, order.integers(len(train) - args.block_size, size=args.batch_size), args)
        if name == "baseline":  # nanoGPT as it is: no layout, and attention that needs no mask
            hidden = model(torch.from_numpy(x).to(args.device))  # (B, T, D)
            ce = linear_cross_entropy_sum(hidden.flatten(0, 1), model.head, y.flatten()) / y.numel()
            jepa = torch.zeros_like(ce)
        else:
            ce, distance, _ = losses(model, lay_out(x, own, args.jepa_split, args.device), y)
            jepa = distance.mean()
        optimizer.zero_grad(set_to_none=True)
        (ce + args.jepa_lambda * jepa).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        sums, since = sums + torch.stack([ce, jepa]).detach(), since + 1
        if step % args.eval_interval == 0 or step == args.max_iters:
            ce, jepa = (sums / since).tolist()  # waits for the device, so the clock is right
            took = time.perf_counter() - begun
            seconds, speeds = seconds + took, [*speeds, since * tokens / took]
            held_ce, held_jepa, other = held_out_losses(model, held_out, collator, args)
            log.append({"iter": step, "train_ce": ce, "train_jepa": None if name == "baseline" else jepa})
            log[-1] |= {"held_out_ce": held_ce, "held_out_jepa": held_jepa, "held_out_jepa_other": other}
            term = "" if name == "baseline" else f" JEPA {jepa:.4f} total {ce + args.jepa_lambda * jepa:.4f}"
            part = f"{name} iter {step}: CE {ce:.4f}{term} | held-out CE {held_ce:.4f} JEPA {held_jepa:.4f}"
            print(f"{part} | {speeds[-1]:,.0f} tokens/s", flush=True)
            sums, since, begun = torch.zeros_like(sums), 0, time.perf_counter()
    return {"log": log, **log[-1], "tokens_per_second": float(np.median(speeds)), "train_seconds": seconds}


def draw(arms, path, args):
    from matplotlib import figure, rcParams

    styles = {"baseline": ("#000000", "o--"), "jepa": ("#0072b2", "o-"), "shuffled": ("#d55e00", "o-.")}  # Okabe, Ito
    unit = {"char": "character", "bpe": "BPE token"}[args.tokenizer]
    panels = {"held_out_ce": f"held-out CE (nats a {unit})", "held_out_jepa": "held-out JEPA (1 - cosine)"}
    rcParams.update({"font.size": 12, "lines.linewidth": 2})
    picture = figure.Figure(figsize=(9, 4.2), layout="constrained")
    for axis, (key, label) in zip(picture.subplots(1, 2), panels.items(), strict=True):
        for name, arm in arms.items():
            points = [(entry["iter"], entry[key]) for entry in arm["log"]]
            axis.plot(*zip(*points, strict=True), styles[name][1], color=styles[name][0], markersize=4, label=name)
        axis.set(xlabel="iteration", ylabel=label, xlim=(0, None), ylim=(0, None))
        axis.grid(alpha=0.3)
    picture.axes[0].legend(frameon=False)
    picture.suptitle(f"lambda {args.jepa_lambda:g}, K {args.jepa_k}, split {args.jepa_split:g}, seed {args.seed}")
    picture.savefig(path, dpi=140)


CLOSING = """
CE in nats a token, JEPA = 1 - cosine; times compare on an idle machine only. The baseline's JEPA is measured, never
trained. Where another block's target is as near as the block's own, the prediction holds what all targets share, and
nothing of the block. One seed is no evidence that JEPA helps or harms. A claim needs several seeds, compared seed by
seed, the arm with shuffled targets (--control shuffled), and a baseline that gets the same compute, not the same
iterations."""


def report(arms):
    print("\narm       held-out CE   held-out JEPA   JEPA to another's target   tokens/s   seconds   time a token")
    for name, arm in arms.items():
        parts = f"{arm['held_out_ce']:11.4f}   {arm['held_out_jepa']:13.4f}   {arm['held_out_jepa_other']:24.4f}"
        slower = arms["baseline"]["tokens_per_second"] / arm["tokens_per_second"]
        print(f"{name:8}  {parts}   {arm['tokens_per_second']:8,.0f}   {arm['train_seconds']:7.1f}   {slower:11.2f}x")
    print(CLOSING)


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: error: {message}\n")  # one line, without the usage
    counts = {"n_layer": 3, "n_head": 4, "n_embd": 96, "block_size": 128, "batch_size": 16, "max_iters": 300}
    counts |= {"eval_interval": 25, "eval_iters": 8, "num_texts": 4000}
    for name, value in counts.items():
        parser.add_argument(f"--{name}", type=int, default=value, help="default %(default)s")
    parser.add_argument("--learning_rate", type=float, default=2e-3, help="default %(default)s")
    parser.add_argument("--jepa_lambda", type=float, default=0.5, help="default 0.5; 0: the baseline alone")
    parser.add_argument("--jepa_k", type=int, default=1, help="default 1; 0 reads the last state of x[:s]")
    parser.add_argument("--jepa_split", type=float, default=0.5, help="share of the block before the cut, default 0.5")
    parser.add_argument("--control", choices=["none", "shuffled"], default="none", help="shuffled adds that arm")
    parser.add_argument("--tokenizer", choices=["char", "bpe"], default="char")
    parser.add_argument("--seed", type=int, default=1337, help="of first weights and data order")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out_dir", type=Path, default=Path("runs/nanogpt_jepa"))
    parser.add_argument("--overwrite", action="store_true", help="write into a folder that holds files already")
    args = parser.parse_args(argv)
    cut = max(2, int(args.block_size * args.jepa_split)) if 0 < args.jepa_split < 1 else 0
    rest = args.block_size - cut
    taken = args.out_dir.is_file() or (args.out_dir.is_dir() and any(args.out_dir.iterdir()) and not args.overwrite)
    lone = args.control == "shuffled" and (args.batch_size < 2 or args.jepa_lambda == 0)
    checks = [
        *((getattr(args, name) < 1, f"--{name} must be 1 or more") for name in counts),
        (args.n_embd % max(1, args.n_head), f"--n_embd {args.n_embd} is no multiple of --n_head {args.n_head}"),
        (not 0 < args.learning_rate < math.inf, f"--learning_rate must be above 0, got {args.learning_rate}"),
        (not 0 <= args.jepa_lambda < math.inf, f"--jepa_lambda must be 0 or more, got {args.jepa_lambda}"),
        (not cut, f"--jepa_split must lie between 0 and 1, got {args.jepa_split}"),
        (not 0 <= args.seed < 2**32, f"--seed must lie in 0 .. 2**32 - 1, got {args.seed}"),
        (args.jepa_k < 0 or args.jepa_k > rest >= 2, f"--jepa_k must lie in 0 .. {rest}, the room behind the cut"),
        (lone, "--control shuffled needs a --batch_size of 2 or more and a --jepa_lambda above 0"),
        (taken, f"--out_dir {args.out_dir} is a file or holds files: name another folder, or add --overwrite"),
        (not find_spec("matplotlib"), "the curve needs matplotlib: pip install 'stepjepa[analysis]'"),
    ]
    for message in (said for wrong, said in checks if wrong):
        parser.error(message)
    try:
        torch.zeros(1, device=args.device)
        args.out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out_dir {args.out_dir} cannot be made: {error.strerror}")
    except (RuntimeError, AssertionError) as error:
        parser.error(f"--device {args.device} cannot be used: {str(error).splitlines()[0]}")
    if rest < 2:
        print(f"--block_size {args.block_size} leaves less than 2 tokens after the cut: cross-entropy alone")
    return args


def main():
    args = parse()
    train, held_out, vocab_size = make_streams(args)
    if min(len(train), len(held_out)) <= args.block_size:
        raise SystemExit(f"the text is no longer than --block_size {args.block_size}: raise --num_texts")
    print(f"{len(train):,} training tokens, {len(held_out):,} held-out, vocabulary {vocab_size}, {args.device}")
    names = ["baseline"] + ["jepa"] * (args.jepa_lambda > 0) + ["shuffled"] * (args.control == "shuffled")
    arms = {name: train_arm(name, train, held_out, vocab_size, args) for name in names}
    record = json.dumps({"settings": vars(args), "arms": arms}, indent=1, default=str)  # str for the path
    (args.out_dir / "results.json").write_text(record + "\n")
    draw(arms, args.out_dir / "curves.png", args)
    report(arms)
    print(f"Wrote results.json and curves.png to {args.out_dir}")


if __name__ == "__main__":
    main()
