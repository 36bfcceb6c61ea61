"""An iteration that broke, went back or skipped a step: what is done is not done again, and all is done once."""

import dataclasses
import math

import pytest

from ftppo.driver.iteration import AHEAD, Iteration
from ftppo.driver.mesh import GenerationBroken
from ftppo.driver.trail import Trail
from tests.unit.driver.workbench import (
    NUM_STEPS,
    ROLLOUT_S,
    SCORE_S,
    STATE,
    STEP,
    STEP_S,
    give_mesh,
    run,
    same,
    workshop,
)


@pytest.mark.parametrize("breaks_at", range(2 + NUM_STEPS))
def test_after_a_break_exactly_the_rest_is_done(breaks_at: int) -> None:
    whole, _, state = run()
    shop, steps = workshop()
    before, iteration = give_mesh(shop, breaks_at), Iteration(shop, STATE)
    with pytest.raises(GenerationBroken):
        iteration.run()
    assert len(before.calls) == breaks_at
    after = give_mesh(shop)
    assert iteration.run() == state
    methods = [call.method for call in whole.calls]
    assert [call.method for call in before.calls] == methods[:breaks_at]
    assert [call.method for call in after.calls] == methods[breaks_at:]
    assert same(before.updates() + after.updates(), whole.updates())
    assert [spec for spec, _ in steps] == [call.spec for call in whole.updates()]


@pytest.mark.parametrize("back", range(NUM_STEPS + 1))
def test_going_back_within_an_iteration_runs_the_steps_since_then_again(back: int) -> None:
    whole, _, state = run()
    shop, _ = workshop()
    trail, iteration = Trail(), Iteration(shop, STATE)
    trail.mark(STATE.version, STATE, iteration)
    shop.on_step = lambda spec, result: trail.mark(spec.version, STATE, iteration)
    give_mesh(shop)
    iteration.run()
    _, again = trail.back_to(STATE.version + back)
    mesh, shop.on_step = give_mesh(shop), lambda spec, result: None
    assert again is not None and again.run() == state
    assert same(mesh.calls, whole.updates()[back:])


def test_a_slot_that_leaves_breaks_between_steps_and_no_step_is_lost_or_doubled() -> None:
    whole, _, state = run()
    shop, _ = workshop()
    before, iteration = give_mesh(shop), Iteration(shop, STATE)
    before.leaves_after = 4
    with pytest.raises(GenerationBroken):
        iteration.run()
    after = give_mesh(shop)
    assert iteration.run() == state
    assert same(before.updates() + after.updates(), whole.updates())
    assert before.checked_after == [5]  # the step that had been started already is done too


def test_a_skipped_step_is_tried_once_more_with_the_same_batch() -> None:
    skipped = dataclasses.replace(STEP, policy_loss=math.nan, skipped=True)
    shop, steps = workshop()
    mesh = give_mesh(shop, results=[STEP, skipped, STEP])
    iteration = Iteration(shop, STATE)
    iteration.run()
    updates = mesh.updates()
    assert len(updates) == NUM_STEPS + 1
    final = updates[2].spec
    assert final is not None and final.final
    assert same(updates[1:2], [dataclasses.replace(updates[2], spec=dataclasses.replace(final, final=False))])
    assert iteration.results == [STEP] * NUM_STEPS and len(steps) == NUM_STEPS


def test_a_step_that_is_skipped_twice_is_passed() -> None:
    skipped = dataclasses.replace(STEP, skipped=True)
    shop, _ = workshop()
    mesh = give_mesh(shop, results=[skipped, skipped])
    iteration = Iteration(shop, STATE)
    state = iteration.run()
    assert [result.skipped for result in iteration.results] == [True] + [False] * (NUM_STEPS - 1)
    assert len(mesh.updates()) == NUM_STEPS + 1 and state.step == STATE.step + NUM_STEPS


def test_the_next_step_is_asked_for_before_the_last_one_has_ended() -> None:
    mesh, _, _ = run()
    assert mesh.most_waiting == 1 + AHEAD and not mesh.waiting


def test_faults_of_the_update_have_one_step_to_strike_in() -> None:
    mesh, _, _ = run()
    assert [call.phase for call in mesh.calls[:2]] == ["rollout", "score"]
    phases = [call.phase for call in mesh.updates()]
    assert phases == ["update.other"] * 3 + ["update"] + ["update.other"] * 2
    skipped = dataclasses.replace(STEP, skipped=True)
    shop, _ = workshop()
    again = give_mesh(shop, results=[STEP, STEP, STEP, skipped])
    Iteration(shop, STATE).run()
    assert [call.phase for call in again.updates()].count("update") == 1  # the second try is spared


def test_broken_attempts_count_in_the_seconds_of_their_phase() -> None:
    shop, _ = workshop()
    give_mesh(shop, breaks_at=4)
    iteration = Iteration(shop, STATE)
    with pytest.raises(GenerationBroken):
        iteration.run()
    give_mesh(shop)
    iteration.run()
    found = iteration.metrics()
    assert (found.rollout_s, found.score_s, found.update_s) == (ROLLOUT_S, SCORE_S, NUM_STEPS * STEP_S)


def test_who_was_told_to_leave_before_the_update_leaves_before_its_first_step() -> None:
    whole, _, state = run()
    shop, _ = workshop()
    before, iteration = give_mesh(shop), Iteration(shop, STATE)
    before.leaves_after = 2  # rollout and score
    with pytest.raises(GenerationBroken):
        iteration.run()
    assert before.checked_after == [2] and before.updates() == []
    after = give_mesh(shop)
    assert iteration.run() == state and same(after.updates(), whole.updates())


def test_who_was_told_to_leave_in_the_last_step_leaves_after_it() -> None:
    shop, _ = workshop()
    mesh, iteration = give_mesh(shop), Iteration(shop, STATE)
    mesh.leaves_after = 2 + NUM_STEPS
    with pytest.raises(GenerationBroken):
        iteration.run()
    assert mesh.checked_after == [2 + NUM_STEPS] and len(iteration.results) == NUM_STEPS


def test_what_becomes_due_at_a_boundary_waits_for_the_next_one() -> None:
    shop, _ = workshop()
    mesh, asked = give_mesh(shop), list[int]()

    def due(under_way: int) -> bool:
        asked.append(under_way)
        return len(asked) in (1, 2)  # once before the first step, and again right after that boundary

    boundaries: list[int] = []
    shop.boundary_due, shop.at_boundary = due, lambda: boundaries.append(len(mesh.updates()))
    Iteration(shop, STATE).run()
    assert boundaries == [0] and len(mesh.updates()) == NUM_STEPS
