"""2 GiB of tensors through the buffered writer, against what else moves that many bytes. Comes in: rounds.

Both sides in turn in one process, from host memory. ftppo: `write_shards`, with the defaults of the config: tensors are
serialised, summed and sent in parts. The others are given a file of as many bytes, ready and in the page cache: to a
folder a plain copy and fsync; to an S3 server in a process of its own boto3's TransferManager with its defaults. Of two
servers the sink keeps nothing, so that the writers' own cost shows; moto keeps what it is sent, and is slow. `extra` is
the highest resident memory of ftppo's process while it writes over that before, beside the ring's size; the copy of the
state, which an asynchronous save makes first, is not in it.
"""

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import psutil
import torch
from botocore.config import Config

from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.shards import write_shards
from ftppo.config import Checkpoint
from ftppo.storage.retry import Retrier, RetryPolicy
from ftppo.storage.url import open_store
from tests.bench.pairs import Pairs, aligned
from tests.bench.sink import Sink
from tests.process import calls
from tests.process.mesh import Mesh

WARM_UP = 1  # rounds that do not count
DEADLINE_S = 600.0  # of one call
SIZE_BYTES, NUM_TENSORS = 2 * 2**30, 16
CLIENT, SERVER = 0, 1  # processes
BUCKET, REGION = "bench", "us-east-1"
CREDENTIALS = {"aws_access_key_id": "bench", "aws_secret_access_key": "bench"}
HEAD = ["case", "ftppo MiB/s", "other MiB/s", "ratio", "range", "extra MiB", "ring MiB"]
KNOBS = Checkpoint()


@dataclass
class Case:
    """Both sides' seconds, and ftppo's highest memory."""

    pairs: Pairs
    extra_bytes: list[int] = field(default_factory=list)

    def row(self) -> list[str]:
        """Rates and ratios as in the other tables, then memory."""
        ring_bytes = KNOBS.ring_buffers * KNOBS.part_bytes
        return [*self.pairs.row(), *(f"{one / 2**20:.0f}" for one in (max(self.extra_bytes), ring_bytes))]


def compare(rounds: int, size_bytes: int = SIZE_BYTES) -> str:
    """A row for each kind of store, both sides measured in turn `rounds` times."""
    mesh = Mesh(DEADLINE_S)
    try:
        with tempfile.TemporaryDirectory(prefix="ftppo-bench-") as folder:
            mesh.run([CLIENT], set_up, Path(folder), size_bytes)
            cases = [_case(mesh, *case, size_bytes, rounds) for case in CASES]
    finally:
        mesh.close()
    return aligned(f"store: {size_bytes / 2**20:,.0f} MiB of tensors", [HEAD, *(case.row() for case in cases)])


def _case(
    mesh: Mesh, name: str, start: Callable[..., str] | None, num_tensors: int, size_bytes: int, rounds: int
) -> Case:
    endpoint = mesh.run([SERVER], start)[0] if start is not None else None
    case = Case(Pairs(name, size_bytes * num_tensors // NUM_TENSORS // 2**20))
    for number in range(rounds + WARM_UP):
        [(ours_s, other_s, extra_bytes)] = mesh.run([CLIENT], measure, endpoint, num_tensors)
        if number >= WARM_UP:
            case.pairs.add(ours_s, other_s)
            case.extra_bytes.append(extra_bytes)
    if start is not None:
        mesh.run([SERVER], stop)
    return case


def start_moto(context: calls.Context, rank: int) -> str:
    """A moto server in this process, with a bucket; its address."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
    server = context["server"] = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    _client(f"http://{host}:{port}").create_bucket(Bucket=BUCKET)
    return f"http://{host}:{port}"


def start_sink(context: calls.Context, rank: int) -> str:
    """A Sink in this process; its address."""
    context["server"] = Sink().__enter__()
    return str(context["server"].url)


def stop(context: calls.Context, rank: int) -> None:
    """End the server."""
    server = context.pop("server")
    server.__exit__(None, None, None) if isinstance(server, Sink) else server.stop()


CASES: tuple[tuple[str, Callable[..., str] | None, int], ...] = (  # name, server, tensors
    ("folder", None, NUM_TENSORS),
    ("S3: sink", start_sink, NUM_TENSORS),
    ("S3: moto, an eighth", start_moto, NUM_TENSORS // 8),
)


def set_up(context: calls.Context, rank: int, folder: Path, size_bytes: int) -> None:
    """Tensors of random bytes, and a file with as many."""
    os.environ |= {name.upper(): value for name, value in CREDENTIALS.items()} | {"AWS_DEFAULT_REGION": REGION}
    tensors = [torch.randint(2**31, (size_bytes // NUM_TENSORS // 4,), dtype=torch.int32) for _ in range(NUM_TENSORS)]
    context["folder"] = folder
    context["pieces"] = [Piece(f"t{place}", tuple(one.shape), (0,), one) for place, one in enumerate(tensors)]
    for num_tensors in {num_tensors for _, _, num_tensors in CASES}:
        with (folder / f"file-{num_tensors}").open("wb") as file:
            for tensor in tensors[:num_tensors]:
                file.write(tensor.numpy().data)
            os.fsync(file.fileno())


def measure(context: calls.Context, rank: int, endpoint: str | None, num_tensors: int) -> tuple[float, float, int]:
    """Seconds of both sides, and ftppo's extra memory in bytes. What was written is gone afterwards."""
    folder, pieces = context["folder"], context["pieces"][:num_tensors]
    source = folder / f"file-{num_tensors}"
    url = f"s3://{BUCKET}/ours" if endpoint else str(folder / "ours")
    store = open_store(url, endpoint=endpoint)
    before_bytes = _watch_memory()
    started = time.perf_counter()
    record = write_shards(pieces, store, "a", 0, Retrier(RetryPolicy()), KNOBS.part_bytes, KNOBS.ring_buffers)
    ours_s = time.perf_counter() - started
    extra_bytes = _highest_memory() - before_bytes
    store.delete(f"a/{record.objects[0].name}")
    store.close()
    other_s = _upload(source, endpoint) if endpoint else _copy(source, folder / "other")
    return ours_s, other_s, extra_bytes


def _copy(source: Path, target: Path) -> float:
    started = time.perf_counter()
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    spent_s = time.perf_counter() - started
    target.unlink()
    return spent_s


def _upload(source: Path, endpoint: str) -> float:
    client = _client(endpoint)
    started = time.perf_counter()
    client.upload_file(str(source), BUCKET, "other")
    spent_s = time.perf_counter() - started
    client.delete_object(Bucket=BUCKET, Key="other")
    client.close()
    return spent_s


def _client(endpoint: str) -> Any:
    config = Config(s3={"addressing_style": "path"})
    return boto3.client("s3", endpoint_url=endpoint, region_name=REGION, config=config, **CREDENTIALS)


def _watch_memory() -> int:
    """Forget the highest resident memory of this process so far; what it is now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return int(psutil.Process().memory_info().rss)


def _highest_memory() -> int:
    """Since then, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
