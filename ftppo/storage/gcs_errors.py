"""gcsfs, imported with care, and what it says went wrong -> a typed StorageError."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import requests
from google.auth.exceptions import GoogleAuthError

from ftppo.errors import AlreadyExists, NotFound, PermissionDenied, StorageError, TransientStorageError
from ftppo.storage.base import RangeBeyondEnd

# its probe of every bucket for a feature we do not use waits minutes for a server that does not know it
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
from gcsfs.core import GCSFileSystem, simple_upload
from gcsfs.retry import HttpError

__all__ = ["GCSFileSystem", "simple_upload", "typed_errors"]

_CONNECTION_TYPES = (
    aiohttp.ClientError,
    requests.exceptions.RequestException,  # what gcsfs makes of status 502
    ConnectionError,
    TimeoutError,  # also fsspec's
)


@contextmanager
def typed_errors(what: str) -> Iterator[None]:
    """Raise what gcsfs raises inside as the StorageError it means, with the original as its cause."""
    try:
        yield
    except (HttpError, GoogleAuthError, ValueError, OSError, aiohttp.ClientError) as error:
        raise _error_type(error)(f"{what}: {type(error).__name__}: {error}") from error


def _error_type(error: Exception) -> type[StorageError]:
    match error:
        case HttpError():
            return _type_of_status(int(error.code or 0))
        case FileNotFoundError():  # status 404
            return NotFound
        case FileExistsError():  # status 412
            return AlreadyExists
        case GoogleAuthError():
            return TransientStorageError if error.retryable else PermissionDenied
    if isinstance(error, _CONNECTION_TYPES):
        return TransientStorageError
    # an OSError without a number is what gcsfs makes of status 403
    return PermissionDenied if isinstance(error, OSError) and error.errno is None else StorageError


def _type_of_status(status: int) -> type[StorageError]:
    if status in (408, 409, 429) or (status >= 500 and status != 501):
        return TransientStorageError
    if status in (401, 403):
        return PermissionDenied
    return RangeBeyondEnd if status == 416 else StorageError
