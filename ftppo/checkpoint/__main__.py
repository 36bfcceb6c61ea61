"""`python -m ftppo.checkpoint list | verify | show | prune URL`. Comes in: arguments; goes out: lines, an exit status.

For looking after checkpoints where no run goes on: needs no cluster, no GPU and no torch.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from ftppo.checkpoint import commands
from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.stores import store_of
from ftppo.config import Checkpoint
from ftppo.errors import CheckpointError, ConfigError, FtppoError, StorageError
from ftppo.plan.retention import LEFTOVER_S
from ftppo.storage.base import ObjectStore
from ftppo.storage.local import LocalStore
from ftppo.storage.retry import Retrier, RetryPolicy
from ftppo.storage.retrying import RetryingStore

PROG = "python -m ftppo.checkpoint"
UNUSABLE = 2  # bad usage, or a store that cannot be reached
_STATUS = (
    "exit status: 0 fine; 1 a problem was found (damaged, incomplete, or nothing there to verify or show);\n"
    "2 bad usage, or the URL cannot be reached"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Do what `argv` asks for. Returns the exit status; what goes wrong is one line on stderr."""
    arguments = _parser().parse_args(argv)
    try:
        store = _open(arguments)
        try:
            status: int = arguments.run(Catalog(store), arguments)
            return status
        finally:
            store.close()
    except CheckpointError as error:
        return _fail(error, commands.PROBLEM)
    except (ConfigError, StorageError) as error:
        return _fail(error, UNUSABLE)


def _open(asked: argparse.Namespace) -> ObjectStore:
    store = store_of(Checkpoint(url=asked.url, endpoint=asked.endpoint, checksums=asked.checksums))
    if isinstance(store, LocalStore) and not store.root.is_dir():
        raise ConfigError("URL", asked.url, "there is no such folder")
    return RetryingStore(store, Retrier(RetryPolicy(), on_event=lambda event: None))


def _fail(error: FtppoError, status: int) -> int:
    print(f"{PROG}: {' '.join(str(error).split())}", file=sys.stderr)
    return status


_Raw = argparse.RawDescriptionHelpFormatter


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(UNUSABLE, f"{self.prog}: {message} (--help tells more)\n")


def _parser() -> argparse.ArgumentParser:
    about = "Looks after the checkpoints of a run."
    parser = _Parser(prog=PROG, description=about, epilog=_STATUS, formatter_class=_Raw, allow_abbrev=False)
    verbs = parser.add_subparsers(required=True, metavar="list | verify | show | prune")
    verb = _verb(verbs, "list", "checkpoints, and attempts that never became one")
    verb.set_defaults(run=lambda catalog, asked: commands.list_all(catalog))
    verb = _verb(verbs, "verify", "whether every object is there, with its size and, if asked, its content")
    verb.add_argument("--step", type=_natural, metavar="N", help="one checkpoint; default: all")
    verb.add_argument("--deep", action="store_true", help="read every object and compare its checksum")
    verb.set_defaults(run=lambda catalog, asked: commands.verify(catalog, asked.step, asked.deep))
    verb = _verb(verbs, "show", "what the manifest of a checkpoint says")
    verb.add_argument("--step", type=_natural, metavar="N", help="which checkpoint; default: the newest")
    verb.add_argument("--tensors", action="store_true", help="also each tensor, its dtype and shape")
    verb.set_defaults(run=lambda catalog, asked: commands.show(catalog, asked.step, asked.tensors))
    _add_prune(verbs)
    return parser


def _add_prune(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    verb = _verb(verbs, "prune", "remove old checkpoints, and what failed attempts have left")
    verb.add_argument("--keep", type=_positive, required=True, metavar="N", help="the N newest stay (keep_last)")
    every = "so does that of each M-th iteration (keep_every_iterations); default: none"
    verb.add_argument("--every", type=_natural, default=0, metavar="M", help=every)
    older = (
        "unpublished attempts and uploads go when older than S seconds; where a run may be writing, "
        f"give more than a save takes; default: {LEFTOVER_S:g}, a day"
    )
    verb.add_argument("--older-than", type=_natural, default=LEFTOVER_S, metavar="S", help=older)
    verb.add_argument("--dry-run", action="store_true", help="say what would go, and remove nothing")
    verb.set_defaults(
        run=lambda catalog, asked: commands.prune(catalog, asked.keep, asked.every, asked.older_than, asked.dry_run)
    )


def _verb(verbs: "argparse._SubParsersAction[_Parser]", name: str, about: str) -> _Parser:
    verb = verbs.add_parser(
        name, help=about, description=about, epilog=_STATUS, formatter_class=_Raw, allow_abbrev=False
    )
    verb.add_argument("url", metavar="URL", help="a folder, s3://bucket/prefix or gs://bucket/prefix")
    verb.add_argument("--endpoint", metavar="URL", help="another S3 or GCS server than the cloud's own")
    checksums = "when_required is for S3 servers that refuse what they do not know"
    choices = ("when_supported", "when_required")
    verb.add_argument("--checksums", choices=choices, default=choices[0], help=checksums)
    return verb


def _natural(text: str) -> int:
    """A number from 0 on, as an argument."""
    return _number(text, 0)


def _positive(text: str) -> int:
    """A number from 1 on, as an argument."""
    return _number(text, 1)


def _number(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, {least} or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
