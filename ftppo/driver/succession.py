"""How a driver goes on in another one's place. Comes in: what that one has left; goes out: a mesh, and where it stands.

The actors are the same, so it is a recovery without a fault of theirs: they let go of their groups, make new ones under
the next generation, and go to the newest version that all have in memory. What only the driver knew of the iteration
under way, its batch above all, two of them were given to keep.
"""

import dataclasses

from ftppo.driver.estate import Estate
from ftppo.driver.iteration import Iteration, Workshop
from ftppo.driver.mesh import GenerationBroken, Mesh
from ftppo.driver.pool import Pool
from ftppo.driver.recovery import Recovery
from ftppo.driver.runfiles import RunFiles
from ftppo.plan.faults import Observation
from ftppo.types import DriverState

NOWHERE = DriverState(step=-1)  # where no copy is: of no use without the iteration that it is of


def succeed(
    estate: Estate, pool: Pool, recovery: Recovery, shop: Workshop, files: RunFiles
) -> tuple[Mesh, DriverState, Iteration | None]:
    """Take the estate over. Raises as a recovery does."""
    pool.adopt(estate)
    roster, start, known = estate.roster, estate.start, files.num_steps_known
    furthest = NOWHERE
    if start is not None:
        furthest = dataclasses.replace(start, step=start.step + shop.num_steps)
        recovery.oldest = start.version
    gone = [
        Observation(slot, name, process_dead=True) for slot, name in enumerate(roster.slots) if name not in pool.members
    ]
    broken = GenerationBroken(gone, "idle", roster)
    done = recovery.take_over(recovery.mesh_of(roster), broken, furthest, known)
    if done.state is not None or start is None:
        assert done.state is not None, "state from memory, but nobody knows where the run stood"
        return done.mesh, done.state, None
    iteration = estate.iteration(shop, done.version)
    for spec, result in iteration.steps():
        if spec.step >= known:
            files.step(spec, result)  # its driver did not come to write it down
    recovery.oldest = done.version  # of the versions before it nobody knows how to go on
    if files.num_iterations_known > start.iteration and len(iteration.results) == shop.num_steps:
        return done.mesh, iteration.after(), None  # nothing of it is left to do
    return done.mesh, start, iteration
