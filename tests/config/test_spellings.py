"""Names that people bring from transformers 4 and TRL: each is an option, stands for one, or is answered.

On the command line, in YAML and in Python alike.
"""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import transformers

import stepjepa
from stepjepa.analysis.options import AnalyzeOptions
from stepjepa.cli.main import main
from stepjepa.config.gone import GONE
from stepjepa.config.option import check_fields, options_of
from stepjepa.config.parser import Answer, StrictParser
from stepjepa.config.spellings import published
from stepjepa.config.values import nearest
from stepjepa.data.options import PrepareOptions, StepsOptions
from stepjepa.errors import ConfigError
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.study.spec import ProblemRows
from stepjepa.training.config import JEPAConfig, check_arguments
from stepjepa.training.options import RunOptions, inherited_names
from stepjepa.training.trainer import JEPATrainer

# The fields of `TrainingArguments` of transformers 4.57.6, and those of 4.10 to 4.46 that it has no more.
TRANSFORMERS_4 = """
output_dir overwrite_output_dir do_train do_eval do_predict eval_strategy prediction_loss_only
per_device_train_batch_size per_device_eval_batch_size per_gpu_train_batch_size per_gpu_eval_batch_size
gradient_accumulation_steps eval_accumulation_steps eval_delay torch_empty_cache_steps learning_rate
weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm num_train_epochs max_steps lr_scheduler_type
lr_scheduler_kwargs warmup_ratio warmup_steps log_level log_level_replica log_on_each_node logging_dir
logging_strategy logging_first_step logging_steps logging_nan_inf_filter save_strategy save_steps
save_total_limit save_safetensors save_on_each_node save_only_model restore_callback_states_from_checkpoint
no_cuda use_cpu use_mps_device seed data_seed jit_mode_eval bf16 fp16 fp16_opt_level half_precision_backend
bf16_full_eval fp16_full_eval tf32 local_rank ddp_backend tpu_num_cores tpu_metrics_debug debug
dataloader_drop_last eval_steps dataloader_num_workers dataloader_prefetch_factor past_index run_name
disable_tqdm remove_unused_columns label_names load_best_model_at_end metric_for_best_model greater_is_better
ignore_data_skip fsdp fsdp_min_num_params fsdp_config fsdp_transformer_layer_cls_to_wrap accelerator_config
parallelism_config deepspeed label_smoothing_factor optim optim_args adafactor group_by_length
length_column_name report_to project trackio_space_id ddp_find_unused_parameters ddp_bucket_cap_mb
ddp_broadcast_buffers dataloader_pin_memory dataloader_persistent_workers skip_memory_metrics
use_legacy_prediction_loop push_to_hub resume_from_checkpoint hub_model_id hub_strategy hub_token
hub_private_repo hub_always_push hub_revision gradient_checkpointing gradient_checkpointing_kwargs
include_inputs_for_metrics include_for_metrics eval_do_concat_batches fp16_backend push_to_hub_model_id
push_to_hub_organization push_to_hub_token mp_parameters auto_find_batch_size full_determinism torchdynamo
ray_scope ddp_timeout torch_compile torch_compile_backend torch_compile_mode include_tokens_per_second
include_num_input_tokens_seen neftune_noise_alpha optim_target_modules batch_eval_metrics eval_on_start
use_liger_kernel liger_kernel_config eval_use_gather_object average_tokens_across_devices
""".split()
EARLIER_4 = """
evaluation_strategy sharded_ddp use_ipex xpu_backend dispatch_batches split_batches
""".split()

# The further fields of `SFTConfig`, `ModelConfig`, `ScriptArguments` and `DatasetMixtureConfig` of TRL 1.16.0, and those of
# 0.7 to 0.24.
TRL = """
model_init_kwargs trust_remote_code router_aux_loss_coef chat_template_path dataset_text_field dataset_kwargs
dataset_num_proc eos_token max_length truncation_mode shuffle_dataset packing packing_strategy padding_free
pad_to_multiple_of eval_packing completion_only_loss assistant_only_loss loss_type activation_offloading
pad_token model_name_or_path model_revision dtype attn_implementation use_peft lora_r lora_alpha lora_dropout
lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type use_rslora use_dora
load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage dataset_name
dataset_config dataset_train_split dataset_test_split dataset_streaming ignore_bias_buffers datasets streaming
test_split_size
""".split()
EARLIER_TRL = """
torch_dtype max_seq_length dataset_batch_size num_of_sequences chars_per_token use_liger
gradient_checkpointing_use_reentrant
""".split()

