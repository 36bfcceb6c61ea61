"""The one object whose presence makes a checkpoint exist, and the names of all others.

Comes in: what a save was about and what it stored; goes out: a Manifest, as JSON. No torch here.

    step-00000042/manifest.json                 create-only: it decides which attempt is the checkpoint
    step-00000042/attempt-000003-<uid>/...      one attempt to save the step, complete in itself: a torch_dist folder
"""

import json
import re
from typing import Literal

from pydantic import Field, JsonValue

from ftppo.checkpoint.index import ObjectRecord, Record

INDEX = "index.json"

_MANIFEST = re.compile(r"step-(\d{8,})/manifest\.json")
_ATTEMPT = re.compile(r"(step-(\d{8,})/attempt-\d{6,}-[^/]+)/.+")


class Header(Record):
    """What a save is about. `uid` tells apart attempts of one generation; `state` is the driver's, JSON values only.

    Example: Header(run="demo", step=42, iteration=5, generation=3, uid="9f2c",
    layout={"dp": 2, "tp": 1, "pp": 1, "cp": 1}, config_digest="ab12", state={"cursor": 320})
    """

    run: str
    step: int = Field(ge=0)
    iteration: int = Field(ge=0)
    generation: int = Field(ge=0)
    uid: str = Field(pattern=r"^[0-9A-Za-z_]+$")
    layout: dict[str, int]
    config_digest: str
    model: dict[str, JsonValue] = Field(default_factory=dict)  # the model section of the config; empty: not told
    state: dict[str, JsonValue]

    @property
    def prefix(self) -> str:
        """Folder of the attempt, without a slash at its end."""
        return attempt_prefix(self.step, self.generation, self.uid)

    def about(self) -> str:
        """JSON of all that does not tell one attempt from another, equal for equal content (NaN too)."""
        names = Header.model_fields.keys() - {"generation", "uid"}
        return json.dumps(self.model_dump(mode="json", include=names), sort_keys=True)


class Manifest(Header):
    """A published checkpoint. `objects` are all objects of the attempt's folder, the index among them."""

    format: Literal[1] = 1
    objects: tuple[ObjectRecord, ...]
    retries: int = 0  # resent buffers of all writers

    @property
    def size_bytes(self) -> int:
        """Bytes of all objects."""
        return sum(item.size for item in self.objects)

    def find(self, name: str) -> ObjectRecord | None:
        """The record of the object `name`, where there is one."""
        return next((item for item in self.objects if item.name == name), None)


def attempt_prefix(step: int, generation: int, uid: str) -> str:
    """Folder of one attempt to save `step`."""
    return f"step-{step:08d}/attempt-{generation:06d}-{uid}"


def manifest_key(step: int) -> str:
    """Key of the manifest of `step`."""
    return f"step-{step:08d}/manifest.json"


def manifest_step(key: str) -> int | None:
    """The step whose manifest lies at `key`; None where it is no manifest's key."""
    found = _MANIFEST.fullmatch(key)
    return int(found[1]) if found else None


def attempt_of(key: str) -> tuple[int, str] | None:
    """Step and attempt folder that the object at `key` belongs to; None where it is no attempt's."""
    found = _ATTEMPT.fullmatch(key)
    return (int(found[2]), found[1]) if found else None
