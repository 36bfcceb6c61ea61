"""A store in a Google Cloud Storage bucket. Comes in: keys and bytes; goes out: objects.

gcsfs gives credentials, session and event loop; the requests are the JSON API's own, one attempt each, because gcsfs's
calls retry by themselves, cache listings and check no preconditions on large objects. Errors: gcs_errors.py.
"""

import base64
import hashlib
import os
import secrets
from collections.abc import Buffer, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import aiohttp
from fsspec.asyn import sync
from google.auth.exceptions import GoogleAuthError

from ftppo.clock import Clock, SystemClock
from ftppo.errors import ConfigError, NotFound, StorageError, TransientStorageError
from ftppo.storage.base import UPLOADS, ObjectInfo, Upload, as_view, check_key, check_parts
from ftppo.storage.gcs_errors import GCSFileSystem, HttpStatus, simple_upload, typed_errors
from ftppo.storage.status import RangeBeyondEnd

CONNECT_S = 10.0
READ_S = 60.0  # longest silence of the server within an answer
_MAX_SOURCES = 32  # of one compose, GCS's own limit
_INFO = "name,size,updated"
_BINARY = {"Content-Type": "application/octet-stream"}


class _OneAttempt(GCSFileSystem):  # type: ignore[misc]
    """gcsfs without its retries, and with the status of an error kept: it judges some by their texts."""

    async def _request(
        self, method: str, path: str, *args: str, headers: Any = None, json: Any = None, data: Any = None, **params: Any
    ) -> tuple[int, Any, Any, bytes]:
        await self._set_session()
        sent = self._get_headers(headers)
        async with self.session.request(
            method,
            self._format_path(path, args),
            params=self._get_params(params),
            headers=sent,
            json=json,
            data=data,
            timeout=self.requests_timeout,
        ) as answer:
            content = await answer.read()
            if answer.status >= 400:
                raise HttpStatus(answer.status, content, answer.status == 401 and self._renew(sent))
            return answer.status, answer.headers, answer.request_info, content

    def _renew(self, sent: Mapping[str, str]) -> bool:
        """Look for credentials anew, unless that was done since `sent` went out; whether requests carry any at all."""
        credentials = self.credentials.credentials
        if credentials is None:
            return False
        if sent.get("authorization") == f"Bearer {credentials.token}":
            with suppress(GoogleAuthError, OSError, ValueError):  # not now: the next attempt asks for a token again
                self.credentials.connect("google_default")
            self.credentials.credentials.token = None
        return True


