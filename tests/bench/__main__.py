"""`python -m tests.bench [names] [--rounds N]`. Comes in: names of benchmarks; goes out: a table for each.

The benchmarks use all cores: on a machine that does something else meanwhile their figures mean little.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence

NAMES = ("update", "padding", "rollout", "recovery", "steady", "save", "store", "scale")
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run what `argv` names, all without a name."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Benchmarks of ftppo.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}; all without one")
    parser.add_argument("--rounds", type=int, default=9, help="how often each side is measured (9)")
    parser.add_argument("--quick", action="store_true", help="two rounds: shows that it works, no more")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.names if name not in NAMES]:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    rounds = 2 if arguments.quick else arguments.rounds
    if rounds < 1:
        parser.error(f"--rounds {rounds}: at least 1")
    signal.signal(signal.SIGTERM, _interrupt)
    print(f"load average before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores", flush=True)
    try:
        for name in arguments.names or NAMES:
            print(_benchmark(name, rounds), flush=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _interrupt(*_: object) -> None:
    """SIGTERM is taken as Ctrl-C is: the cluster, the processes and the folders of a benchmark go with it."""
    raise KeyboardInterrupt


def _benchmark(name: str, rounds: int) -> str:
    # Here, not above: processes of a benchmark import this module again, and need no Ray.
    return str(importlib.import_module(f"tests.bench.{name}").compare(rounds))


if __name__ == "__main__":
    sys.exit(main())
