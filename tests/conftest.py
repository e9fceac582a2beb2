"""Fixtures for all tests. What they are made of lies in `support`: `from support.templates import FORMATS`.

The tokenizers are shared by the whole process: a test changes a copy, `support.tokenizers.fresh(tokenizer)`.
"""

import gc
import os
import signal
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

TESTS = Path(__file__).resolve().parent

# A shell that starts this in the background lets it ignore Ctrl-C, and the processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))

os.environ["HF_HUB_OFFLINE"] = "1"
# The tests are of the CPU's numbers, to the bit; those of tests/gpu are run by themselves: make test_gpu.
GPU = "STEPJEPA_GPU" in os.environ
if not GPU:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
collect_ignore = [] if GPU else ["gpu"]
UNDER_XDIST = "PYTEST_XDIST_WORKER" in os.environ
if UNDER_XDIST:
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start


def pytest_collection_finish() -> None:
    """What is imported by now stays, and no collection looks at it again: every training collects the garbage once."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def one_thread_per_worker():
    """Under xdist the workers share the cores: a torch thread pool in each would slow all of them down."""
    if UNDER_XDIST:
        import torch

        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_environment():
    """What libraries write into the environment (accelerate for --fsdp, say) would reach the processes of later tests."""
    with patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def tokenizer():
    """A small one of the made-up rows."""
    from stepjepa.modeling.load import load_tokenizer
    from support.rows import step_rows

    return load_tokenizer("tiny", (message["content"] for row in step_rows(40) for message in row["messages"]))


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference values and data: STEPJEPA_SHARED, or `shared` beside the repository."""
    named = os.environ.get("STEPJEPA_SHARED")
    folder = Path(named) if named else TESTS.parent.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no folder of reference values at {folder}; set STEPJEPA_SHARED")
    return folder


@pytest.fixture(scope="session")
def llama3_tokenizer():
    from support import tokenizers

    return tokenizers.llama3_tokenizer()


@pytest.fixture(scope="session")
def mistral_tokenizer():
    from support import tokenizers

    return tokenizers.mistral_sentencepiece_tokenizer()


@pytest.fixture(scope="session")
def tekken_tokenizer():
    from support import tokenizers

    return tokenizers.tekken_tokenizer()


@pytest.fixture(scope="session")
def bpe_tokenizer():
    from support import tokenizers

    return tokenizers.byte_bpe_tokenizer()
