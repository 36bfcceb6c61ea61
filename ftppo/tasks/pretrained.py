"""The tokenizer that comes with a Hugging Face model. Comes in: text; goes out: ids, and the reverse.

It is read from tokenizer.json by the tokenizers library. Special tokens in a text are read as such, as chat templates
write them. What reads the ids themselves, as a classifier does, must know them by the same ids.
"""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from ftppo import classifier
from ftppo.config_errors import about
from ftppo.config_model import Model
from ftppo.errors import ConfigError
from ftppo.pretrained import CONFIG, KEY, TOKENIZER, locate, read_json
from ftppo.tasks.tokenizer import UNREADABLE, before, padded


class PretrainedTokenizer:
    """See Tokenizer. The end token is the one that tokenizer_config.json names, else the model's first."""

    def __init__(self, model: Model) -> None:
        """Raises ConfigError where the folder has no tokenizer.json, or one that does not go with the model."""
        assert model.path is not None and model.vocab is not None
        folder = locate(model.path, (*TOKENIZER, CONFIG))
        self._backend = _read(folder, model.path)
        largest = max(self._backend.get_vocab().values())
        if largest >= model.vocab:
            raise ConfigError(KEY, model.path, f"its tokenizer has id {largest}, its model vocab_size={model.vocab}")
        self.vocab_size = padded(model.vocab)
        named = read_json(folder, "tokenizer_config.json")
        ids = read_json(folder, CONFIG) | read_json(folder, "generation_config.json")
        eos = self._special("eos", named, ids)
        if eos is None:
            raise ConfigError(KEY, model.path, "names no end token: give tokenizer_config.json an eos_token")
        pad, bos = self._special("pad", named, ids), self._special("bos", named, ids)
        self.eos_id, self.pad_id, self.bos_id = eos, eos if pad is None else pad, eos if bos is None else bos
        self._prefix = [bos] if bos is not None and self._backend.encode("").ids[:1] == [bos] else []

    def encode(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_prompt(self, text: str) -> list[int]:
        ids = self.encode(text)
        return ids if ids[:1] == self._prefix else self._prefix + ids

    def decode(self, ids: Iterable[int]) -> str:
        runs = groupby(before(self.eos_id, ids), lambda i: self._backend.id_to_token(i) is not None)
        return "".join(
            self._backend.decode(list(run), skip_special_tokens=False) if known else UNREADABLE * len(list(run))
            for known, run in runs
        )

    def _special(self, role: str, named: dict[str, Any], ids: dict[str, Any]) -> int | None:
        """The id of the token for `role`, by its text or else by its number; None where none is given."""
        token, found = named.get(f"{role}_token"), ids.get(f"{role}_token_id")
        text = token.get("content") if isinstance(token, dict) else token
        by_text = self._backend.token_to_id(text) if text is not None else None
        first = found[0] if isinstance(found, list) and found else found
        return by_text if by_text is not None else first if isinstance(first, int) else None


def check_same_tokens(path: str, model: Model) -> None:
    """Raise ConfigError unless every token of the tokenizer of `model` is one, by the same id, of the classifier's."""
    assert model.path is not None
    with about(classifier.KEY):
        theirs = _read(locate(path, TOKENIZER), path).get_vocab()
    ours = _read(locate(model.path, TOKENIZER), model.path).get_vocab()
    wrong = sorted(token for token, number in ours.items() if theirs.get(token) != number)
    if wrong:
        remedy = f"{len(wrong)} tokens of model.path, {wrong[0]!r} first, are others here: take a classifier of its kin"
        raise ConfigError(classifier.KEY, path, remedy)


def _read(folder: Path, path: str) -> Backend:
    """The tokenizer in `folder`, which is that of `path`. Raises ConfigError."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(KEY, path, "has no tokenizer.json: add it (save_pretrained writes it)")
    try:
        return Backend.from_file(str(file))
    except Exception as error:  # the library raises nothing more special
        raise ConfigError(KEY, path, f"has a tokenizer.json that cannot be read: {error}") from error
