"""What one training step asks of a device, watched on CPU: no read would wait for a GPU."""

import traceback
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stepjepa.modeling.extras import begin_targets
from stepjepa.modeling.load import load_model
from support.training import METHODS, trainer_for

# transformers itself looks at the padding of two passes.
METHODS = {name: options for name, options in METHODS.items() if name not in ("two_pass", "sdpa")}

# They give the host a value, or a shape that depends on one; or make a tensor of the host's numbers.
WAITING = ("local_scalar_dense", "nonzero", "masked_select", "unique", "bincount", "equal", "lift_fresh")


class Watched(TorchDispatchMode):
    """Counts operator calls, and the places in the library of those for which a GPU would be waited for."""

    def __init__(self):
        super().__init__()
        self.calls, self.waiting = Counter(), Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).removeprefix("aten.").lstrip("_")
        self.calls[name] += 1
        indices = args[1] if name.startswith("index") and isinstance(args[1], list) else []
        by_mask = any(one is not None and one.dtype == torch.bool for one in indices)
        if by_mask or name.startswith(WAITING):
            ours = [frame for frame in traceback.extract_stack() if "/stepjepa/" in frame.filename]
            self.waiting.update(f"{name}: {frame.filename}:{frame.lineno}" for frame in ours[-1:])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", METHODS)
def test_nothing_waits_for_the_device(method, tmp_path, tokenizer):
    model = load_model("tiny", tokenizer, attn_implementation="sdpa")
    trainer = trainer_for(tmp_path, tokenizer, model=model, use_cpu=True, **METHODS[method])
    trainer.create_optimizer()
    begin_targets(trainer.model, trainer.args.target_encoder)
    (batch,), counts = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 1, trainer.args.device)
    trainer.training_step(trainer.model, batch, counts)
    with Watched() as watched:  # the second step
        trainer.training_step(trainer.model, batch, trainer._step_counts([batch]))
    assert watched.calls["mm.default"] > 20 and watched.calls["full.default"]
    assert not watched.waiting
