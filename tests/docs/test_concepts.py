"""The code of docs/concepts.md runs as it stands, and its losses are those of separate passes through the plain model."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "concepts.md").read_text(encoding="utf-8")


def test_the_code_learns_and_its_losses_are_those_of_separate_passes():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 45 and "Trainer" not in code
    printed: list[str] = []
    names = {"print": printed.append}
    with torch.random.fork_rng():
        exec(compile(code, "docs/concepts.md", "exec"), names)
    found = [re.fullmatch(r"step (\d+): LM (\d\.\d{3}) nats a character, JEPA (\d\.\d{3})", line) for line in printed]
    assert all(found) and [int(match[1]) for match in found] == [10, 20, 30]
    first, last = float(found[0][2]), float(found[-1][2])
    assert last < first - 0.5 and last < 2.7
    model, chats = names["model"], [("Ann has 3.", "3 + 4 = 7.\n\n7 - 2 = 5.\n\nSo 5."), ("Bo?", "Ten.\n\nNine!")]
    examples = [names["make_example"](*chat) for chat in chats]
    batch = names["collate"](examples)
    with torch.no_grad():
        for parameter in model.parameters():  # states of small weights are alike, and a wrong mask would hardly show
            parameter.mul_(4)
        lm, jepa = names["losses"](model, batch)
        assert batch.rows.input_ids.numel() < 2 * sum(len(example.trunk) for example in examples)  # no doubled rows
        logits, targets, distances = [], [], []
        for (question, answer), example in zip(chats, examples, strict=True):
            ids = torch.tensor(example.trunk).long()[None]
            states = model(ids).last_hidden_state[0]
            begin = len(question) + 2
            logits.append(states[begin - 1 : -1] @ model.embed_tokens.weight[:128].T)
            targets.append(ids[0, begin:])
            end = begin + answer.index("\n\n") + 2
            stop = end + len(answer.split("\n\n")[1]) + 2
            source = model(torch.cat([ids[:, :end], torch.tensor([[128, 129]])], dim=1)).last_hidden_state[0, -1]
            target = model(ids[:, end:stop]).last_hidden_state[0, -1]
            distances.append(1 - F.cosine_similarity(source, target, dim=0))
    assert lm.item() == pytest.approx(F.cross_entropy(torch.cat(logits), torch.cat(targets)).item(), abs=1e-4)
    assert jepa.item() == pytest.approx(torch.stack(distances).mean().item(), abs=1e-5)
    assert 0.05 < jepa.item() < 1.95
