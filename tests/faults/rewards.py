"""A reward that even a model without training earns now and then, so that answers to one prompt differ in worth."""

from typing import Any


def lower(answer: str, entry: dict[str, Any]) -> float:
    """1 for an answer that begins with a lower-case letter."""
    return float(answer[:1].islower())
