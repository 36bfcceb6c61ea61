"""Where the ranks of a generation meet. Its own file, as the driver names it and imports nothing heavy for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rendezvous:
    """Address of the store of one generation."""

    generation: int
    host: str
    port: int
