"""What is wrong, said to a user. Comes in: a finding, pydantic's or our own; goes out: a ConfigError with a remedy."""

import contextlib
import difflib
from collections.abc import Iterator, Sequence

from pydantic_core import ErrorDetails

from ftppo.errors import ConfigError


def require(holds: bool, key: str, value: object, remedy: str) -> None:
    """Raise ConfigError unless it `holds`."""
    if not holds:
        raise ConfigError(key, value, remedy)


@contextlib.contextmanager
def about(key: str) -> Iterator[None]:
    """A ConfigError that is raised within is about `key`, whatever it usually is about."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(key, error.value, error.remedy) from error


def explain(detail: ErrorDetails, known: Sequence[str]) -> ConfigError:
    """What `detail` says, with its remedy. `known` are all keys there are, dotted."""
    key = ".".join(map(str, detail["loc"]))
    allowed = detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden":
            path = ".".join(part for part in detail["loc"] if isinstance(part, str))
            remedy = f"no such key; {_nearest(path, known)}"
        case "missing":
            remedy = "is required: give it a value"
        case "literal_error":
            remedy = f"must be one of {allowed['expected']}"
        case "string_type":
            remedy = f"must be text; quote what would read as a number: '{key}=\"...\"'"
        case "model_type" | "model_attributes_type":
            remedy = "is a group of keys, not a value; set the keys in it, or choose a preset of that group"
        case _:
            remedy = detail["msg"].replace("Input should be", "must be")
    return ConfigError(key, detail["input"], remedy)


def _nearest(key: str, known: Sequence[str]) -> str:
    """What `key` was meant to be, as far as its spelling tells; else what there is beside it."""
    group, _, leaf = key.rpartition(".")
    places = [other.rpartition(".") for other in known]
    beside = [name for place, _, name in places if place == group]
    alike = [f"{group}.{name}".lstrip(".") for name in difflib.get_close_matches(leaf, beside, n=1, cutoff=0.75)]
    moved = [f"{place}.{name}" for place, _, name in places if place and name == leaf]
    far = [f"{group}.{name}".lstrip(".") for name in difflib.get_close_matches(leaf, beside, n=1, cutoff=0.5)]
    if meant := alike or moved or far:
        return f"did you mean {' or '.join(meant)}?"
    return f"{group or 'the root'} has: {', '.join(beside)}"
