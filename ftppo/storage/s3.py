"""A store in an S3 bucket, Amazon's or another with the same API, by boto3. Keys and bytes come in, objects go out.

boto3's own retries are off: retry.py's are the only ones. Errors are mapped in s3_errors.py.
"""

import base64
import io
import threading
from collections.abc import Buffer, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from ftppo.clock import Clock, SystemClock
from ftppo.errors import ConfigError, CredentialsExpired, NotFound, StorageError, TransientStorageError
from ftppo.storage import crc
from ftppo.storage.base import ObjectInfo, Upload, as_view, check_key, check_parts
from ftppo.storage.s3_errors import typed_errors
from ftppo.storage.status import RangeBeyondEnd

CONNECT_S = 10.0
READ_S = 60.0  # longest silence of the server within an answer
MAX_PARTS = 10_000  # S3's own limit
_CHUNK_BYTES = 2**20
_RESUMES = 5  # of one get; beyond that the whole get is the caller's to retry


class S3Store:
    """Objects below `prefix` of `bucket`. Credentials and region are found as boto3 finds them.

    `checksums` "when_supported" sends a CRC-32 with everything, made by the caller from its memory where it gives one;
    "when_required" is for servers that refuse what they do not know. Raises ConfigError.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        endpoint: str | None = None,
        checksums: str = "when_supported",
        clock: Clock | None = None,
    ) -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self.bucket, self.checksums = bucket, checksums == "when_supported"
        self._root = f"{prefix}/" if prefix else ""
        self._clock = clock or SystemClock()
        self._endpoint, self._config = (
            endpoint,
            Config(
                retries={"total_max_attempts": 1},
                connect_timeout=CONNECT_S,
                read_timeout=READ_S,
                max_pool_connections=16,
                tcp_keepalive=True,
                request_checksum_calculation=checksums,
                response_checksum_validation=checksums,
                # names of buckets are rarely names of hosts below another endpoint
                s3={"addressing_style": "path" if endpoint else "auto"},
            ),
        )
        self._renewing = threading.Lock()
        self._client = self._new_client()

    def put(self, key: str, data: Buffer, crc32: int | None = None) -> None:
        """See ObjectStore."""
        self._put(key, data, crc32, {})

    def create(self, key: str, data: Buffer) -> None:
        """See ObjectStore."""
        self._put(key, data, None, {"IfNoneMatch": "*"})

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """See ObjectStore. A body that breaks off is asked for again from where it did."""
        if length == 0:
            self.stat(key)
            return b""
        received, resumes = _Received(), 0
        while True:
            before = len(received.data)
            try:
                self._receive(key, start, length, received)
            except RangeBeyondEnd:
                pass
            except TransientStorageError:
                resumes += 1
                if len(received.data) == before or resumes > _RESUMES:
                    raise
                continue
            return bytes(received.data)

    def stat(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        with self.request(f"looking at {self.url}/{key}") as client:
            found = client.head_object(Bucket=self.bucket, Key=self.name(key))
        return ObjectInfo(key, found["ContentLength"], found["LastModified"].timestamp())

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        """See ObjectStore."""
        with self.request(f"listing {self.url}/{prefix}") as client:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._root + prefix)
            found = [entry for page in pages for entry in page.get("Contents", [])]
        return sorted(
            ObjectInfo(entry["Key"].removeprefix(self._root), entry["Size"], entry["LastModified"].timestamp())
            for entry in found
            if not entry["Key"].endswith("/")  # what consoles make for an empty folder
        )

    def delete(self, key: str) -> None:
        """See ObjectStore."""
        with self.request(f"deleting {self.url}/{key}") as client:
            client.delete_object(Bucket=self.bucket, Key=self.name(key))

    def start_upload(self, key: str, part_bytes: int) -> Upload:
        """See ObjectStore."""
        algorithm = {"ChecksumAlgorithm": "CRC32"} if self.checksums else {}
        with self.request(f"starting {self.url}/{key}") as client:
            started = client.create_multipart_upload(Bucket=self.bucket, Key=self.name(key), **algorithm)
        return _S3Upload(self, key, started["UploadId"], part_bytes)

    def sweep_uploads(self, prefix: str, older_than_s: float) -> int:
        """See ObjectStore. The age of an upload is the time since it began."""
        oldest_s, name = self._clock.now() - older_than_s, self._root + prefix
        with self.request(f"sweeping {self.url}/{prefix}") as client:
            pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=name)
            found = [entry for page in pages for entry in page.get("Uploads", [])]
        old = [entry for entry in found if entry["Initiated"].timestamp() <= oldest_s]
        for entry in old:
            _S3Upload(self, entry["Key"].removeprefix(self._root), entry["UploadId"], 0).abort()
        return len(old)

    def close(self) -> None:
        """See ObjectStore."""
        self._client.close()

    @contextmanager
    def request(self, what: str) -> Iterator[Any]:
        """boto3's client for one request, its errors typed. After CredentialsExpired the next one is another's."""
        client = self._client
        try:
            with typed_errors(what):
                yield client
        except CredentialsExpired:
            with self._renewing, suppress(ConfigError):  # not now: the next attempt looks again
                if self._client is client:  # no other thread has been here
                    self._client = self._new_client()
            raise

    def name(self, key: str) -> str:
        """The key's name within the bucket."""
        return self._root + check_key(key)

    def checksum_of(self, data: memoryview, crc32: int | None) -> dict[str, str]:
        """The arguments that have the server verify `data`; none where it is not asked to."""
        if not self.checksums:
            return {}
        crc32 = crc.crc32(data) if crc32 is None else crc32
        return {"ChecksumCRC32": base64.b64encode(crc32.to_bytes(4, "big")).decode()}

    def _new_client(self) -> Any:
        """With credentials looked for anew: boto3 keeps to those it has found unless it knows when they expire."""
        try:
            return boto3.session.Session().client("s3", endpoint_url=self._endpoint, config=self._config)
        except ValueError as error:
            raise ConfigError(
                "checkpoint.endpoint", self._endpoint, f"give the http or https URL of a server: {error}"
            ) from error
        except BotoCoreError as error:
            raise ConfigError("checkpoint.url", self.url, f"correct the AWS configuration: {error}") from error

    def _put(self, key: str, data: Buffer, crc32: int | None, condition: dict[str, str]) -> None:
        view = as_view(data)
        more = condition | self.checksum_of(view, crc32)
        with self.request(f"writing {self.url}/{key}") as client:
            client.put_object(Bucket=self.bucket, Key=self.name(key), Body=Reader(view), **more)

    def _receive(self, key: str, start: int, length: int | None, received: "_Received") -> None:
        """Add what is still missing of the range."""
        first = start + len(received.data)
        last = "" if length is None else start + length - 1
        more = {"Range": f"bytes={first}-{last}"} if first or length is not None else {}
        more |= {"IfMatch": received.etag} if received.etag else {}
        with self.request(f"reading {self.url}/{key}") as client:
            answer = client.get_object(Bucket=self.bucket, Key=self.name(key), **more)
            received.etag = answer["ETag"]
            with closing(answer["Body"]) as body:
                for chunk in body.iter_chunks(_CHUNK_BYTES):
                    received.data += chunk


