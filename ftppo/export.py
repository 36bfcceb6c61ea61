"""`python -m ftppo.export SOURCE OUT`. Comes in: a run or a checkpoint; goes out: a folder that transformers loads.

Needs neither Ray nor a GPU, and reads a checkpoint of any layout.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.huggingface.writer import export
from ftppo.checkpoint.manifest import Manifest
from ftppo.checkpoint.stores import retrying_store_of
from ftppo.config import Checkpoint, Config
from ftppo.errors import CheckpointError, ConfigError, FtppoError

DONE, FAILED, BAD_ARGUMENTS = 0, 1, 2
GIB = 2**30

_STEP = re.compile(r"(.*?)/step-(\d{8,})(?:/.*)?")


def main(argv: Sequence[str] | None = None) -> int:
    """Export what `argv` asks for. Returns 0 done, 1 failed, 2 bad arguments."""
    arguments = _parser().parse_args(argv)
    try:
        knobs, step = _source(arguments.source, arguments.step, arguments.endpoint)
        store = retrying_store_of(knobs)
        manifest = _manifest(Catalog(store), step)
        out = Path(arguments.out)
        files = export(store, manifest, out, int(arguments.shard_gib * GIB))
    except ConfigError as error:
        print(f"ftppo: cannot export\n  {error}", file=sys.stderr)
        return BAD_ARGUMENTS
    except FtppoError as error:
        print(f"ftppo: export failed\n  {error}", file=sys.stderr)
        return FAILED
    print(f"step {manifest.step} of {store.url} is in {out}: {', '.join(files)}")
    return DONE


def _source(source: str, step: int | None, endpoint: str | None) -> tuple[Checkpoint, int | None]:
    """Where the checkpoints are, and which is meant; None: the newest."""
    run = Path(source) / "config.json"
    if run.is_file():
        try:
            knobs = Config.model_validate_json(run.read_bytes()).checkpoint
        except ValidationError as error:
            raise ConfigError("SOURCE", source, f"its config.json is no run's: {error.errors()[0]['msg']}") from error
        own = Path(source) / "checkpoints"  # the run's folder may have moved
        return (knobs.model_copy(update={"url": str(own.resolve())}) if own.is_dir() else knobs), step
    found = _STEP.fullmatch(source)
    if found is not None:
        source, step = found[1], int(found[2])
    return Checkpoint(url=source, endpoint=endpoint), step


def _manifest(catalog: Catalog, step: int | None) -> Manifest:
    manifest = catalog.latest() if step is None else catalog.load(step)
    if manifest is None:
        raise CheckpointError(f"{catalog.store.url}: no checkpoint there; name a run's folder or a checkpoint.url")
    return manifest


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ftppo.export",
        description="Write the policy of a checkpoint as a Hugging Face model: config.json, safetensors, tokenizer.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "source", metavar="SOURCE", help="a run's folder (runs/NAME), a checkpoint.url, or one step of it"
    )
    parser.add_argument("out", metavar="OUT", help="folder to write, which must not exist")
    parser.add_argument("--step", type=int, help="which checkpoint (default: the newest)")
    parser.add_argument("--endpoint", help="checkpoint.endpoint, for another S3 or GCS server than the cloud's own")
    parser.add_argument("--shard-gib", type=float, default=4.0, help="size of a file of weights (default: 4)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
