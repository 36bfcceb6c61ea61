"""Messages between the driver and the processes that judge. Comes in: a value; goes out: the same at the other end.

Both ends are our own processes on one machine, so values are pickled; nothing that was stored ever is. Stdlib only.
"""

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct(">I")


def send(channel: socket.socket, value: Any) -> None:
    """Send one message. Raises OSError where the other end is gone or does not read."""
    data = pickle.dumps(value)
    channel.sendall(_LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket) -> Any:
    """The next message. Raises EOFError where the other end is gone, OSError where it stops within a message."""
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    return pickle.loads(_exactly(channel, length))


def _exactly(channel: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        part = channel.recv(num_bytes - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
