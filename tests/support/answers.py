"""Chats of little sums with their right answers, to train on and to ask for, and their files."""

import fnmatch
import importlib
import sys
import types
from pathlib import Path

from support.rows import step_rows

SYSTEM = "Add up."
TRAIN = step_rows(64)
TEST = [
    {**row, "ground_truth": row["messages"][1]["content"].rpartition("The answer is ")[2].rstrip(".")}
    for row in step_rows(12, seed=1)
]


def vllm_stand_in(monkeypatch):
    """Let `support/vllm_api` be vLLM; what it is asked goes to the list that comes back."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "vllm_api")
    monkeypatch.setitem(sys.modules, "vllm", None)  # so that it is gone afterwards
    del sys.modules["vllm"]
    return importlib.import_module("vllm").seen


def harness_stand_in(monkeypatch, fails=()):
    """A module with the interface of lm-eval 0.4.13 and three tasks; what it is asked goes to the list that comes back."""
    seen = []

    class TaskManager:
        all_tasks = ["sums", "capitals", "capitals_more"]

        def __init__(self, verbosity=None, include_path=None, include_defaults=True, metadata=None):
            self.include_path = include_path

        def match_tasks(self, names):
            return sorted({one for name in names for one in fnmatch.filter(self.all_tasks, name)})

    class HFLM:
        def __init__(self, pretrained, backend="default", *, tokenizer, batch_size, add_bos_token, chat_template_args):
            self.__dict__.update(locals())

    def simple_evaluate(
        model, model_args=None, tasks=None, num_fewshot=None, *, limit=None, log_samples=True, system_instruction=None,
        apply_chat_template=False, task_manager=None, confirm_run_unsafe_code=False,
    ):  # fmt: skip
        seen.append({**locals(), "include": task_manager.include_path})
        if set(tasks) & set(fails):
            raise ConnectionError("no network\nat all")
        results = {"part": {"alias": "part", "sample_len": 3, "acc,none": 0.5, "acc_stderr,none": 0.25}}
        for task in tasks:
            value = 0.5 if task == "sums" else 1.0
            found = {"name": task, "alias": task, "sample_len": limit or 6, "exact_match,none": value}
            found |= {"exact_match_stderr,none": 0.1, "exact_match,strict": 0.0, "exact_match_stderr,strict": "N/A"}
            results[task] = found
        return {"results": results, "lm_eval_version": "0.4.13"}

    parts = {"tasks": {"TaskManager": TaskManager}, "models": {}, "models.huggingface": {"HFLM": HFLM}}
    for name, values in {"": {"simple_evaluate": simple_evaluate}, **parts}.items():
        module = types.ModuleType(f"lm_eval.{name}".rstrip("."))
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return seen
