"""Keeps a run going. Comes in: a cluster and a task; goes out: a trained model, or the error that ended the run.

    Starting -> Running <-> Recovering -> Finished | Failed

The work itself is in iteration.py and knows of no fault: what breaks a generation there is caught here alone.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Literal

from ftppo.clock import Clock
from ftppo.config import Config, Fault
from ftppo.driver.account import Stopwatch, restart_record
from ftppo.driver.announce import announce
from ftppo.driver.boundary import Boundary
from ftppo.driver.cluster import Cluster
from ftppo.driver.display import Display, Fleet, IterationView
from ftppo.driver.estate import Estate
from ftppo.driver.evaluation import Evaluation
from ftppo.driver.injection import Injection
from ftppo.driver.iteration import Iteration, Workshop, warmup_step
from ftppo.driver.lending import Lending
from ftppo.driver.mesh import CallPhase, GenerationBroken, Mesh
from ftppo.driver.pool import Pool
from ftppo.driver.record import CheckpointRecord, Reward, Summary
from ftppo.driver.record import Layout as LayoutRecord
from ftppo.driver.recovery import Recovery
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.saver import DAMAGED, Saver
from ftppo.driver.standbys import Standbys
from ftppo.driver.succession import succeed
from ftppo.driver.trail import Trail
from ftppo.errors import CheckpointError, StorageError
from ftppo.plan.recovery import Source
from ftppo.plan.retention import due
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout
from ftppo.tasks.build import Tasks
from ftppo.tasks.tokenizer import Tokenizer
from ftppo.types import DriverState, StepResult, StepSpec


class Supervisor:
    """The state loop of one run."""

    def __init__(self, config: Config, clock: Clock, files: RunFiles, display: Display, saver: Saver) -> None:
        self.config, self.clock, self.files, self.display, self.saver = config, clock, files, display, saver
        parallel = config.parallel
        self.layout = Layout(parallel.dp, parallel.tp, parallel.pp, parallel.cp)
        self.state = DriverState(kl_coef=config.algo.kl_coef)
        self.digest: str | None = None
        self.reason: str | None = None
        self.iteration: Iteration | None = None
        self.trail = Trail()
        self.placed = self.save_due = False

    def run(
        self,
        cluster: Cluster,
        tasks: Tasks,
        tokenizer: Tokenizer,
        resume: bool,
        lending: Lending | None = None,
        estate: Estate | None = None,
    ) -> None:
        """The whole run on a cluster. With a `lending` its actors outlive this driver; an `estate` is taken over."""
        self.resume, self.watch = resume, Stopwatch(self.clock)
        self.injection = Injection(self.config, self.files, resume)
        hooks = (self._on_phase, self._on_step, self._on_batch, self._boundary_due, self._at_boundary)
        self.shop = Workshop(self.config, tasks.train, tokenizer, self.clock, *hooks)
        self.evaluation = Evaluation(self.shop, tasks, self.files, self.display)
        self.pool = Pool(self.config, cluster, tokenizer.vocab_size, tokenizer.eos_id, self.clock, lending)
        self.standbys = Standbys(self.pool, self.files, self.display, begun=estate is not None)
        told = (self.files, self.display, self.clock)
        advance = functools.partial(self._go_on_saving, self.saver.advance)
        self.boundary = Boundary(self.config, self.standbys, self.saver, advance, *told)
        self.recovery = Recovery(self.config, self.pool, self.standbys, self.saver, *told)
        try:
            self._start() if estate is None else self._take_over(estate)
            while self.digest is None:
                self._guarded(self._advance)
        finally:
            self.pool.stop()

    def summary(self, status: Literal["finished", "failed"]) -> Summary:
        """What summary.json says."""
        layout = {axis: getattr(self.layout, axis) for axis in ("dp", "tp", "pp", "cp")}
        return Summary(
            run=self.config.run.name,
            status=status,
            reason=self.reason,
            iterations=self.state.iteration,
            steps=self.state.step,
            layout=LayoutRecord(**layout),
            standby=self.config.cluster.standby,
            state_digest=self.digest,
            reward=Reward(self.state.first_reward, self.state.last_reward),
            recoveries=self.files.recoveries(),
            checkpoints=self.files.checkpoints(),
        )

    def _start(self) -> None:
        """Actors up and the first generation formed; what breaks on the way is recovered like any other fault."""
        self.display.start(f"ftppo {self.config.run.name}", self.config.train.iterations)
        self._on_phase("start", "actors come up")
        slots, standby = self.pool.start()
        self.pool.build(slots)
        self.watch.lap("promote")
        roster = Roster(0, self.layout, slots, standby)
        self.mesh = self.recovery.mesh_of(roster)
        self._guarded(lambda: self._enter(self.recovery.form(roster)))
        self.watch.lap("groups")

    def _take_over(self, estate: Estate) -> None:
        """Go on from what the actors of a driver that is gone hold in memory; else from the newest checkpoint."""
        self.display.start(f"ftppo {self.config.run.name}", self.config.train.iterations)
        self._event("taken_over", f"{len(estate.accounts)} actors of an earlier driver are alive")
        mesh, self.state, self.iteration = succeed(estate, self.pool, self.recovery, self.shop, self.files)
        self.trail.mark(self._completed().version, self.state, self.iteration)
        self.save_due = self.iteration is None and self._save_is_due() and self.saver.last_step != self.state.step
        self.placed = True
        self._enter(mesh)

    def _enter(self, mesh: Mesh) -> None:
        """A generation stands: work goes on in it."""
        self.mesh = self.shop.mesh = mesh
        mesh.faults = self._take_faults
        self.files.at(generation=mesh.roster.generation)
        self.display.fleet(self._fleet())

    def _tend_standbys(self) -> None:
        self.standbys.trials.tend()
        self.mesh.roster = self.standbys.tend(self.mesh.roster)
        self.display.fleet(self._fleet())

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do `work`; after a fault recover, and leave the rest to the next round."""
        try:
            work()
        except GenerationBroken as broken:
            self._recover(broken)

    def _recover(self, broken: GenerationBroken) -> None:
        self.pool.check_ours()
        self.save_due = self.save_due or self.saver.pending is not None
        self.saver.forget()
        state = self._completed()
        done = self.recovery.run(self.mesh, broken, state, state.version - broken.spoilt)
        if done.state is not None:
            self._move_to(done.state)
            self.save_due = False
        else:
            self.state, self.iteration = self.trail.back_to(done.version)
        self._enter(done.mesh)  # new standbys wait for the interrupted step: they take processors

    def _advance(self) -> None:
        """The next piece of work. Each is done again from its beginning, or from where it was, after a fault."""
        warmup_steps = self.config.train.warmup_steps
        if not self.placed:
            self._place()
        elif self.save_due and self.iteration is None:
            self._save()
        elif self.state.warmup_done < warmup_steps:
            self._move_to(warmup_step(self.shop, self.state))
        elif warmup_steps and not self.state.begun:
            self._begin_ppo()
        elif self.iteration is None and self.evaluation.due(self.state):
            self.evaluation.run(self.state)
        elif self.state.iteration < self.config.train.iterations:
            self._iterate()
        else:
            self._finish()

    def _place(self) -> None:
        """Every slot at the state that the run begins with: the newest checkpoint, or the weights as drawn."""
        tell = functools.partial(self._event, DAMAGED)
        restored = self.saver.restore(self.mesh, tell) if self.resume else None
        if restored is not None:
            self.state, manifest = restored.state, restored.manifest
            self._event("resumed", f"from the checkpoint of step {manifest.step}, iteration {manifest.iteration}")
        self._move_to(self.state)
        self.mesh.call("snapshot", self.state.version, phase="load")
        self.placed = True
        self.watch.lap("state")
        if self.resume and self.files.driver_was_lost:
            lost = max(0, self.files.num_steps_known - self.state.step)
            source: Source = "checkpoint" if restored else "initial"
            record = restart_record(self.mesh.roster.generation, source, lost, self.watch)
            self.recovery.accounts.open(record, self.watch.started, self.state.step + 1)

    def _begin_ppo(self) -> None:
        begun = dataclasses.replace(self.state, begun=True)
        self.mesh.call("begin_ppo", begun.version, phase="warmup")
        self._move_to(begun)
        self.save_due = bool(self.config.checkpoint.every_iterations)

    def _iterate(self) -> None:
        if self.iteration is None:
            self.iteration = Iteration(self.shop, self.state)
            self.trail.mark(self.state.version, self.state, self.iteration)
        done = self.iteration
        self._move_to(done.run())
        self._show_iteration(done)
        self.save_due = self._save_is_due()

    def _finish(self) -> None:
        for reason in self.injection.tell_missed():
            self._event("not_injected", reason)
        digests = self.mesh.call("digest", phase="digest")
        self.recovery.accounts.close_all()
        self.digest = hashlib.sha256("".join(digests).encode()).hexdigest()  # one for all slots, in slot order

    def _move_to(self, state: DriverState) -> None:
        """A piece of work is done: the run stands at `state`."""
        self.state, self.iteration = state, None
        self.trail.mark(state.version, state, None)

    def _save(self) -> None:
        """Begin a checkpoint; unless it may go on behind the training, publish it too."""
        last = self.state.iteration == self.config.train.iterations
        self._on_phase("save", "")
        if self.saver.pending is not None:
            self._go_on_saving(self.saver.end)
        self._go_on_saving(functools.partial(self.saver.begin, state=self.state), last)
        if self.saver.pending is not None and (last or not self.config.checkpoint.asynchronous):
            self._go_on_saving(self.saver.end, last)
        self.save_due = False

    def _go_on_saving(self, how: Callable[[Mesh], CheckpointRecord | None], last: bool = False) -> None:
        """Do a piece of a save, and tell of the checkpoint that it comes to.

        One that storage refuses is reported, and fails the run only where it is the last.
        """
        try:
            record = how(self.mesh)
        except (CheckpointError, StorageError) as error:
            self._event("save_failed", str(error))
            if last:
                raise
            return
        if record is None:
            return
        self.files.checkpoint(record)
        self.files.record("saved", record.uri, seconds=record.total_s)
        if self.saver.prune_error is not None:
            self._event("prune_failed", str(self.saver.prune_error))

    def _on_phase(self, phase: str, detail: str) -> None:
        self.display.phase(phase, detail)

    def _on_step(self, spec: StepSpec, result: StepResult) -> None:
        self.files.at(iteration=spec.iteration, step=spec.step + 1)
        self.files.step(spec, result)
        if self.iteration is not None:
            self.trail.mark(spec.version, self.state, self.iteration)
        self.recovery.accounts.step_committed(spec.step + 1)
        self.boundary.stragglers.step_done(self.mesh)
        self.standbys.begin(self.mesh.roster)
        self._tend_standbys()

    def _on_batch(self, iteration: Iteration) -> None:
        if self.pool.lending is not None:
            self.mesh.leave(iteration.keepsake())

    def _save_is_due(self) -> bool:
        return due(self.state.iteration, self.config.checkpoint.every_iterations, self.config.train.iterations)

    def _boundary_due(self, under_way: int) -> bool:
        return self.boundary.due(self.mesh, self._completed().step + under_way)

    def _at_boundary(self) -> None:
        stands = self._completed()
        self.boundary.run(self.mesh, stands.step, stands.version)

    def _completed(self) -> DriverState:
        """Where the run stands, the completed steps of an unfinished iteration included."""
        done = len(self.iteration.results) if self.iteration is not None else 0
        return dataclasses.replace(self.state, step=self.state.step + done)

    def _take_faults(self, phase: CallPhase) -> tuple[Fault, ...]:
        if self.state.warmup_done < self.config.train.warmup_steps:
            return ()
        # A save belongs to the iteration before it.
        return self.injection.take(self.state.iteration - (phase == "save"), phase)

    def _show_iteration(self, done: Iteration) -> None:
        metrics = done.metrics()
        self.files.iteration(metrics)
        self.display.iteration(IterationView(metrics, self._fleet()))

    def _fleet(self) -> Fleet:
        return Fleet(self.mesh.roster.generation, len(self.pool.warm), len(self.mesh.roster.standby))

    def _event(self, event: str, reason: str) -> None:
        announce(self.files, self.display, event, reason)
