"""What an HTTP status of a store's server means -> the type of StorageError. Pure."""

from ftppo.errors import AlreadyExists, NotFound, PermissionDenied, StorageError, TransientStorageError


class RangeBeyondEnd(StorageError):
    """A range that begins behind an object's last byte. get() answers it with b"" and no caller sees it."""


_TYPES = {
    401: PermissionDenied,
    403: PermissionDenied,
    404: NotFound,
    408: TransientStorageError,  # the server waited in vain for our bytes
    409: TransientStorageError,  # two writes at once, and neither has won yet
    412: AlreadyExists,  # we send no condition but create's
    416: RangeBeyondEnd,
    429: TransientStorageError,
    501: StorageError,  # a server of this make will never do it
}


def type_of_status(status: int) -> type[StorageError]:
    """The error that an answer with this status is."""
    return _TYPES.get(status, TransientStorageError if status >= 500 else StorageError)