@dataclass
class _Received:
    """What has come of an object, and which version of it."""

    data: bytearray = field(default_factory=bytearray)
    etag: str = ""


class _S3Upload:
    """A multipart upload."""

    def __init__(self, store: S3Store, key: str, upload_id: str, part_bytes: int) -> None:
        self._store, self._key, self._part_bytes = store, key, part_bytes
        self._place = {"Bucket": store.bucket, "Key": store.name(key), "UploadId": upload_id}
        self._parts: dict[int, dict[str, Any]] = {}
        self._sizes: dict[int, int] = {}
        self._completing = False

    def part(self, number: int, data: Buffer, crc32: int | None = None) -> None:
        """See Upload."""
        url, view = f"{self._store.url}/{self._key}", as_view(data)
        if number > MAX_PARTS:
            raise StorageError(f"{url} has more than {MAX_PARTS} parts; raise checkpoint.part_bytes")
        checksum = self._store.checksum_of(view, crc32)
        with self._store.request(f"writing part {number} of {url}") as client:
            answer = client.upload_part(**self._place, PartNumber=number, Body=Reader(view), **checksum)
        self._parts[number] = {"PartNumber": number, "ETag": answer["ETag"], **checksum}
        self._sizes[number] = len(view)

    def complete(self) -> None:
        """See Upload."""
        size_bytes = check_parts(self._sizes, self._part_bytes)
        parts = [self._parts[number] for number in sorted(self._parts)]
        again, self._completing = self._completing, True
        try:
            with self._store.request(f"completing {self._store.url}/{self._key}") as client:
                client.complete_multipart_upload(**self._place, MultipartUpload={"Parts": parts})
        except NotFound:
            # the answer to a first complete was lost, and the upload ended with it
            if not again or self._store.stat(self._key).size_bytes != size_bytes:
                raise

    def abort(self) -> None:
        """See Upload."""
        with suppress(NotFound), self._store.request(f"aborting {self._store.url}/{self._key}") as client:
            client.abort_multipart_upload(**self._place)


class Reader(io.RawIOBase):
    """A buffer as a file, without a copy: boto3 takes no memoryview."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._at = view, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, target: Buffer) -> int:
        into = memoryview(target).cast("B")
        count = max(0, min(len(into), len(self._view) - self._at))
        into[:count] = self._view[self._at : self._at + count]
        self._at += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, len(self._view))[whence]
        return self._at

    def tell(self) -> int:
        return self._at
