"""Which standby is for which slot. Comes in: slots, standbys, what each is built for; goes out: a slot, or an order."""

from collections.abc import Mapping, Sequence


def least_covered(
    num_slots: int, covered: Mapping[int | None, int], node_of_slot: Mapping[int, str | None], node: str | None
) -> int:
    """The slot to build a standby on `node` for: the fewest are built for it, and its actor is on another node.

    `covered` is how many are built for each slot. Nodes that are not known are no reason for anything.
    """

    def how_good(slot: int) -> tuple[int, bool, int]:
        return covered.get(slot, 0), node is not None and node_of_slot.get(slot) == node, slot

    return min(range(num_slots), key=how_good)


def fitting(lost: Sequence[int], standbys: Sequence[str], built_for: Mapping[str, int | None]) -> list[str]:
    """`standbys` in an order in which, as far as can be, each of the `lost` slots meets one that is built for it."""
    left, fits = list(standbys), dict[int, str]()
    for slot in lost:
        fit = next((name for name in left if built_for[name] == slot), None)
        if fit is not None:
            fits[slot] = fit
            left.remove(fit)
    order = [fits[slot] if slot in fits else left.pop() for slot in lost if slot in fits or left]
    return order + left