class GcsStore:
    """Objects below `prefix` of `bucket`, with Google's default credentials.

    At another `endpoint` without GOOGLE_APPLICATION_CREDENTIALS requests carry none. Raises ConfigError.
    """

    def __init__(self, bucket: str, prefix: str = "", endpoint: str | None = None, clock: Clock | None = None) -> None:
        self.url = f"gs://{bucket}/{prefix}".rstrip("/")
        self.bucket = bucket
        self._root = f"{prefix}/" if prefix else ""
        self._clock = clock or SystemClock()
        anonymous = endpoint and "GOOGLE_APPLICATION_CREDENTIALS" not in os.environ
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=READ_S)
        try:
            self._gcs = _OneAttempt(
                token="anon" if anonymous else "google_default",
                endpoint_url=endpoint,
                requests_timeout=timeout,
                skip_instance_cache=True,
            )
        except (GoogleAuthError, OSError, ValueError) as error:
            remedy = f"no usable Google credentials; run `gcloud auth application-default login`: {error}"
            raise ConfigError("checkpoint.url", self.url, remedy) from error

    def put(self, key: str, data: Buffer, crc32: int | None = None) -> None:
        """See ObjectStore."""
        self.put_named(self.name(key), data)

    def create(self, key: str, data: Buffer) -> None:
        """See ObjectStore."""
        name, content = self.name(key), bytes(as_view(data))
        with typed_errors(f"creating {self.url}/{key}"):
            stored = sync(self._gcs.loop, simple_upload, self._gcs, self.bucket, name, content, mode="create")
        self._check_arrival(name, as_view(content), stored)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """See ObjectStore."""
        if length == 0:
            self.stat(key)
            return b""
        last = "" if length is None else start + length - 1
        head = {"Range": f"bytes={start}-{last}"} if start or length is not None else {}
        try:
            with typed_errors(f"reading {self.url}/{key}"):
                _, data = self._gcs.call("GET", "b/{}/o/{}", self.bucket, self.name(key), alt="media", headers=head)
        except RangeBeyondEnd:
            return b""
        return bytes(data)

    def stat(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        with typed_errors(f"looking at {self.url}/{key}"):
            found = self._gcs.call("GET", "b/{}/o/{}", self.bucket, self.name(key), fields=_INFO, json_out=True)
        return self._info(found)

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        """See ObjectStore."""
        found = [self._info(entry) for entry in self.entries(self._root + prefix)]
        return sorted(info for info in found if not info.key.startswith(f"{UPLOADS}/") and not info.key.endswith("/"))

    def delete(self, key: str) -> None:
        """See ObjectStore."""
        self.remove(self.name(key))

    def start_upload(self, key: str, part_bytes: int) -> Upload:
        """See ObjectStore. Nothing is sent yet."""
        return _ComposedUpload(self, key, self._folder(key) + f"~{secrets.token_hex(6)}/", part_bytes)

    def sweep_uploads(self, prefix: str, older_than_s: float) -> int:
        """See ObjectStore. The age of an upload is the time since its newest part."""
        newest: dict[str, float] = {}
        names: dict[str, list[str]] = {}
        for entry in self.entries(self._folder(prefix)):
            upload = entry["name"].rpartition("/")[0]
            newest[upload] = max(newest.get(upload, 0.0), _time_s(entry))
            names.setdefault(upload, []).append(entry["name"])
        oldest_s = self._clock.now() - older_than_s
        old = [upload for upload in names if newest[upload] <= oldest_s]
        for upload in old:
            for name in names[upload]:
                self.remove(name)
        return len(old)

    def close(self) -> None:
        """See ObjectStore."""
        session, self._gcs._session = self._gcs._session, None
        if session is not None:
            GCSFileSystem.close_session(self._gcs.loop, session)

    def name(self, key: str) -> str:
        """The key's name within the bucket."""
        return self._root + check_key(key)

    def entries(self, prefix: str) -> Sequence[dict[str, Any]]:
        """What the server says of every object whose name begins with `prefix`."""
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {"nextPageToken": None}
        fields = f"nextPageToken,items({_INFO})"
        while "nextPageToken" in page:
            token = page["nextPageToken"]
            with typed_errors(f"listing gs://{self.bucket}/{prefix}"):
                page = self._gcs.call(
                    "GET", "b/{}/o", self.bucket, prefix=prefix, pageToken=token, fields=fields, json_out=True
                )
            found += page.get("items", [])
        return found

    def put_named(self, name: str, data: Buffer) -> None:
        """Store an object in one request, without a copy of the data."""
        view, url = as_view(data), f"{self._gcs._location}/upload/storage/v1/b/{self.bucket}/o"
        with typed_errors(f"writing gs://{self.bucket}/{name}"):
            stored = self._gcs.call(
                "POST", url, name=name, uploadType="media", data=view, headers=_BINARY, json_out=True
            )
        self._check_arrival(name, view, stored)

    def _check_arrival(self, name: str, view: memoryview, stored: dict[str, Any]) -> None:
        """Take an object back that is not what was sent; summed after the answer, so once however often it was sent."""
        sent = base64.b64encode(hashlib.md5(view, usedforsecurity=False).digest()).decode()
        if stored.get("md5Hash", sent) != sent:
            self.remove(name, ifGenerationMatch=stored["generation"])
            raise TransientStorageError(f"gs://{self.bucket}/{name} did not arrive as it was sent")

    def compose(self, name: str, sources: Sequence[str]) -> int:
        """Join objects into one; its size in bytes."""
        body = {"sourceObjects": [{"name": source} for source in sources]}
        with typed_errors(f"composing gs://{self.bucket}/{name}"):
            made = self._gcs.call("POST", "b/{}/o/{}/compose", self.bucket, name, json=body, json_out=True)
        return int(made["size"])

    def remove(self, name: str, **condition: str) -> None:
        """Delete an object, if there is one."""
        with suppress(NotFound), typed_errors(f"deleting gs://{self.bucket}/{name}"):
            self._gcs.call("DELETE", "b/{}/o/{}", self.bucket, name, **condition)

    def _folder(self, prefix: str) -> str:
        return f"{self._root}{UPLOADS}/{prefix}"

    def _info(self, entry: dict[str, Any]) -> ObjectInfo:
        return ObjectInfo(entry["name"].removeprefix(self._root), int(entry["size"]), _time_s(entry))


def _time_s(entry: dict[str, Any]) -> float:
    return datetime.fromisoformat(entry["updated"]).timestamp()


class _ComposedUpload:
    """Parts as objects of their own, composed at the end: each can be retried alone and sent beside the others.

    A resumable upload takes its parts one after another only.
    """

    def __init__(self, store: GcsStore, key: str, folder: str, part_bytes: int) -> None:
        self._store, self._name, self._folder, self._part_bytes = store, store.name(key), folder, part_bytes
        self._sizes: dict[int, int] = {}
        self._aborted = self._published = False

    def part(self, number: int, data: Buffer, crc32: int | None = None) -> None:
        """See Upload."""
        if self._aborted:
            raise StorageError(f"the upload of {self._name} was aborted")
        self._store.put_named(f"{self._folder}{number:06d}", data)
        self._sizes[number] = as_view(data).nbytes

    def complete(self) -> None:
        """See Upload."""
        size_bytes = check_parts(self._sizes, self._part_bytes)
        if not self._published:
            names = [f"{self._folder}{number:06d}" for number in sorted(self._sizes)]
            while len(names) > _MAX_SOURCES:
                names = [self._join(names[at : at + _MAX_SOURCES]) for at in range(0, len(names), _MAX_SOURCES)]
            composed_bytes = self._store.compose(self._name, names)
            if composed_bytes != size_bytes:
                self._store.remove(self._name)
                raise StorageError(f"{self._name} has {composed_bytes} bytes where {size_bytes} were written")
            self._published = True
        self._remove_parts()

    def abort(self) -> None:
        """See Upload."""
        self._aborted = True
        self._remove_parts()

    def _join(self, names: Sequence[str]) -> str:
        joined = f"{names[0]}+"
        self._store.compose(joined, names)
        return joined

    def _remove_parts(self) -> None:
        for entry in self._store.entries(self._folder):
            self._store.remove(entry["name"])
