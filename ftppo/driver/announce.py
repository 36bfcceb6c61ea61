"""Tells of what happened, in both places that are read. Comes in: an event and its reason; goes out: a line in each."""

from ftppo.driver.display import Display
from ftppo.driver.runfiles import RunFiles


def announce(files: RunFiles, display: Display, event: str, reason: str) -> None:
    """A line of events.jsonl, and one for the person who watches."""
    files.record(event, reason)
    display.event(f"{event.replace('_', ' ')}: {reason}")
