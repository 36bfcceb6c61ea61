"""Compares what replicas of the model hold, now and then. Comes in: a mesh between two steps; goes out: nothing, or the
GenerationBroken that replaces whose weights have silently become others.
"""

from ftppo.config import Config
from ftppo.driver.announce import announce
from ftppo.driver.display import Display
from ftppo.driver.mesh import GenerationBroken, Mesh
from ftppo.driver.runfiles import RunFiles
from ftppo.plan.corruption import compare
from ftppo.plan.faults import Observation
from ftppo.plan.topology import Layout

CORRUPTION = "corruption"  # the event


class Comparison:
    """The comparisons of a run, one every recovery.compare_every_steps optimizer steps."""

    def __init__(self, config: Config, files: RunFiles, display: Display) -> None:
        self._every = config.recovery.compare_every_steps if config.snapshot.every_steps else 0
        self.files, self.display = files, display
        self._last = 0

    def due(self, num_steps: int, layout: Layout) -> bool:
        """Whether it is time, `num_steps` having been done."""
        has_replicas = layout.dp * layout.cp > 1
        if not has_replicas or not self._every:
            return False
        # After going back the steps from there on are compared again.
        return num_steps // self._every > min(self._last, num_steps) // self._every or num_steps < self._last

    def run_if_due(self, mesh: Mesh, num_steps: int) -> None:
        """Compare. Where more replicas agree than not, who does not is replaced; of two nobody knows which is right.

        What differs now was whole before the last step, which made all replicas equal: in both cases all go back to
        the version before it. Raises GenerationBroken.
        """
        roster = mesh.roster
        if not self.due(num_steps, roster.layout):
            return
        verdict = compare(mesh.call("fingerprint", phase="idle"), roster.layout)
        if not verdict.odd and not verdict.doubtful:
            self._last = num_steps
            return
        mesh.call("settle", phase="idle")
        said = [f"{roster.layout.describe(slot)} is outvoted" for slot in verdict.odd]
        said += [f"{roster.layout.describe(slot)} or another" for slot in verdict.doubtful]
        announce(self.files, self.display, CORRUPTION, f"weights of replicas differ: {'; '.join(said)}")
        seen = [Observation(slot, roster.actor(slot), corrupt=True) for slot in verdict.odd]
        raise GenerationBroken(seen, "idle", roster, spoilt=True)
