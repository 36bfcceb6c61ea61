"""What an S3 server or boto3 says went wrong -> a typed StorageError, judged by codes and types and not by texts."""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError

from ftppo.errors import CredentialsExpired, PermissionDenied, StorageError, TransientStorageError
from ftppo.storage.status import type_of_status

_TRANSIENT_CODES = {
    # throttled or busy, whatever the status: an answer to CompleteMultipartUpload may have 200
    "SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "ServiceUnavailable", "InternalError",
    # the bytes did not arrive as they were sent; status 400
    "RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch",
}  # fmt: skip
_EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}  # status 400, of some servers 403
_DENIED_CODES = {"InvalidToken"}  # status 400
_DENIED_TYPES = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
)
_TRANSIENT_TYPES = (boto.ConnectionError, boto.HTTPClientError, boto.FlexibleChecksumError, boto.IncompleteReadError)
_REMEDIES = {
    "EntityTooSmall": "; the server wants larger parts: raise checkpoint.part_bytes (Amazon: 5242880 or more)",
    "NotImplemented": "; the server does not know this: try checkpoint.checksums=when_required, or another server",
}


@contextmanager
def typed_errors(what: str) -> Iterator[None]:
    """Raise what boto3 raises inside as the StorageError it means, with the original as its cause."""
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        kind = _error_type(code, _status_of(error), error.operation_name)
        raise kind(f"{what}: {error}{_REMEDIES.get(code, '')}") from error
    except _DENIED_TYPES as error:
        raise PermissionDenied(f"{what}: {error}") from error
    except _TRANSIENT_TYPES as error:
        raise TransientStorageError(f"{what}: {error}") from error
    except BotoCoreError as error:
        raise StorageError(f"{what}: {error}") from error


def _status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _error_type(code: str, status: int, operation: str) -> type[StorageError]:
    if code in _TRANSIENT_CODES:
        return TransientStorageError
    if code in _EXPIRED_CODES or (operation, status) == ("HeadObject", 400):  # an answer to HEAD has no code
        return CredentialsExpired
    return PermissionDenied if code in _DENIED_CODES else type_of_status(status)
