"""What broke a generation. Comes in: its roster, and what the break has shown; goes out: the faults, judged."""

import dataclasses

from ftppo.clock import Clock
from ftppo.driver.detect import SURVEY_S, nobody_at, survey
from ftppo.driver.mesh import GenerationBroken
from ftppo.driver.pool import Pool
from ftppo.driver.runfiles import RunFiles
from ftppo.plan.faults import Fault, judge
from ftppo.plan.roster import Roster


def find_faults(
    roster: Roster, broken: GenerationBroken, pool: Pool, files: RunFiles, clock: Clock, hang_s: float
) -> list[Fault]:
    """Ask every slot, and judge. Tracebacks of what was raised go to the run's events."""
    handles = {name: pool.members[name].handle for name in roster.slots if name in pool.members}
    for one in broken.observations:
        if one.error is not None and not one.peer_lost:
            files.record("traceback", one.error.trace, slot=one.slot)
    seen = survey(roster, handles, pool.addresses(roster.slots), broken.observations, clock, SURVEY_S)
    nodes = _lost_nodes(pool, {one.actor for one in seen if one.process_dead})
    seen = [dataclasses.replace(one, node_alive=False) if pool.node_of(one.actor) in nodes else one for one in seen]
    return judge(seen, layout=roster.layout, hang_s=hang_s)


def _lost_nodes(pool: Pool, dead: set[str]) -> set[str]:
    """Nodes of which, with these actors, all are dead, where they have several and there are other nodes."""
    of_node = pool.warm_by_node()
    if len(of_node) < 2:
        return set()
    struck = [names for names in of_node.values() if dead & set(names)]
    doubtful = [name for names in struck for name in names if name not in dead]
    dead = dead | nobody_at(pool.addresses(doubtful), SURVEY_S)
    return {node for node, names in of_node.items() if len(names) > 1 and dead.issuperset(names)}
