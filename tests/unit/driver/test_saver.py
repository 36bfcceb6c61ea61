"""The driver's state in a manifest: it comes back as it was, and what does not fit is refused by name."""

import dataclasses
from typing import Any

import pytest

from ftppo.checkpoint.manifest import Manifest
from ftppo.driver.saver import driver_state
from ftppo.errors import CheckpointError
from ftppo.types import DriverState

STATE = DriverState(iteration=3, step=12, cursor=96, kl_coef=0.2, warmup_done=4, first_reward=0.5)


def manifest(state: dict[str, Any]) -> Manifest:
    first = Manifest(
        run="r", step=12, iteration=3, generation=1, uid="a", layout={}, config_digest="d", state=state, objects=()
    )
    return Manifest.model_validate_json(first.model_dump_json())


def test_state_comes_back() -> None:
    assert driver_state(manifest(dataclasses.asdict(STATE))) == STATE


@pytest.mark.parametrize(
    ("change", "drop", "told"),
    [
        ({"colour": 1, "age": 2}, "", r"unknown: age, colour\)"),
        ({}, "cursor", r"missing: cursor\)"),
        ({"step": "many", "cursor": None}, "", r"of another type: cursor, step\)"),
    ],
)
def test_state_of_another_version_is_refused(change: dict[str, Any], drop: str, told: str) -> None:
    state = {key: value for key, value in dataclasses.asdict(STATE).items() if key != drop}
    with pytest.raises(CheckpointError, match=told):
        driver_state(manifest(state | change))
