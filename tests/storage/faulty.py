"""Where the requests of each kind of server can be hit, and a writer to hit them."""

from ftppo.storage.base import ObjectStore
from ftppo.storage.retry import Retrier
from ftppo.storage.writer import BufferedWriter, WrittenObject
from tests.storage.conftest import PART_BYTES
from tests.storage.proxy import Fault, FaultProxy

DATA = bytes(range(256)) * 15 + b"tail"  # four parts
# how each server's requests look: (method, path) of one part, of a put, of a create, of the start, of the end
PART = {
    "s3": ("PUT", r"partNumber={}(&|$)"),
    "gcs": ("POST", r"\.uploads.*%2F0*{}&uploadType|\.uploads.*/0*{}&uploadType"),
}
WHOLE = {"s3": ("PUT", "key$"), "gcs": ("POST", r"upload/storage")}
COMPLETE = {"s3": ("POST", "uploadId="), "gcs": ("POST", "key/compose")}
READ = {"s3": ("GET", "key$"), "gcs": ("GET", "alt=media")}


def part(kind: str, number: int, fault: Fault) -> Fault:
    """`fault`, aimed at one part."""
    fault.method, fault.path = PART[kind][0], PART[kind][1].replace("{}", str(number))
    return fault


def aim(at: dict[str, tuple[str, str]], kind: str, fault: Fault) -> Fault:
    fault.method, fault.path = at[kind]
    return fault


def num_parts_sent(kind: str, proxy: FaultProxy) -> int:
    return proxy.count(PART[kind][0], PART[kind][1].replace("{}", "[0-9]+"))


def write(raw: ObjectStore, retrier: Retrier) -> WrittenObject:
    with BufferedWriter(raw, "key", retrier, PART_BYTES, ring_buffers=2) as stream:
        stream.write(DATA)
        return stream.close()
