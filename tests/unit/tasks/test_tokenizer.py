"""Bytes and characters as ids: round trips, vocabulary size, and what a model's junk decodes to."""

import pytest

from ftppo import config
from ftppo.errors import ConfigError, TaskError
from ftppo.tasks.build import build_tokenizer
from ftppo.tasks.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer

TOKENIZERS: list[Tokenizer] = [ByteTokenizer(), CharTokenizer(), CharTokenizer("ab"), CharTokenizer("0123456789+-*/= ")]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_vocabulary_and_specials(tokenizer: Tokenizer) -> None:
    specials = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}
    assert len(specials) == 3 and max(specials) < tokenizer.vocab_size
    assert tokenizer.vocab_size % 16 == 0 and tokenizer.vocab_size - max(specials) <= 16


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_decode_ends_at_eos_and_hides_nothing_else(tokenizer: Tokenizer) -> None:
    first = tokenizer.decode([0])
    assert tokenizer.decode([0, tokenizer.eos_id, 0]) == first
    assert tokenizer.decode([]) == ""
    for junk in (tokenizer.pad_id, tokenizer.bos_id, tokenizer.vocab_size - 1):
        assert tokenizer.decode([0, junk, 0]) == f"{first}\ufffd{first}"


@pytest.mark.parametrize("text", ["", "plain", "naïve café ☕", "\x00\n"])
def test_bytes_round_trip(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode([*ids, tokenizer.eos_id]) == text
    assert all(i < 256 for i in ids)


def test_broken_utf8_decodes_to_the_replacement_character() -> None:
    assert ByteTokenizer().decode([0x61, 0xFF, 0x62]) == "a\ufffdb"


def test_characters_keep_the_alphabets_order() -> None:
    tokenizer = CharTokenizer("cab")
    assert tokenizer.encode("abc") == [1, 2, 0]
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (3, 4, 5, 16)
    assert CharTokenizer("abcdefghijklm").vocab_size == 16
    assert CharTokenizer("abcdefghijklmn").vocab_size == 32


def test_default_alphabet_is_printable_ascii() -> None:
    tokenizer = CharTokenizer()
    text = "".join(map(chr, range(32, 127)))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == 112


def test_a_character_outside_the_alphabet_is_named() -> None:
    with pytest.raises(TaskError, match=r"'é' \(U\+00E9\) at place 3 of 'café'.*task.alphabet"):
        CharTokenizer("acf").encode("café")


@pytest.mark.parametrize(("alphabet", "says"), [("", "is empty"), ("abca", "'a' more than once")])
def test_alphabets_that_cannot_be(alphabet: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        CharTokenizer(alphabet)


def test_build_tokenizer() -> None:
    assert build_tokenizer(config.Task(tokenizer="byte"), config.Model()).vocab_size == 272
    assert build_tokenizer(config.Task(tokenizer="char", alphabet="ab"), config.Model()).vocab_size == 16
