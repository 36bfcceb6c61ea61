"""The moment between two optimizer steps. Comes in: a mesh, and how many steps are done; goes out: nothing, or the
GenerationBroken that what is done there comes to.

A checkpoint that is written beside the training goes a piece further, slots move to standbys, replicas are compared,
and a mesh that has shrunk grows again.
"""

from collections.abc import Callable

from ftppo.clock import Clock
from ftppo.config import Config
from ftppo.driver.comparison import Comparison
from ftppo.driver.departures import Departures
from ftppo.driver.display import Display
from ftppo.driver.mesh import GenerationBroken, Mesh
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.saver import Saver
from ftppo.driver.standbys import Standbys
from ftppo.driver.stragglers import Stragglers


class Boundary:
    """What waits for such a moment, and does it."""

    def __init__(
        self,
        config: Config,
        standbys: Standbys,
        saver: Saver,
        go_on_saving: Callable[[], None],
        files: RunFiles,
        display: Display,
        clock: Clock,
    ) -> None:
        """`go_on_saving` takes the pending save of `saver` further."""
        self.standbys, self.saver, self._go_on_saving = standbys, saver, go_on_saving
        self.stragglers = Stragglers(config, files, display)
        self.departures = Departures(standbys, self.stragglers, files, display, clock)
        self.comparison = Comparison(config, files, display)

    def due(self, mesh: Mesh, num_steps: int) -> bool:
        """Whether anything waits, once `num_steps` are done."""
        roster = mesh.roster
        waits = self._saving_waits(mesh) or self.departures.due(mesh)
        return waits or self.comparison.due(num_steps, roster.layout) or self.standbys.can_grow(roster)

    def run(self, mesh: Mesh, num_steps: int, version: int) -> None:
        """Do what waits, the weights being at `version`. Raises GenerationBroken for the mesh to be another one."""
        if self._saving_waits(mesh):
            self._go_on_saving()
        if self.saver.publishing and (self.departures.due(mesh) or self.standbys.can_grow(mesh.roster)):
            self._go_on_saving()  # before slot 0 lets go of its generation, and with it of the checkpoint
        self.departures.run_if_due(mesh, version)
        self.comparison.run_if_due(mesh, num_steps)
        if self.standbys.can_grow(mesh.roster):
            self._grow(mesh, version)

    def _grow(self, mesh: Mesh, version: int) -> None:
        self.standbys.knock()
        if self.standbys.can_grow(mesh.roster):
            mesh.call("hand_over", version, phase="idle")
            raise GenerationBroken((), "idle", mesh.roster, in_order=True)

    def _saving_waits(self, mesh: Mesh) -> bool:
        return self.saver.pending is not None and not mesh.writing
