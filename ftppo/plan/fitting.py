"""Which standby takes which slot. Comes in: lost slots, standbys, what each is built for; goes out: an order."""

from collections.abc import Mapping, Sequence


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
