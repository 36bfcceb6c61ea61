"""A small tokenizer in Hugging Face's format: bytes, and three special tokens behind them."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

BOS, EOS, PAD = 256, 257, 258
NAMED = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": "<eos>",
    "bos_token": {"__type": "AddedToken", "content": "<bos>", "special": True},
    "pad_token": "<pad>",
}


def save_tokenizer(folder: Path, named: dict[str, Any] = NAMED, bos_first: bool = True) -> None:
    """Write tokenizer.json and tokenizer_config.json; `named` is the latter, `bos_first`: texts begin with bos."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<bos>", "<eos>", "<pad>"])
    if bos_first:
        backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
