"""Text to token ids and back, without anything to download. Comes in: text; goes out: ids, and the reverse.

Vocabularies are padded to a multiple of 16, so that tensor parallelism up to 16 divides them.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from ftppo.config_check import VOCAB_MULTIPLE
from ftppo.errors import ConfigError, TaskError

PRINTABLE = "".join(chr(code) for code in range(32, 127))
UNREADABLE = "\ufffd"


class Tokenizer(Protocol):
    """Ids below `vocab_size` are text, pad, bos, eos, or unused: a model can draw them all.

    `encode` adds no bos or eos; `encode_prompt` begins with bos where the model is used to one. `decode` ends before
    the first eos and shows every other id that is no text as U+FFFD, or by its name where it has one: were it left out,
    an answer with junk between its letters would be scored as clean.
    """

    vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int

    def encode(self, text: str) -> list[int]: ...

    def encode_prompt(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...


class ByteTokenizer:
    """The bytes of UTF-8: 0..255, then pad, bos, eos. Any text can be written in it."""

    pad_id, bos_id, eos_id = 256, 257, 258
    vocab_size = 272

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_prompt(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        unreadable = UNREADABLE.encode()
        parts = (bytes([i]) if i < self.pad_id else unreadable for i in before(self.eos_id, ids))
        return b"".join(parts).decode(errors="replace")


class CharTokenizer:
    """One id for each character of `alphabet`, in its order, then pad, bos, eos. Default: printable ASCII."""

    def __init__(self, alphabet: str | None = None) -> None:
        """Raises ConfigError for an empty alphabet or a character given twice."""
        alphabet = PRINTABLE if alphabet is None else alphabet
        twice = sorted({char for char in alphabet if alphabet.count(char) > 1})
        if twice or not alphabet:
            fault = f"holds {', '.join(map(repr, twice))} more than once" if twice else "is empty"
            raise ConfigError("task.alphabet", alphabet, f"{fault}: list every character once")
        self._alphabet = alphabet
        self._ids = {char: i for i, char in enumerate(alphabet)}
        self.pad_id, self.bos_id, self.eos_id = range(len(alphabet), len(alphabet) + 3)
        self.vocab_size = padded(self.eos_id + 1)

    def encode(self, text: str) -> list[int]:
        """Raises TaskError naming the first character that is not in the alphabet."""
        for place, char in enumerate(text):
            if char not in self._ids:
                raise TaskError(
                    f"character {char!r} (U+{ord(char):04X}) at place {place} of {text!r} is not in the alphabet: "
                    "add it to task.alphabet, or set task.tokenizer=byte"
                )
        return [self._ids[char] for char in text]

    def encode_prompt(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self._alphabet[i] if i < self.pad_id else UNREADABLE for i in before(self.eos_id, ids))


def padded(num_tokens: int) -> int:
    """The size of a vocabulary that holds `num_tokens`."""
    return -(-num_tokens // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def before(end: int, ids: Iterable[int]) -> Iterator[int]:
    """`ids` up to the first `end`, which is left out."""
    for i in ids:
        if i == end:
            return
        yield int(i)
