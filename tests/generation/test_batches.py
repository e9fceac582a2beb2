"""Batched generation: every prompt gets the continuation that it gets alone."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stepjepa.generation.local import Generation, generate_batch

PAD, END = 0, 1
VOCABULARY = 40
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16], [17, 18], [3, 3, 3, 3, 3], [20, 21, 22]]
# Large weights spread the logits, so that rounding cannot turn one argmax into another.
SHARED = {"vocab_size": VOCABULARY, "initializer_range": 0.3, "pad_token_id": PAD, "eos_token_id": END}


@pytest.fixture(scope="module")
def tokenizer():
    words = {"<pad>": PAD, "<end>": END} | {f"w{index}": index for index in range(2, VOCABULARY)}
    backend = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<end>")


def _llama():
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**shape, **SHARED, bos_token_id=2, attention_dropout=0.3))


def _gpt2():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=2, **SHARED))


@pytest.fixture(scope="module")
def model():
    return _llama().eval()


def _greedy_by_hand(model, prompt, count):
    """The plainest greedy decoding: no cache, no batch, no padding."""
    ids = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("build", [_llama, _gpt2])
@pytest.mark.parametrize("padding_side", ["left", "right"])
@pytest.mark.parametrize("batch_size", [2, 6])
def test_batches_equal_decoding_by_hand(build, tokenizer, padding_side, batch_size):
    model, tokenizer = build().eval(), copy.deepcopy(tokenizer)
    tokenizer.padding_side = padding_side
    results = generate_batch(model, tokenizer, PROMPTS, 8, eos_token_ids=[], batch_size=batch_size)
    expected = [_greedy_by_hand(model, prompt, 8) for prompt in PROMPTS]
    assert [result.token_ids for result in results] == expected
    assert len({tuple(ids) for ids in expected}) > 1, "all continuations are alike: nothing is compared"
    assert not any(result.stopped for result in results)


def test_a_batch_equals_one_by_one(model, tokenizer):
    together = generate_batch(model, tokenizer, PROMPTS, 12, batch_size=4)
    assert together == [generate_batch(model, tokenizer, [prompt], 12)[0] for prompt in PROMPTS]
    assert generate_batch(model, tokenizer, [], 4) == []
    assert all(isinstance(one, Generation) and type(token) is int for one in together for token in one.token_ids)


def test_stop_flag_and_cut(model, tokenizer):
    free = [_greedy_by_hand(model, prompt, 8) for prompt in PROMPTS]
    stop = free[0][3]
    results = generate_batch(model, tokenizer, PROMPTS, 8, eos_token_ids=[stop, END], batch_size=3)
    assert results[0].stopped
    for result, ids in zip(results, free, strict=True):
        ends = [position for position, token in enumerate(ids) if token in (stop, END)]
        expected = ids[: ends[0]] if ends else ids
        assert result.stopped is bool(ends) and result.token_ids == expected
        assert result.text == tokenizer.decode(expected, skip_special_tokens=True)
    shared = copy.deepcopy(tokenizer)
    shared.pad_token = f"w{stop}"
    expected = generate_batch(model, tokenizer, PROMPTS, 8, eos_token_ids=stop)
    assert generate_batch(model, shared, PROMPTS, 8, eos_token_ids=stop) == expected


def test_own_generation_config_is_not_applied(tokenizer):
    model = _llama().eval()
    plain = generate_batch(model, tokenizer, PROMPTS, 8)
    own = copy.deepcopy(model.generation_config)
    own.update(do_sample=True, temperature=3.0, repetition_penalty=1.8, suppress_tokens=[plain[0].token_ids[0]])
    model.generation_config = own
    assert generate_batch(model, tokenizer, PROMPTS, 8) == plain
    assert model.generation_config is own and own.repetition_penalty == 1.8


def test_peft_model(tokenizer):
    base = _llama().eval()
    base.generation_config.repetition_penalty = 1.8
    own = base.generation_config
    expected = [_greedy_by_hand(base, prompt, 8) for prompt in PROMPTS]
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    results = generate_batch(model, tokenizer, PROMPTS, 8, eos_token_ids=[])
    assert [result.token_ids for result in results] == expected
    assert base.generation_config is own and own.repetition_penalty == 1.8


def test_modes_are_restored(tokenizer):
    model = _llama().train()
    model.model.norm.eval()
    first = generate_batch(model, tokenizer, PROMPTS, 6)
    assert generate_batch(model, tokenizer, PROMPTS, 6) == first, "dropout was on"
    assert model.training and model.model.layers[0].training and not model.model.norm.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_sampling_follows_its_seed(model, tokenizer):
    state = torch.random.get_rng_state()
    first, again, other = (
        generate_batch(model, tokenizer, PROMPTS, 8, temperature=2.0, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": [[5], []]}, "a prompt is empty"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"batch_size": 0}, "batch_size"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p"),
    ],
)
def test_bad_arguments(model, tokenizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        generate_batch(model, tokenizer, **({"prompts": [[5]], "max_new_tokens": 4} | arguments))
