"""A reward that even a model without training earns now and then, so that answers to one prompt differ in worth."""

from typing import Any


def lower(answer: str, entry: dict[str, Any]) -> float:
    """The share of lower-case letters in the answer, in tenths."""
    return round(sum(letter.islower() for letter in answer) / max(len(answer), 1), 1)
