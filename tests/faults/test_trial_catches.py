"""The start-up trial notices what is wrong with a form, says one line, leaves no trace, and decides alike on all ranks."""

import itertools
import multiprocessing
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import distributed
from torch.nn.attention.flex_attention import create_mask
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stepjepa.errors import ConfigError
from stepjepa.evaluation.nll import answer_losses
from stepjepa.forest import visibility
from stepjepa.modeling import masks, trial
from stepjepa.modeling.load import load_model, load_tokenizer
from stepjepa.modeling.lora import lora_config
from stepjepa.modeling.parts import output_head
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import JEPAOptions
from stepjepa.training.setup import set_up_model
from support.families import EXAMPLES, VOCABULARY, family_config, family_model, own_losses
from support.models import tiny_model
from support.sweep import batches
from support.training import STEPS

PAIRS = {"objective": "step_jepa", "predictors": 2}


def chosen(model, **options):
    """The model set up and the forward that was chosen."""
    model, setup = set_up_model(model, JEPAOptions(**{**PAIRS, **options}), 0, "cpu")
    return model, setup.forward


@pytest.mark.parametrize("name", ["mistral_sliding", "gemma3_sliding"])
def test_a_wrong_window_is_noticed_however_long_it_is(name, monkeypatch, caplog):
    own = visibility.dense_mask
    monkeypatch.setattr(visibility, "dense_mask", lambda rows, window, *part: own(rows, window and window + 1, *part))
    assert chosen(tiny_model(name, "eager", sliding_window=200))[1] == "two_pass"
    assert [line.count("forward two_pass, because") for line in caplog.messages] == [1]
    with pytest.raises(ConfigError, match="does not follow the mask; use forward two_pass"):
        chosen(tiny_model(name, "eager", sliding_window=200), forward="packed")


def test_a_small_fault_is_noticed_in_float32(monkeypatch):
    own = masks.additive_mask

    def noisy(*rows_and_dtype):
        mask = own(*rows_and_dtype)
        return mask / 2 + torch.rand(mask.shape) * 3e-3

    monkeypatch.setattr(masks, "additive_mask", noisy)
    assert chosen(family_model("llama", "eager"))[1] == "two_pass"


