"""What a layout makes of the one small training problem, from the drawn weights to the first optimizer step."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ftppo.config import Config
from ftppo.driver.prompts import assemble
from ftppo.plan.topology import Layout
from ftppo.types import Batch, RolloutResult, Scores, StepResult
from tests.process import calls, case
from tests.process.calls import Box
from tests.process.mesh import Mesh
from tests.process.world import World, whole


@dataclass(frozen=True)
class Outcome:
    """Everything that can be compared between layouts."""

    drawn: list[Box]  # every rank's parts before anything happened
    samples: RolloutResult
    sampled: Scores  # of the sequences that the samples make
    scores: Scores  # of the given sequences
    batch: Batch
    result: StepResult
    state: dict[str, Tensor]  # logical tensors after the step


type Observe = Callable[[Layout], Outcome]


def run_case(mesh: Mesh, config: Config, batch: Batch | None) -> Outcome:
    """Sample, score, step once; on a batch of its own where none is given."""
    request = case.request()
    with World(mesh, config) as world:
        drawn = [box for boxes in world.boxes() for box in boxes]
        mesh.run(world.slots, calls.tell_models_apart)
        samples = world.rollout(request)
        sampled = world.score(assemble(request, samples, calls.PAD, config.rollout))
        scores = world.score(case.sequences())
        batch = batch or case.batch(scores, config.algo)
        result = world.step(case.spec(), batch)
        state = whole(box for boxes in world.boxes() for box in boxes)
    return Outcome(drawn, samples, sampled, scores, batch, result, state)