# The arguments of `SFTTrainer` of TRL 1.16.0, and those of 0.7 to 0.24.
SFT_TRAINER = """
model args data_collator train_dataset eval_dataset processing_class compute_loss_func compute_metrics
callbacks optimizers optimizer_cls_and_kwargs preprocess_logits_for_metrics quantization_config peft_config
formatting_func model_init dataset_text_field packing max_seq_length infinite num_of_sequences chars_per_token
dataset_num_proc dataset_batch_size neftune_noise_alpha model_init_kwargs dataset_kwargs eval_packing
tokenizer
""".split()

# Those that a `JEPATrainer` hands to `transformers.Trainer`.
FROM_TRAINER = "compute_metrics callbacks optimizers optimizer_cls_and_kwargs".split()

# What a name stands for that is no option here; the others have an answer, and some of those a word that changes nothing.
MEANINGS = {
    "warmup_ratio 0.1": {"warmup_steps": 0.1},
    "evaluation_strategy steps": {"eval_strategy": "steps"},
    "per_gpu_train_batch_size 4": {"per_device_train_batch_size": 4},
    "per_gpu_eval_batch_size 4": {"per_device_eval_batch_size": 4},
    "no_cuda true": {"use_cpu": True},
    "adafactor true": {"optim": "adafactor"},
    "adafactor false": {},
    "group_by_length true": {"train_sampling_strategy": "group_by_length"},
    "torchdynamo inductor": {"torch_compile_backend": "inductor"},
    "xpu_backend gloo": {"ddp_backend": "gloo"},
    "push_to_hub_model_id a/b": {"hub_model_id": "a/b"},
    "push_to_hub_token x": {"hub_token": "x"},
    "model_name_or_path m": {"model_name": "m"},
    "torch_dtype bfloat16": {"dtype": "bfloat16"},
    "chat_template_path a.jinja": {"chat_template": "a.jinja"},
    "dataset_name d": {"train_file": ["d"]},
    "dataset_train_split t": {"dataset_split": "t"},
    "dataset_test_split t": {"eval_split": "t"},
    "dataset_streaming true": {"streaming": True},
    "max_seq_length 512": {"max_length": 512},
    "assistant_only_loss true": {"labels": "assistant"},
    "assistant_only_loss false": {"labels": "all"},
    "use_liger true": {"use_liger_kernel": True},
    "use_peft true": {"lora": True},
    "lora_r 8": {"lora_rank": 8},
    "save_safetensors true": {},
    "loss_type nll": {},
    "bnb_4bit_quant_type nf4": {},
}
# What a `JEPAConfig` refuses, alone or here.
NOT_ALONE = {"streaming", "use_liger_kernel", "chat_template", "ddp_backend"}


@pytest.fixture(scope="module")
def parser():
    types = (RunOptions, JEPAConfig)
    return StrictParser(types, aliases=published(*types), positional=("train_file",))


@pytest.fixture(scope="module")
def others(parser):
    """The names that are no options here."""
    return {*TRANSFORMERS_4, *EARLIER_4, *TRL, *EARLIER_TRL} - set(parser.options)


def in_python(name, value, fields=()):
    """The values of these fields where a dataclass is made with a name."""
    given = {"true": True, "false": False}.get(value, value)
    if name in published(JEPAConfig):
        config = JEPAConfig(**{name: given})
        return {field: getattr(config, field) for field in fields}
    return stepjepa.train(**{name: given})


def test_every_name_is_an_option_or_has_a_meaning(parser, others):
    answered = {name for name in others if isinstance(parser.aliases[name], Answer)}
    # In transformers 5.12 warmup_ratio is still an option.
    assert others - answered == {case.split()[0] for case, fields in MEANINGS.items() if fields} - set(parser.options)
    # The installed version has no field less than the list says, so nothing has left since.
    now = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    assert {name for name in TRANSFORMERS_4 if name not in now} - {"overwrite_output_dir"} <= others
    assert {name for name in now if name not in parser.options} == set()


@pytest.mark.parametrize("case", MEANINGS)
def test_the_meaning_is_the_same_everywhere(case, parser, tmp_path):
    name, value = case.split()
    if name in parser.options:
        pytest.skip("it is an option of the installed version of transformers")
    file, meaning = tmp_path / "run.yaml", MEANINGS[case]
    file.write_text(f"{name}: {value}\n")
    assert parser.values([f"--{name}", value]) == parser.values(["--config", str(file)]) == meaning
    if name in published(JEPAConfig) and not NOT_ALONE & set(meaning):
        assert in_python(name, value, meaning) == meaning


