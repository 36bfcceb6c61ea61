"""Where the run's state lies in living actors' memory. Comes in: actors to ask; goes out: the newest whole version.

A mesh of another layout may have made the copies: one that a recovery reshapes, or that was being reshaped when the
next fault came.
"""

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from ftppo.checkpoint.snapshot import FROZEN, TABLE
from ftppo.plan.holders import newest_common
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout


@dataclass(frozen=True)
class Copies:
    """A version of the state of which a living actor holds every slot's part, and who that is, by slot."""

    layout: Layout  # whose slots they are
    version: int
    holder: Mapping[int, str]


def find_copies(
    roster: Roster,
    handles: Mapping[str, Any],
    layouts: Mapping[str, Layout],
    has_reference: bool,
    at_most: int,
    timeout_s: float,
    leaving: Collection[str] = (),
) -> Copies | None:
    """The newest version, up to `at_most`, that the actors in `handles` hold together; None where there is none.

    `layouts` are those that may have made copies, by how they write themselves. Of two that hold a version, the
    roster's own is preferred. Those `leaving` are asked for what nobody else holds.
    """
    asked = {handle.holdings.remote(): name for name, handle in handles.items()}
    ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s)
    held: dict[str, dict[str, list[tuple[int, int]]]] = {text: {} for text in layouts}
    for reference in ready:
        with contextlib.suppress(ray.exceptions.RayError):  # gone since: it holds nothing
            for text, slot, version in ray.get(reference):
                if text in held:
                    held[text].setdefault(asked[reference], []).append((slot, version))
    also = [TABLE, FROZEN] if has_reference else [TABLE]
    found = []
    for text, layout in layouts.items():
        own = layout == roster.layout
        common = newest_common(roster.slots if own else [""] * layout.world, held[text], also, at_most, leaving)
        if common is not None:
            found.append((common.version, own, Copies(layout, common.version, common.holder)))
    return max(found, key=lambda one: one[:2])[2] if found else None
