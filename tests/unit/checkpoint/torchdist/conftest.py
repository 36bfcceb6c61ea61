"""A torch_dist checkpoint as torch itself writes it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint import save

type SaveAs = Callable[[Mapping[str, Any]], Path]


@pytest.fixture
def save_as(tmp_path: Path) -> SaveAs:
    """save_as(state): the folder that holds it, and what megatron-core says besides."""

    def write(state: Mapping[str, Any]) -> Path:
        folder = tmp_path / "iter_0000100"
        save(dict(state), checkpoint_id=folder, no_dist=True)
        about = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
        (folder / "metadata.json").write_text(json.dumps(about))
        return folder

    return write
