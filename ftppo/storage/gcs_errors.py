"""gcsfs, imported with care, and what goes wrong below it -> a typed StorageError."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from google.auth.exceptions import GoogleAuthError

from ftppo.errors import CredentialsExpired, PermissionDenied, StorageError, TransientStorageError
from ftppo.storage.status import type_of_status

# its probe of every bucket for a feature we do not use waits minutes for a server that does not know it
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
from gcsfs.core import GCSFileSystem, simple_upload
from gcsfs.retry import HttpError, NonRetryableError

__all__ = ["GCSFileSystem", "HttpStatus", "simple_upload", "typed_errors"]


class HttpStatus(Exception):
    """An answer of status 400 or more, with the beginning of its text. `expired`: the next token may be taken."""

    def __init__(self, status: int, content: bytes, expired: bool = False) -> None:
        super().__init__(f"status {status}: {content[:300].decode(errors='replace')}")
        self.status, self.expired = status, expired


@contextmanager
def typed_errors(what: str) -> Iterator[None]:
    """Raise what is raised inside as the StorageError it means, with the original as its cause."""
    try:
        yield
    except HttpStatus as error:
        kind = CredentialsExpired if error.expired else type_of_status(error.status)
        raise kind(f"{what}: {error}") from error
    except GoogleAuthError as error:
        raise _type_of_refusal(error)(f"{what}: {error}") from error
    except (HttpError, NonRetryableError) as error:  # how gcsfs says that a token could not be had
        raise _type_of_refusal(error.__cause__)(f"{what}: {error}: {error.__cause__}") from error
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        raise TransientStorageError(f"{what}: {type(error).__name__}: {error}") from error
    except (ValueError, OSError) as error:
        raise StorageError(f"{what}: {type(error).__name__}: {error}") from error


def _type_of_refusal(error: BaseException | None) -> type[StorageError]:
    passes = isinstance(error, GoogleAuthError) and error.retryable
    return TransientStorageError if passes else PermissionDenied
