"""The generator that a command's options ask for."""

from __future__ import annotations

from stepjepa.data.tokens import Prompter
from stepjepa.generation.local import BATCH_SIZE, LocalGenerator
from stepjepa.generation.options import GeneratorOptions
from stepjepa.generation.place import Place, load_place
from stepjepa.generation.protocol import Generator
from stepjepa.generation.vllm import VllmGenerator


def load_generator(
    place: Place, prompter: Prompter, options: GeneratorOptions, no_lora: bool = False
) -> tuple[Generator, str]:
    """What answers with a model by the options, and a phrase that describes it. Raises ConfigError: it cannot be loaded."""
    if options.backend == "vllm":
        generator = VllmGenerator(place, prompter, options, no_lora)
        return generator, generator.description
    model, description = load_place(place, prompter.tokenizer, options, no_lora)
    size = options.batch_size or BATCH_SIZE
    local = LocalGenerator(model, prompter, options.max_new_tokens, options.top_p, size)
    return local, f"{description}, batches of {size}"