@pytest.mark.parametrize("name", ["llama", "gemma3_sliding"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_of_a_short_dtype_is_no_fault(name, dtype):
    assert chosen(tiny_model(name).to(dtype))[1] == "packed"


def test_segments_that_go_wrong_leave_the_dense_mask(monkeypatch):
    own = masks.segment_plan
    monkeypatch.setattr(masks, "segment_plan", lambda batch, window: own(batch, 2))
    model, forward = chosen(tiny_model("llama"))
    assert forward == "packed" and model.config._attn_implementation == "sdpa"


def test_inline_and_two_pass_are_tried_too(monkeypatch):
    own = visibility.dense_mask
    monkeypatch.setattr(visibility, "dense_mask", lambda rows, *rest: own(replace(rows, floor=rows.order * 0), *rest))
    with pytest.raises(ConfigError, match="forward=inline cannot be used for"):
        chosen(tiny_model("llama"), forward="inline")
    assert chosen(tiny_model("llama"))[1] == "packed"
    model = family_model("llama")
    inner = model.model.forward

    def other_positions(*args, position_ids=None, **kwargs):
        return inner(*args, position_ids=None if position_ids is None else 3 * position_ids, **kwargs)

    model.model.forward = other_positions
    with pytest.raises(ConfigError, match="do not reproduce its own logits") as refused:
        chosen(model, forward="two_pass")
    assert "\n" not in str(refused.value)


def flex_with_gradient(module, query, key, value, mask, dropout=0.0, scaling=None, **kwargs):
    """FlexAttention as it is on a GPU, in dense form: it has a backward pass and no dropout."""
    assert dropout == 0.0, "no dropout"
    seen = create_mask(mask.mask_mod, mask.shape[0], None, *mask.seq_lengths, device="cpu")
    return sdpa_attention_forward(module, query, key, value, seen, scaling=scaling, **kwargs)


@pytest.fixture
def on_cuda(monkeypatch):
    """What is chosen for a run on CUDA: forward and attention."""
    monkeypatch.setattr(masks, "flex_attention_forward", flex_with_gradient)
    monkeypatch.setattr(trial, "forward_only", lambda attention, device: False)

    def choose(model, **options):
        model, setup = set_up_model(model, JEPAConfig(**PAIRS, output_dir="unused", **options), 0, "cuda")
        return setup.forward, model.config._attn_implementation

    return choose


@pytest.mark.parametrize(
    ("name", "changes", "options", "used"),
    [
        ("llama", {}, {}, ("packed", masks.FLEX)),
        ("mistral_sliding", {}, {"forward": "inline"}, ("inline", masks.FLEX)),
        ("gemma3_sliding", {}, {}, ("packed", masks.FLEX)),
        # What is compiled, and attention dropout, need a dense mask.
        ("llama", {}, {"torch_compile": True}, ("packed", "sdpa")),
        ("llama", {"attention_dropout": 0.1}, {}, ("packed", "sdpa")),
    ],
)
def test_flex_attention_is_the_choice_on_cuda(name, changes, options, used, on_cuda):
    assert on_cuda(tiny_model(name, **changes), **options) == used


def test_an_attention_that_is_asked_for_is_used(on_cuda):
    for device, asked, used in (("cuda", "sdpa", "sdpa"), ("cpu", None, masks.SEGMENTS), ("cpu", "sdpa", "sdpa")):
        model = load_model("tiny", load_tokenizer("tiny", ["a"]), attn_implementation=asked)
        assert set_up_model(model, JEPAOptions(**PAIRS), 0, device)[0].config._attn_implementation == used


def test_flex_attention_is_compiled_for_all_forms_and_two_backward_passes(on_cuda, caplog):
    on_cuda(tiny_model("llama"))
    assert caplog.messages == ["compiling FlexAttention takes up to a minute; --attn_implementation sdpa avoids this"]
    before = torch._dynamo.config.cache_size_limit, torch._functorch.config.donated_buffer
    with masks._flex_settings("cuda"):
        assert torch._dynamo.config.cache_size_limit >= 64 and not torch._functorch.config.donated_buffer
    assert before == (torch._dynamo.config.cache_size_limit, torch._functorch.config.donated_buffer)


def blind(batch):
    """The batch with branches that see nothing of the trunk."""
    return replace(batch, attach=batch.attach * 0 - 1)


def wrong_gradient(query):
    """The value is right."""
    return query + (0.1 * query - (0.1 * query).detach())


def wrong_at_another_shape(query):
    return query * (1.0 if query.shape[-2] == 128 else 1.1)


@pytest.mark.parametrize("broken", [None, wrong_gradient, wrong_at_another_shape], ids=["mask", "gradient", "shape"])
def test_flex_attention_that_is_not_exact_leaves_sdpa(broken, on_cuda, monkeypatch):
    def forward(module, query, *rest, **kwargs):
        return flex_with_gradient(module, broken(query), *rest, **kwargs)

    if broken is None:
        monkeypatch.setattr(masks, "block_mask", lambda rows, window: visibility.block_mask(blind(rows), window))
    else:
        monkeypatch.setattr(masks, "flex_attention_forward", forward)
    assert on_cuda(tiny_model("llama")) == ("packed", "sdpa")
    assert on_cuda(tiny_model("llama", "flex_attention"))[0] == "two_pass"


@pytest.mark.parametrize(("forward", "name"), [("auto", "llama"), ("packed", "gpt2"), ("two_pass", "mistral_sliding")])
def test_the_trial_leaves_no_trace(forward, name):
    changes = {} if name == "gpt2" else {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}
    model = tiny_model(name, **changes).train()
    (model.transformer.h[1] if name == "gpt2" else model.model.layers[1]).eval()

    def traces():
        return [module.training for module in model.modules()], model.config.to_dict()

    before, buffers = traces(), {name: value.clone() for name, value in model.named_buffers()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    model, _ = chosen(model, forward=forward, predictors=0)
    assert torch.equal(torch.get_rng_state(), state) and traces() == before
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def choose_as(rank, folder, answers):
    """What process `rank` chooses; the masks of process 1 alone are wrong."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    if rank == 1:
        own = visibility.dense_mask
        visibility.dense_mask = lambda rows, *rest: own(blind(rows), *rest)
    for forward in ("auto", "packed"):
        try:
            answers.put((forward, chosen(tiny_model("llama", "eager"), forward=forward)[1]))
        except ConfigError as error:
            answers.put((forward, str(error)))
    distributed.barrier()


def test_all_processes_choose_the_same(tmp_path):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    processes = [context.Process(target=choose_as, args=(rank, tmp_path, answers)) for rank in range(2)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=60) for _ in range(4)]
    for process in processes:
        process.join(timeout=60)
    assert {answer for forward, answer in found if forward == "auto"} == {"two_pass"}
    (refusal,) = {answer for forward, answer in found if forward == "packed"}
    assert "forward=packed cannot be used for" in refusal


# Families whose logits are no plain product with the output embedding, or not the one that their configuration suggests.
@pytest.mark.parametrize("family", ["modernbert-decoder", "xlstm"])
def test_the_likelihood_is_that_of_the_models_own_head(family):
    model = family_model(family)
    losses = answer_losses(model, EXAMPLES, VOCABULARY)
    assert [loss["answer_nll"].total for loss in losses] == pytest.approx(own_losses(model), rel=1e-5)


def test_a_head_of_its_own_has_its_own_gradient_in_chunks_too(monkeypatch):
    model = family_model("modernbert-decoder")
    head = output_head(model, VOCABULARY)
    assert head.own == "model"
    states = torch.randn(7, 32, requires_grad=True)
    labels = torch.arange(10, 17)
    dense = [parameter for name, parameter in model.named_parameters() if not name.startswith("model.")]
    plain = F.cross_entropy(model.decoder(model.lm_head(states)), labels, reduction="sum")
    expected = torch.autograd.grad(plain, [states, *dense])
    for rows in (100, 3):
        monkeypatch.setattr("stepjepa.modeling.parts.chunk_rows", lambda vocabulary, rows=rows: rows)
        loss = head.loss_sum(model, states, labels)
        assert float(loss) == pytest.approx(float(plain), rel=1e-6)
        for one, other in zip(torch.autograd.grad(loss, [states, *dense]), expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert float(head.loss_sum(model, states[:0], labels[:0])) == 0


@pytest.mark.parametrize(("objective", "forward"), [("step_jepa", "auto"), ("regular", "two_pass")])
def test_a_model_that_sees_the_last_token_from_before_is_refused(objective, forward):
    """An encoder would be trained on labels that it sees."""
    encoder = type(family_model("bert"))(family_config("bert", is_decoder=False))
    with pytest.raises(ConfigError, match="sees the tokens that follow"):
        chosen(encoder, objective=objective, predictors=0, forward=forward)


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("gemma3", None),
        ("mllama", None),
        *itertools.product(("gemma3", "phi4_multimodal"), ("all-linear", ["q_proj", "qkv_proj"])),
    ],
)
def test_what_is_trained_in_a_multimodal_class_is_where_text_goes_and_gets_a_gradient(family, targets):
    """DDP waits for the gradient of each trainable parameter; text gives a vision tower none."""
    options, adapter = JEPAOptions(predictors=2, **STEPS), targets and lora_config(2, targets=targets)
    model, setup = set_up_model(family_model(family).train(), options, 0, "cpu", adapter)
    output = model(batch=batches(model, setup, options)[0])
    (output.lm_loss_sum + output.source_states.sum() + output.target_states.sum()).backward()
    parameters = dict(model.named_parameters())
    trained = {name for name, one in parameters.items() if one.requires_grad}
    assert trained == {name for name, one in parameters.items() if one.grad is not None}
    assert not any(tower in name for name in trained for tower in ("vision", "image", "audio"))
    assert sum("language_model" in name or ".layers." in name for name in trained) > (0 if targets else 10)
    assert targets != "all-linear" or all(name in trained for name in parameters if "lora_A" in name)


def test_a_mixture_of_experts_is_not_frozen():
    model, _ = chosen(tiny_model("mixtral"))
    assert all(parameter.requires_grad for parameter in model.parameters())
