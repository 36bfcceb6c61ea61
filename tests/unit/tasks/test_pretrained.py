"""The tokenizer of a folder: special tokens by name or number, what is no text, and folders that do not fit."""

import json
from pathlib import Path
from typing import Any

from ftppo.config import Model, Task
from ftppo.tasks.build import build_tokenizer
from ftppo.tasks.pretrained import PretrainedTokenizer, check_same_tokens
from tests.byte_tokenizer import NAMED, save_tokenizer
from tests.refusal import remedy_of


def save(folder: Path, named: dict[str, Any] = NAMED, bos_first: bool = True, **numbers: Any) -> Model:
    """A tokenizer, and a config.json that gives `numbers`, of a model with 300 tokens."""
    save_tokenizer(folder, named, bos_first)
    (folder / "config.json").write_text(json.dumps(numbers))
    return Model(path=str(folder), vocab=300)


def test_text_comes_back_and_the_end_ends_it(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(Task(tokenizer="char"), save(tmp_path))
    text = "Grüße, 世界!"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and tokenizer.decode([*ids, 257, *ids]) == text
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.vocab_size) == (256, 257, 258, 304)


def test_ids_that_are_no_text_are_shown(tmp_path: Path) -> None:
    tokenizer = PretrainedTokenizer(save(tmp_path))
    assert tokenizer.decode([*tokenizer.encode("a"), 299, 303, 258, *tokenizer.encode("b")]) == "a\ufffd\ufffd<pad>b"


def test_a_prompt_begins_as_the_model_is_used_to(tmp_path: Path) -> None:
    tokenizer = PretrainedTokenizer(save(tmp_path))
    plain = tokenizer.encode("hi")
    assert 256 not in plain and tokenizer.encode_prompt("hi") == [256, *plain]
    assert tokenizer.encode_prompt("<bos>hi") == [256, *plain], "not twice"
    assert PretrainedTokenizer(save(tmp_path, bos_first=False)).encode_prompt("hi") == plain


def test_special_tokens_by_number(tmp_path: Path) -> None:
    tokenizer = PretrainedTokenizer(save(tmp_path, {}, eos_token_id=[257, 258]))
    assert (tokenizer.eos_id, tokenizer.pad_id) == (257, 257)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 258}')
    assert PretrainedTokenizer(Model(path=str(tmp_path), vocab=300)).eos_id == 258


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model = save(tmp_path)
    assert "id 258" in refused(model.model_copy(update={"vocab": 258}))
    save(tmp_path, {})
    assert "names no end token" in refused(model)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "cannot be read" in refused(model)
    (tmp_path / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in refused(model)


def refused(model: Model) -> str:
    return remedy_of(lambda: PretrainedTokenizer(model), "model.path")


def test_a_classifier_must_read_every_token_as_the_policy_means_it(tmp_path: Path) -> None:
    model, other = save(tmp_path), tmp_path / "classifier"
    other.mkdir()
    save_tokenizer(other)
    check_same_tokens(str(other), model)
    content = json.loads((other / "tokenizer.json").read_text())
    content["added_tokens"].append(content["added_tokens"][-1] | {"id": 259, "content": "<more>"})
    (other / "tokenizer.json").write_text(json.dumps(content))
    check_same_tokens(str(other), model)  # what it knows besides is never asked of it
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (other / "tokenizer.json").write_text(json.dumps(content))
    assert "2 tokens of model.path, 'a' first" in remedy_of(lambda: check_same_tokens(str(other), model), "reward.path")
    (other / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in remedy_of(lambda: check_same_tokens(str(other), model), "reward.path")