def test_the_answer_is_the_same_everywhere(parser, others, tmp_path):
    file = tmp_path / "run.yaml"
    answers = {name: parser.aliases[name] for name in others if isinstance(parser.aliases[name], Answer)}
    assert len(answers) > 50
    for name, answer in answers.items():
        file.write_text(f"{name}: something\n")
        ways = {
            f"--{name}: ": lambda name=name: parser.values([f"--{name}", "something"]),
            f"{file}:1: {name}: ": lambda: parser.values(["--config", str(file)]),
            f"{name}: ": lambda name=name: in_python(name, "something"),
        }
        for begin, way in ways.items():
            with pytest.raises(ConfigError) as caught:
                way()
            message = str(caught.value)
            assert message.startswith(begin) and str(answer) in message, message
            assert "did you mean" not in message and "unknown" not in message and len(message) < 250


def test_two_names_that_disagree(parser):
    with pytest.raises(ConfigError, match="--warmup_ratio sets warmup_steps to 0.1, but --warmup_steps sets it to 7"):
        parser.values("--warmup_ratio 0.1 --warmup_steps 7".split())
    with pytest.raises(ConfigError, match="below 1"):
        parser.values("--warmup_ratio 1".split())
    with pytest.raises(ConfigError, match="use_cpu sets use_cpu to False, but no_cuda sets it to True"):
        JEPAConfig(use_cpu=False, no_cuda=True)
    with pytest.raises(TypeError, match="learning_rat"):
        JEPAConfig(learning_rat=1.0)

    @dataclasses.dataclass
    class Own(JEPAConfig):
        own: int = 1

    assert dataclasses.replace(JEPAConfig(warmup_ratio=0.25), seed=3).warmup_steps == 0.25
    assert Own(own=2, seed=4).own == 2


@pytest.mark.parametrize("name", SFT_TRAINER)
def test_arguments_of_its_trainer(name):
    if name in inspect.signature(JEPATrainer).parameters or name in FROM_TRAINER:
        check_arguments({name: "something"})
        return
    with pytest.raises(ConfigError) as error:
        check_arguments({name: "something"})
    assert name in str(error.value) and "did you mean" not in str(error.value)


def test_arguments_that_are_options_name_the_config():
    with pytest.raises(ConfigError, match="JEPATrainer does not take max_seq_length; write JEPAConfig.max_length=..."):
        JEPATrainer("tiny", JEPAConfig(), [], max_seq_length=8)
    with pytest.raises(ConfigError, match="does not take formatting_func: rows are chats; write them as messages"):
        JEPATrainer("tiny", JEPAConfig(), [], formatting_func=str)


# Near in letters, and of another meaning: no name is better than a wrong one.
@pytest.mark.parametrize(
    "name", "dropout temperature ratio test_file min_length warmup data_file loss eval_loss init sft".split()
)
def test_no_suggestion_across_meanings(name, capsys):
    assert main(["train", f"--{name}", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"stepjepa train: error: unknown flag --{name}; --help lists the options"


def test_what_a_slip_is():
    known = ["warmup_steps", "lbd_warmup_ratio", "eval_file", "train.jsonl", "llm_jepa", "model_name"]
    slips = "warmup_step wramup_steps lbd-warmup-ratios evalfile trian.jsonl Model_Name".split()
    assert [nearest(name, known) for name in slips] == [known[index] for index in (0, 0, 1, 2, 3, 5)]
    others = ("warmup_ratio", "train_file", "test.jsonl", "jepa", "model", "", "_")
    assert not any(nearest(name, known) for name in others)


def test_the_names_of_training_arguments_are_known_without_their_library():
    assert inherited_names() >= set(options_of(transformers.TrainingArguments))
    assert not inherited_names() - {field.name for field in dataclasses.fields(transformers.TrainingArguments)}


TAKERS = (PrepareOptions, StepsOptions, AnalyzeOptions, EvaluateOptions, ProblemRows)


def test_values_that_left_are_answered_with_what_replaces_them_as_a_flag_and_from_python():
    cases = [(kind, option) for kind in TAKERS for option in GONE if option in options_of(kind)]
    assert {option for _, option in cases} == set(GONE)
    for kind, option in cases:
        for value, instead in GONE[option].items():
            given = [value] if options_of(kind)[option].many else value
            for way in (
                lambda kind=kind, option=option, value=value: StrictParser((kind,)).values([f"--{option}", value]),
                lambda kind=kind, option=option, given=given: check_fields(kind(**{option: given}), kind),
            ):
                with pytest.raises(ConfigError) as caught:
                    way()
                assert f"{value} was removed; {instead}" in str(caught.value) and "\n" not in str(caught.value)
