"""Dynamic sampling: groups that compare nothing give way, in an order that hangs on what was drawn alone."""

import torch

from ftppo.algo.groups import chosen, differing, enough
from ftppo.types import Answers, Sequences

EQUAL, OTHER = [1.0, 1.0], [0.0, 1.0]


def round_of(*groups: list[float], first: int = 0) -> Answers:
    """Two answers a group; their tokens number them from `first` on."""
    rewards = torch.tensor([reward for group in groups for reward in group])
    numbers = torch.arange(first, first + len(rewards))[:, None]
    return Answers(Sequences(numbers, torch.ones(len(rewards), 1)), -numbers.float(), rewards)


def numbers(answers: Answers) -> list[int]:
    return answers.sequences.tokens[:, 0].tolist()


def test_a_group_differs_where_any_answer_does() -> None:
    assert differing(torch.tensor([1.0, 1.0, 0.5, 0.0, 0.0, 0.0]), 3).tolist() == [True, False]
    assert differing(torch.tensor([1.0, 0.0]), 1).tolist() == [False, False]


def test_drawing_ends_with_groups_enough_or_with_the_last_round() -> None:
    poor, good = round_of(EQUAL, OTHER), round_of(OTHER, OTHER)
    assert enough([poor], 2, 2, dynamic_rounds=0)
    assert not enough([], 2, 2, dynamic_rounds=3)
    assert not enough([poor], 2, 2, dynamic_rounds=3) and enough([good], 2, 2, dynamic_rounds=3)
    assert enough([poor, poor], 2, 2, dynamic_rounds=3)
    hopeless = [round_of(EQUAL, EQUAL)] * 4
    assert not enough(hopeless[:3], 2, 2, dynamic_rounds=3) and enough(hopeless, 2, 2, dynamic_rounds=3)


def test_of_one_round_all_is_chosen_as_it_stands() -> None:
    one = round_of(EQUAL, OTHER, EQUAL)
    got = chosen([one], 2, 3)
    assert numbers(got) == [0, 1, 2, 3, 4, 5]
    assert torch.equal(got.rewards, one.rewards) and torch.equal(got.drawn, one.drawn)


def test_groups_that_compare_nothing_give_way_to_those_of_later_rounds() -> None:
    rounds = [round_of(EQUAL, OTHER, EQUAL), round_of(OTHER, EQUAL, OTHER, first=6)]
    got = chosen(rounds, 2, 3)
    assert numbers(got) == [2, 3, 6, 7, 10, 11] and differing(got.rewards, 2).all()
    assert got.drawn[:, 0].tolist() == [-2.0, -3.0, -6.0, -7.0, -10.0, -11.0]


def test_more_than_are_wanted_are_left_and_fewer_are_filled_up() -> None:
    rounds = [round_of(EQUAL, OTHER), round_of(OTHER, OTHER, first=4)]
    assert numbers(chosen(rounds, 2, 2)) == [2, 3, 4, 5]
    rounds = [round_of(EQUAL, EQUAL), round_of(EQUAL, OTHER, first=4)]
    assert numbers(chosen(rounds, 2, 2)) == [0, 1, 6, 7]
