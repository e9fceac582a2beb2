"""Bad input to every command: one clear line (what, where, what to do), exit status 2, nothing written or overwritten."""

import sys
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, T5Config

from stepjepa.cli.main import main
from support.answers import harness_stand_in, vllm_stand_in
from support.models import tiny_model
from support.reports import write_run
from support.rows import gsm8k, step_rows, write
from support.runs import files_of, one_line
from support.tokenizers import fresh


def chat(*messages):
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


GOOD = chat(("user", "Add 2 and 3."), ("assistant", "a\n\n5"))
USER = chat(("user", "x"))
PAIR = {"question": "q", "answer": "a"}
FILES = {
    "rows": step_rows(4),
    "good": [GOOD],
    "empty": [],
    "broken": [GOOD, '{"messages": [', GOOD],
    "user": [USER],
    "mixed": [GOOD, USER],
    "step": [chat(("user", "x"), ("assistant", "one step"))],
    "a": [{"a": 1}],
    "pair": [PAIR, 3],
    "raw": [gsm8k(1), 3],
    "views": [{"question": "How many?", "answer": "One.\n\nTwo."}, PAIR, PAIR],
}
STUDY = "data: builtin\nbase: {model_name: tiny, max_steps: 4}\narms: {regular: {objective: regular}}\nseeds: [1, 2]\n"
FOLDERS = "bare folder.html runs/step unfinished/checkpoint-9 unfinished/checkpoint-10 no_template t5 no_weights"


@pytest.fixture(scope="module")
def home(tmp_path_factory, tokenizer):
    """Files and models of the names that stand in the cases."""
    folder = tmp_path_factory.mktemp("home")
    for name, rows in FILES.items():
        write(folder / f"{name}.jsonl", rows)
    (folder / "mine.jsonl").write_text("mine")
    write_run(folder / "run")
    (folder / "run" / "report.html").write_text("mine")
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    (folder / "study.yaml").write_text(STUDY)
    for name in FOLDERS.split():
        (folder / name).mkdir(parents=True)
    tokenizer = fresh(tokenizer)
    sizes = {"vocab_size": len(tokenizer)}
    small, wide = tiny_model("llama", **sizes), tiny_model("llama", hidden_size=48, **sizes)
    for name, model in (("model", small), ("wide", wide), ("no_template", small), ("no_tokenizer", small)):
        model.save_pretrained(folder / name)
    small.config.save_pretrained(folder / "no_weights")
    t5 = T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=2, **sizes)
    AutoModelForSeq2SeqLM.from_config(t5).save_pretrained(folder / "t5")
    for name in ("model", "wide", "no_weights", "t5", "adapter"):
        tokenizer.save_pretrained(folder / name)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder / "no_template")
    return folder


