"""A process that judges. Comes in: by a socket, a function's dotted path, then answers; goes out: a verdict on each.

It is two processes of one group: one runs the function, whatever that does; the other waits and, once the driver or the
first is gone, ends the group, with all that the function has started. Only what is light is imported here.
"""

import asyncio
import difflib
import functools
import importlib
import inspect
import math
import numbers
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NoReturn

from ftppo.tasks.wire import receive, send

LONGEST = 500  # characters of what an error says

type Word = tuple[Literal["ready", "refused", "score", "failed", "died", "overdue"], Any]
type Reward = Callable[..., Any]


class Refused(Exception):
    """There is no such function; the text is the remedy."""


def main() -> None:
    """`python -m ftppo.tasks.judge FD`: serve the driver at the other end of the socket FD."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.dup2(2, 1)  # what the function prints goes where warnings go
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child:
        _guard(channel, child, reader)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _serve(channel)


def load(path: str) -> Reward:
    """The function at `path`, "package.module.function". Raises Refused where there is none to call."""
    module_name, _, name = path.rpartition(".")
    if not module_name or not name:
        raise Refused("give a dotted path, package.module.function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module may raise anything while it is imported
        raise Refused(
            f"module {module_name} cannot be imported ({type(error).__name__}: {error}); is it on PYTHONPATH?"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        near = difflib.get_close_matches(name, [n for n in dir(module) if callable(getattr(module, n))], n=1)
        raise Refused(f"module {module_name} has no function {name}" + (f"; did you mean {near[0]}?" if near else ""))
    return function  # type: ignore[no-any-return]


def verdict(function: Reward, answer: str, entry: dict[str, Any], runner: asyncio.Runner) -> Word:
    """What `function`, a coroutine or not, says of the answer: a finite number, or what it did instead."""
    try:
        found = function(answer, entry)
        if inspect.isawaitable(found):
            found = runner.run(_wait(found))
        if not isinstance(found, numbers.Real):
            return "failed", f"returned a {type(found).__name__}, not a number: return a float"
        if not math.isfinite(score := float(found)):
            return "failed", f"returned {found}: return a finite number"
    except Exception as error:
        return "failed", f"raised {type(error).__name__}: {error}"[:LONGEST]
    return "score", score


def _serve(channel: socket.socket) -> None:
    path, options, memory_mb, sys.path[:] = receive(channel)
    if memory_mb is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20, memory_mb * 2**20))
    try:
        function = functools.partial(load(path), **options)
    except Refused as refused:
        send(channel, ("refused", str(refused)))
        return
    send(channel, ("ready", None))
    with asyncio.Runner() as runner:
        while True:
            try:
                answer, entry = receive(channel)
            except EOFError:
                return
            send(channel, verdict(function, answer, entry, runner))


def _guard(channel: socket.socket, child: int, reader: int) -> NoReturn:
    """Until the driver hangs up, or the child has ended, of which the driver is told."""
    try:
        poll = select.poll()
        poll.register(channel, 0)  # a hang-up is told unasked
        poll.register(reader, select.POLLIN)
        if any(place == reader for place, _ in poll.poll()):
            _, status = os.waitpid(child, 0)
            send(channel, ("died", os.waitstatus_to_exitcode(status)))
    finally:
        os.killpg(0, signal.SIGKILL)
    raise AssertionError("a killed process goes on")


async def _wait(found: Awaitable[Any]) -> Any:
    return await found


if __name__ == "__main__":
    main()
