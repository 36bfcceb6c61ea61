"""Who tries with whom, and who is to blame: nobody, until a partner has done well with somebody else."""

from ftppo.plan.trials import ATTEMPTS, Trials


def play(broken: str, names: str) -> tuple[Trials, list[tuple[str, str]]]:
    """Trials of all of `names`, one letter each, until nothing is to be learned or somebody is bad."""
    known, pairs = Trials(), []
    while (pair := known.next_pair(names)) is not None and not known.bad():
        pairs.append(pair)
        known = known.ended(pair, right=not set(pair) & set(broken))
    return known, pairs


def test_one_alone_has_nobody_to_try_with() -> None:
    assert Trials().next_pair("a") is None and Trials().next_pair("") is None


def test_everybody_tries_once_where_all_is_well() -> None:
    known, pairs = play("", "abcd")
    assert known.proven == set("abcd") and known.bad() == []
    assert pairs == [("a", "b"), ("a", "c"), ("a", "d")]


def test_a_newcomer_tries_with_a_proven_one() -> None:
    known, _ = play("", "ab")
    assert known.next_pair("xya") == ("x", "a")


def test_of_two_nobody_is_to_blame() -> None:
    known, pairs = play("b", "ab")
    assert pairs == [("a", "b")] * ATTEMPTS and known.bad() == []
    assert known.next_pair("ab") is None, "it would be no news"


def test_a_third_tells_who_it_was() -> None:
    for broken in "abc":
        known, _ = play(broken, "abc")
        assert known.bad() == [broken]


def test_a_failure_that_does_not_come_again_is_nobodys() -> None:
    known = Trials().ended(("a", "b"), right=False).ended(("a", "c"), right=True)
    assert known.bad() == [] and known.next_pair("abc") == ("a", "b")
    known = known.ended(("a", "b"), right=True)
    assert known.bad() == [] and known.next_pair("abc") is None
    assert known.ended(("b", "d"), right=False).ended(("b", "d"), right=False).bad() == ["d"]


def test_who_was_ended_is_forgotten() -> None:
    known, _ = play("b", "abc")
    known = known.without(["b"])
    assert known.bad() == [] and known.next_pair("ac") is None and not known.failed
