"""A URL -> the store it names. Comes in: a folder, file://, s3://, gs:// or memory://; goes out: a store rooted there.

A URL that cannot work is a ConfigError about `checkpoint.url`. boto3 and gcsfs are imported only where needed.
"""

import secrets
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from ftppo.clock import Clock
from ftppo.errors import AlreadyExists, ConfigError, NotFound, PermissionDenied, StorageError
from ftppo.storage.base import ObjectStore, is_reserved

KEY = "checkpoint.url"
_FORMS = "use a folder, s3://bucket/prefix or gs://bucket/prefix"


def open_store(
    url: str, *, endpoint: str | None = None, checksums: str = "when_supported", clock: Clock | None = None
) -> ObjectStore:
    """The store at `url`; nothing is sent to it yet.

    `endpoint` is the URL of another S3 or GCS server than the cloud's own. `checksums`, of S3 only, is "when_supported"
    or "when_required". Raises ConfigError.
    """
    if "://" not in url:
        if not url:
            raise ConfigError(KEY, url, f"is empty; {_FORMS}")
        return _local(Path(url), clock)
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigError(KEY, f"{parts.scheme}://...", "holds credentials; give them to the environment instead")
    if endpoint and "@" in urlsplit(endpoint).netloc:
        raise ConfigError("checkpoint.endpoint", "...", "holds credentials; give them to the environment instead")
    if parts.query or parts.fragment:
        raise ConfigError(KEY, url, f"has a query or a fragment; {_FORMS}")
    match parts.scheme:
        case "file":
            if parts.netloc not in ("", "localhost"):
                raise ConfigError(KEY, url, f"names a host; write file:///{parts.netloc}{parts.path} for a folder")
            return _local(Path(unquote(parts.path)), clock)
        case "memory":
            from ftppo.storage.memory import MemoryStore

            return MemoryStore(parts.netloc, _prefix(url, parts), clock)
        case "s3":
            from ftppo.storage.s3 import S3Store

            return S3Store(_bucket(url, parts), _prefix(url, parts), endpoint, checksums, clock)
        case "gs":
            from ftppo.storage.gcs import GcsStore

            return GcsStore(_bucket(url, parts), _prefix(url, parts), endpoint, clock)
    raise ConfigError(KEY, url, f"unknown scheme {parts.scheme!r}; {_FORMS}")


def preflight(store: ObjectStore) -> None:
    """Prove with a probe object, removed afterwards, that the store can do what a save needs.

    Raises ConfigError about `checkpoint.url` with the remedy; a TransientStorageError passes: trying again may help.
    """
    key, data = f"preflight-{secrets.token_hex(6)}", b"ftppo probe"
    try:
        store.create(key, data)
    except NotFound as error:
        raise ConfigError(KEY, store.url, f"no such bucket; create it, or correct the name ({error})") from error
    except StorageError as error:
        raise _refused(store, "writing", error) from error
    try:
        try:
            _check_probe(store, key, data)
        finally:
            store.delete(key)
    except StorageError as error:
        raise _refused(store, "reading, listing or deleting", error) from error


def _check_probe(store: ObjectStore, key: str, data: bytes) -> None:
    if store.get(key) != data or [info.size_bytes for info in store.list(key)] != [len(data)]:
        raise ConfigError(KEY, store.url, "does not give back what was written; use another store")
    try:
        store.create(key, data)
    except AlreadyExists:
        return
    raise ConfigError(KEY, store.url, "overwrites objects that exist when told not to; use a store that can refuse")


def _refused(store: ObjectStore, doing: str, error: StorageError) -> Exception:
    if error.transient:
        return error
    if isinstance(error, PermissionDenied) or isinstance(error.__cause__, PermissionDenied):  # tried again and again
        return ConfigError(KEY, store.url, f"{doing} is not permitted; give credentials that may do it ({error})")
    return ConfigError(KEY, store.url, f"{doing} fails; correct the place or its settings ({error})")


def _local(root: Path, clock: Clock | None) -> ObjectStore:
    from ftppo.storage.local import LocalStore

    return LocalStore(root, clock)


def _bucket(url: str, parts: SplitResult) -> str:
    if not parts.netloc:
        raise ConfigError(KEY, url, f"names no bucket; {_FORMS}")
    return parts.netloc


def _prefix(url: str, parts: SplitResult) -> str:
    prefix = parts.path.strip("/")
    if prefix and any(not part or is_reserved(part) for part in prefix.split("/")):
        raise ConfigError(KEY, url, "its prefix has a component that is empty or reserved; rename it")
    return prefix
