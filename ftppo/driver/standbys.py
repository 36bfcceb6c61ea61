"""Looks after those who stand by. Comes in: a roster, now and then; goes out: the roster with who stands by now.

Standbys warm up behind the training; one that fails, or is taken, is made up for in a bundle that came free. On a node
that is about to go there are none.
"""

from ftppo.driver.announce import announce
from ftppo.driver.detect import SURVEY_S, nobody_at
from ftppo.driver.display import Display
from ftppo.driver.pool import Pool
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.trials import StandbyTrials
from ftppo.plan.recovery import dp_within_reach
from ftppo.plan.roster import Roster


class Standbys:
    """The standbys of a run."""

    def __init__(self, pool: Pool, files: RunFiles, display: Display, begun: bool = False) -> None:
        """`begun`: those that came with the slots are warm already."""
        self.pool, self.files, self.display = pool, files, display
        self.trials = StandbyTrials(pool, files, display, pool.clock, pool.config.recovery.groups_s)
        self._begun = begun

    def begin(self, roster: Roster) -> None:
        """Warm up those that came with the slots; once. Who has held a slot meanwhile is warm."""
        if not self._begun:
            self._begun = True
            cold = [name for name in roster.standby if name in self.pool.members and name not in self.pool.warm]
            self.pool.warm_up(cold)

    def knock(self) -> None:
        """See that those that are warm are there: a standby that has died says so only when it is called."""
        for name in sorted(nobody_at(self.pool.addresses(self.pool.warm), SURVEY_S)):
            self.pool.retire(name)
            announce(self.files, self.display, "standby_failed", f"{name}: nobody listens at its address any more")

    def can_grow(self, roster: Roster) -> bool:
        """Whether those that could take a slot make up a replica that the mesh has lost, with the state in memory."""
        if not self.pool.config.snapshot.every_steps or roster.layout.dp >= self.pool.layout.dp:
            return False
        num_warm = sum(roster.stands_by(name) for name in self.pool.promotable())
        return dp_within_reach(roster.layout, self.pool.layout.dp, num_warm) > roster.layout.dp

    def tend(self, roster: Roster, timeout_s: float = 0.0) -> Roster:
        """Hear whose warming has ended, waiting up to `timeout_s` for one, and start what is missing."""
        for name, error in self.pool.poll(timeout_s):
            if error is None:
                announce(self.files, self.display, "standby_ready", name)
            else:
                reason = str(error).strip().splitlines()[-1]
                announce(self.files, self.display, "standby_failed", f"{name}: {reason}")
        draining = self.pool.draining()
        for name in [name for name in roster.standby if self.pool.node_of(name) in draining]:
            self.pool.retire(name)
            announce(self.files, self.display, "standby_ended", f"{name}: its node is about to go")
        fresh = self.pool.refill() if self._begun else []
        for name in fresh:
            self.files.record("standby_started", name)
        gone = [name for name in roster.standby if name not in self.pool.members]
        return roster.without_standby(gone).with_standby(fresh) if gone or fresh else roster
