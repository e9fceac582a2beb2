"""Small folders as `stepjepa train`, `evaluate` and `study` leave them, written by hand."""

import json
import re
from pathlib import Path
from typing import Any

REPORT = {
    "source": "train.jsonl", "rows_read": 12, "rows_kept": 11, "examples": 11, "rows_skipped": {"no_messages": 1},
    "first_skipped": {"no_messages": "line 4: 'messages' is empty"}, "examples_without_pairs": {}, "pairs": 11,
    "pairs_dropped": {}, "answers_truncated": 0, "system_folded": 0, "system_prompts": {}, "without_system_prompt": 11,
    "other_system_prompts": 0, "end_of_turn": "<|end|>", "fingerprint": "0a1b", "tokens": 500, "labelled_tokens": 300,
    "target_tokens": 90, "token_length": {"min": 30, "p50": 45, "p90": 60, "p99": 70, "max": 71},
}  # fmt: skip


def write(path: Path, value: Any) -> None:
    """JSON, or JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = value if path.suffix == ".jsonl" else [value]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def log(pairs: bool = True, steps: int = 5) -> list[dict[str, Any]]:
    """A log of the Trainer with an evaluation at the last step; at collapse where there are pairs."""
    entries = []
    for step in range(10, 10 * steps + 1, 10):
        entry = {"loss": 30.0 / step, "lm_loss": 20.0 / step, "step": step, "tokens_per_second": 1000.0}
        if pairs:
            entry |= {"jepa_loss": 5.0 / step, "cosine_similarity": 1 - 5.0 / step, "num_pairs": 64}
            entry |= {"target_std": 1.0 / step, "effective_rank": 1 + 8.0 / step}
        entries.append(entry)
    evaluation = {"eval_loss": 0.7, "eval_lm_loss": 0.5, "eval_gsm8k": 0.25, "step": 10 * steps}
    return [*entries, evaluation | ({"eval_jepa_loss": 0.2} if pairs else {})]


def write_run(folder: Path, objective: str = "step_jepa", **settings: Any) -> Path:
    """A finished training without its weights."""
    pairs = objective != "regular"
    options = {"model_name": "tiny", "train_file": ["train.jsonl"], "objective": objective, "lbd": 0.1, "seed": 0}
    options |= {"max_steps": 50, "output_dir": str(folder)}
    versions = {"stepjepa": "0.1.0", "torch": "2.6.0", "transformers": "5.0.0", "python": "3.10.1", "processes": 1}
    write(folder / "run.json", {**versions, "settings": {**options, **settings}, "forward": "packed", "data": {}})
    write(folder / "data_report.json", {"train": {**REPORT, "pairs": 11 * pairs}})
    metrics = {"train_runtime": 75.0, "train_samples_per_second": 160.0, "total_flos": 2.5e12}
    write(folder / "metrics.json", {"metrics": metrics, "log_history": log(pairs)})
    return folder


def write_evaluation(run: Path, verdicts: str, name: str = "test", **texts: Any) -> Path:
    """An evaluation: a letter for each question, ``r`` right, ``w`` wrong, ``u`` neither; `texts` by ``q0``, .."""
    folder, rows = run / f"evaluation-{name}", []
    for index, letter in enumerate(verdicts):
        text = texts.get(f"q{index}", f"text {index}")
        rows.append(
            {
                "index": index, "question": f"question {text}", "ground_truth": f"truth {text}",
                "generated_response": f"{run.name} says {text}", "gt_answer": f"truth {text}", "gen_answer": str(index),
                "correct": {"r": True, "w": False, "u": None}[letter], "stop_reason": "stop", "tokens": 7,
                "scores": {"gsm8k": float(letter == "r")},
            }
        )  # fmt: skip
    write(folder / "predictions.jsonl", rows)
    right, n = verdicts.count("r"), len(verdicts.replace("u", ""))
    found = {"kind": "accuracy", "value": right / n, "low": 0.1, "high": 0.9, "correct": right, "n": n}
    nll = {
        "kind": "likelihood", "value": 1.25, "perplexity": 3.49, "tokens": 40, "n": n,
        "row_mean": 1.5, "low": 1.0, "high": 2.0,
    }  # fmt: skip
    generation = {"did_not_stop": {"count": 1, "n": n}, "seconds": 4.5, "tokens_per_second": 90.0}
    result = {"metrics": {"gsm8k": found, "answer_nll": nll}, "generation": generation}
    rest = {"rows": {"skipped": {"no_user_message": 2}}, "identity": {}, "scoring": {}}
    write(folder / "metrics.json", {**result, **rest})
    return folder


def write_pair(folder: Path, a: str = "rrwwr", b: str = "rwrww", **texts: Any) -> list[Path]:
    """Two runs with an evaluation on the same questions."""
    runs = [write_run(folder / "regular", "regular"), write_run(folder / "step", "step_jepa", predictors=2)]
    for run, verdicts in zip(runs, (a, b), strict=True):
        write_evaluation(run, verdicts, **texts)
    return runs


def _arm(name: str, mean: float, **others: Any) -> dict[str, Any]:
    summary = {"n": 2, "estimate": mean, "low": mean - 0.01, "high": mean + 0.01, "sd": 0.001, "confidence": 0.95}
    nothing = dict.fromkeys(("examples", "compute", "control", "random", "verdict", "seconds"))
    return {"name": name, "role": "baseline", "seeds": [1, 2], "summary": summary, "flops": 2e12, **nothing, **others}


def study_record() -> dict[str, Any]:
    """``table.json`` as version 0.2 has written it."""
    result = {"n": 2, "mean": 0.0125, "sd": 0.001, "low": -0.0075, "high": 0.0325, "t_p": 0.2, "wilcoxon_p": 0.5}
    compared = {"against": "regular", "seeds": [1, 2], "lost": [], "result": result, "holm_p": 0.2}
    verdict = {"label": "not established", "reasons": ["n=2 seeds in common with regular", "a | b"]}
    arms = [_arm("regular", 0.5), _arm("step_jepa", 0.5125, role="arm", examples=compared, verdict=verdict)]
    table = {"block": "", "metric": "gsm8k", "higher_is_better": True, "baseline": "regular"}
    table |= {"alpha": 0.05, "arms": arms}
    verdicts = ["gsm8k, against regular:", "  step_jepa: not established"]
    missing = [{"run": "step_jepa seed 2", "status": "failed", "error": "exit status 2"}]
    return {"title": "A study", "verdicts": verdicts, "tables": [table], "missing": missing}


def write_study(folder: Path, ended: bool = True, answers: bool = False) -> Path:
    """A study of two arms, of which one run has failed; with `answers` as its scoring keeps them since version 0.3."""
    arms = {"regular": {"objective": "regular"}, "step_jepa": {"objective": "step_jepa", "lbd": 0.1}}
    code = {"stepjepa": "0.1.0", "source": "abcd", "torch": "2.6.0"}
    named = {name: {"model_name": "tiny", **arm} for name, arm in arms.items()}
    identity = {"code": code, "blocks": {"": {"arms": named}}}
    write(folder / "state.json", {"identity": identity, "choices": {}, "scored": []})
    for arm in arms:
        for seed in (1, 2):
            run, failed = folder / "runs" / arm / f"seed-{seed}", (arm, seed) == ("step_jepa", 2)
            write(run / "plan.json", {"run": f"{arm} seed {seed}"})
            if not failed:
                write_run(run / "model", arm, seed=seed)
                write(run / "trained.json", {"steps": 50, "flops": 2e12, "train_seconds": 30.0})
                if answers:
                    write_evaluation(run, "rrww" if arm == "regular" else "rrrw")
    if ended:
        write(folder / "table.json", study_record())
    return folder


def page_data(page: str) -> Any:
    """What the page's script reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])
