"""Scalars for TensorBoard. Comes in: a tag, a number, a step; goes out: an event file in TensorBoard's own format.

The record writer is used on a plain file, so that there is no thread to stop and TensorFlow is never imported.
"""

import os
import socket
from pathlib import Path

from ftppo.clock import Clock


class ScalarWriter:
    """One event file; each call is on disk when it returns."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # here: half a second that only a run needs
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._clock = clock
        name = f"events.out.tfevents.{clock.now():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("wb")
        self._records = RecordWriter(self._file)
        self._records.write(Event(wall_time=clock.now(), file_version="brain.Event:2").SerializeToString())
        self._file.flush()

    def add(self, step: int, scalars: dict[str, float]) -> None:
        """Write `scalars` (tag to value) at `step`."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        event = Event(wall_time=self._clock.now(), step=step, summary=Summary(value=values))
        self._records.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        """Let go of the file; again does nothing."""
        self._file.close()