# What is added to a command where it is not given.
ADDED = {"train": {"--model_name": "tiny", "--output_dir": "out"}, "inspect": {"--model_name": "tiny"}}
TRAIN = [
    ("none.jsonl", "none.jsonl", "no such file"),
    ("empty.jsonl", "empty.jsonl", "empty"),
    ("broken.jsonl", "broken.jsonl line 2", "broken JSON"),
    ("user.jsonl", "line 1", "no message has the role 'assistant'"),
    ("a.jsonl", "line 1", "columns found: a", "a question (question, prompt,"),
    ("mixed.jsonl --strict_data", "line 2", "'assistant'", "--strict_data"),
    ("step.jsonl --step_jepa", "no example has a pair", "--step_splitter"),
    ("good.jsonl --max_length 4", "line 1", "max_length is 4", "raise --max_length"),
    ("good.jsonl --model_name no_tokenizer", "the tokenizer cannot be loaded (", "save_pretrained"),
    ("good.jsonl --model_name no_template", "no chat template", "--chat_template FILE"),
    ("good.jsonl --model_name t5", "--model_name t5: is an encoder-decoder model; give a causal language model"),
    ("good.jsonl --model_name adapter", "is a LoRA adapter"),
    ("good.jsonl --model_name runs/stpe", "--model_name runs/stpe: no such folder; did you mean runs/step?"),
]
# On rows.jsonl.
FLAGS = [
    ("--last_token 2", "last_token is 2", "at most -1"),
    ("--jepa_ratio 0 --gamma 0", "gamma is 0", "nothing would be trained"),
    ("--max_steps 0", "max_steps=0 give no step"),
    ("--dataloader_drop_last --batch_size 32", "drops all 4 examples, which do not fill a batch of 32"),
    ('--accelerator_config {"split_batch":true}', "..._config", "unexpected keyword argument 'split_batch'"),
    ("--chat_template nowhere.jinja", "nowhere.jinja", "cannot be read"),
    ("--resume_from_checkpoint nowhere", "nowhere", "no such checkpoint"),
    ("--model_name minii", "minii", "mini"),
    ("--eval_strategy steps", "--eval_strategy steps", "--eval_file"),
    ("--eval_on_start", "eval_on_start needs data", "--eval_file"),
    ("--include_for_metrics inputs", "include_for_metrics", "predictions and labels"),
    ("--lora --lora_target_modules nope", "LoRA", "nope"),
    ("--lora --lora_target_modules embed_tokens", "embed_tokens", "embedding"),
    ("--step_jepa --lora --merge_lora false --keep_predictors", "keep_predictors needs merge_lora"),
    ("--attn_implementation flex_attention", "flex_attention", "no backward pass on CPU"),
    ("--regularizer vicreg --batch_size 1", "vicreg", "per_device_train_batch_size"),
    ("--step_jepa --step_pairs random --multi_horizon 1 2 --infonce --batch_size 1", "infonce", "per_device"),
    ("--control random --infonce", "control=random", "infonce"),
    ("--step_jepa --views standalone", "views=standalone", "step_jepa", "llm_jepa"),
    ("--step_jepa --horizon 30", "horizon", "30"),
    ("--step_jepa --multi_horizon 1 2 --horizon 2", "horizon", "multi_horizon"),
    ("--step_jepa --forward inline --step_pairs all", "inline", "one pair"),
    ("--step_jepa --step_pairs plan --horizon 3 --predictors 0", "predictors=0", "3 horizons", "predictor_head"),
    ("--mask_ratio 0.3 --forward inline", "mask_ratio", "forward packed"),
    ("--front_pred", "front_pred", "--predictors 1"),
    ("--front_pred --predictors 1 --views in_context", "front_pred", "standalone"),
    ("--target_encoder ema --target_grad", "target_encoder", "target_grad"),
    ("--objective semantic_tube --infonce", "infonce", "semantic_tube"),
    ("--objective next_latent --predictors 2", "next_latent", "predictors"),
    ("--objective next_latent --forward inline", "next_latent", "inline"),
    ("--objective future_summary --jepa_loss mse", "future_summary", "jepa_loss"),
    ("--objective steps_to_answer --target_encoder ema", "steps_to_answer", "target_encoder"),
    ("--objective steps_to_answer --answer_layers 1 9", "layer 9", "layers 0 to 3"),
    ("--objective steps_to_answer --answer_layers 1 --readout_layer 2", "answer_layers", "readout_layer"),
    ("--objective semantic_tube --tube_mode curvature --jepa_l2", "curvature", "jepa_loss"),
    ("--readout mean --last_token -2", "readout=mean", "last_token"),
    ("--readout_layer 4", "layer 4", "layers 0 to 3"),
    ("--jepa_target_column=", "jepa_target_column is empty"),
    ("--jepa_target_column plan", "rows.jsonl line 1", "'plan' is missing", "columns found: messages"),
    ("--jepa_target_column plan --reverse_pred", "reverse_pred", "jepa_target_column"),
    ("--source_column a --target_column b", "no column 'a'"),
    ("--plain --chat_template x.jinja", "plain", "chat_template"),
]
DATA = [
    ("check a.jsonl", "none of 1 rows can be used"),
    ("check pair.jsonl --step_separator=", "step_separator is empty"),
    ("check pair.jsonl --model_name tiny --system_prompt a\udcffb", "expected UTF-8 text"),
    ("check pair.jsonl --max_length 1", ": --max_length: max_length is 1; it must be a whole number at least 2"),
    ("check pair.jsonl --source_column question", "go together"),
    ("check rosw.jsonl", "did you mean"),
    ("prepare raw.jsonl", "--output_file must be given: the JSONL file to write"),
    ("prepare raw.jsonl --output_file mine.jsonl", "mine.jsonl exists already; --overwrite replaces it"),
    ("inspect views.jsonl --row 5", "has only 3 rows, counted from 0"),
    ("inspect views.jsonl --max_length 5", "line 1: the prompt has"),
    ("inspect views.jsonl --html page", "must end in .html or .htm"),
    ("inspect views.jsonl --html folder.html", "exists; choose another name"),
    ("inspect views.jsonl --html mine.jsonl/page.html", "cannot be written"),
]
MODELS = [
    ("evaluate model rows.jsonl", "choose one or several of"),
    ("evaluate ./nothing rows.jsonl --metric exact", "nothing: no such folder"),
    ("evaluate ./rows.jsonl rows.jsonl --metric exact", "is a file; give the model's folder, or a GGUF file"),
    ("evaluate bare rows.jsonl --metric exact", "no model in this folder"),
    ("evaluate unfinished rows.jsonl --metric exact", "the run has not ended: use unfinished/checkpoint-10"),
    ("evaluate no_weights rows.jsonl --metric exact", "cannot be loaded (", "no file named model.safetensors"),
    ("evaluate model rows.jsonl --metric exact --system_prompt x --use_test_prompts", "--use_test_prompts keeps"),
    ("evaluate model rows.jsonl --metric exact --backend vllm", "pip install 'stepjepa[vllm]'"),
    ("evaluate model rows.jsonl --metric answer_nll --backend vllm", "needs --backend transformers"),
    (
        'evaluate model rows.jsonl --metric exact --metric_options {"reference_colum":1}',
        "did you mean 'reference_column'?",
    ),
    ("evaluate model rows.jsonl --metric exact --output_file x.txt", "must end in .jsonl or .json"),
    ("prepare rows.jsonl --format chats", "chats was removed; leave the format out"),
    ("evaluate model rows.jsonl --metric code_execution", "code_execution was removed; use tasks of the lm-evaluation"),
    ("evaluate model --harness sums", "pip install 'stepjepa[eval]'"),
    ("evaluate model --harness sumz", "the harness has no task 'sumz'; did you mean 'sums'?"),
    ("evaluate model --harness sums --metric exact", "leave --metric out"),
    ("evaluate model rows.jsonl --harness sums", "leave --test_file out"),
    ("evaluate --analyze a b c", "one file of predictions, or two"),
    ("evaluate --analyze bare", "is a folder"),
    ("analyze", "a file and models are needed: stepjepa analyze FILE --models"),
    ("analyze step.jsonl --models model --step_jepa", "0 pairs for step_jepa; at least two are needed"),
    ("analyze rows.jsonl --models model --layers 3", "--layers: no states can be read after layer 3: the model has"),
    ("analyze rows.jsonl --models model --output_dir mine.jsonl", "mine.jsonl is a file"),
    ("study", "no study given"),
    ("study stduy.yaml", "no such file or recipe", "study.yaml"),
    ("study study.yaml --set max_steps", "--set max_steps: expected key.key=value"),
    ("study study.yaml --output_dir study.yaml", "study.yaml is a file"),
    ("report", "no folder given; write: stepjepa report RUN_OR_STUDY"),
    ("report run", "report.html exists; replace it with --overwrite, or give another --output_file"),
    ("export nowhere out", "nowhere: is not a checkpoint"),
    ("export .", "write: stepjepa export CHECKPOINT OUT"),
    ("export model model", "is the checkpoint itself"),
    ("export model out --base_model model", "is not an adapter"),
    ("export adapter out", "the adapter names no base; give --base_model"),
    ("doctor --model_name no/model", "no/model"),
    ("doctor --data a.jsonl", "can be used; skipped 1: none of the columns of a chat (first: a.jsonl line 1: "),
    ("demo --lbd 0.5", "--lbd: write --set KEY=VALUE", "arms.step_jepa.lbd"),
]
if Path("/proc/self").is_dir():  # a folder that nobody can write to
    NOWHERE = "--output_dir /proc/x"
    commands = ("train rows.jsonl", "demo", "analyze rows.jsonl --models model", "study builtin --mini")
    MODELS += [(f"{command} {NOWHERE}", f"{NOWHERE}: cannot be written (") for command in commands]
CASES = [(f"train {case}", *words) for case, *words in TRAIN]
CASES += [(f"train rows.jsonl {case}", *words) for case, *words in FLAGS]
CASES += [*DATA, *MODELS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case[0]))
def test_it_is_one_line_and_nothing_is_written(case, home, monkeypatch, capsys):
    command, *words = case
    monkeypatch.chdir(home)
    if "pip install" in words[0]:
        monkeypatch.setitem(sys.modules, "vllm", None)
        monkeypatch.setitem(sys.modules, "lm_eval", None)
    else:
        vllm_stand_in(monkeypatch)
        harness_stand_in(monkeypatch)
    name, *flags = command.split()
    for flag, value in ADDED.get(name, {}).items():
        flags += [] if flag in flags else [flag, value]
    before = files_of(home)
    assert main([name, *flags]) == 2
    error = one_line(capsys.readouterr().err, name)
    assert [one for one in words if one not in error] == []
    assert files_of(home) == before
