"""Which prompt has which row of the key/value cache. Comes in: lengths, who has ended; goes out: who enters, who moves.

Pure and the same wherever it is asked: ranks that share a model draw the same tokens, and so agree without a word.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """What one turn changes.

    Example: Change(entered=(3,), moved={5: 1}) where rows 1 and 3 ended, row 5 was the last, and one prompt waited
    """

    entered: tuple[int, ...]  # rows with a new prompt
    moved: dict[int, int]  # from row to row: what the cache holds of it goes along


class Seats:
    """`prompts[row]` is the prompt in each row in use; these are the first rows, without a gap. The others wait.

    The longest prompt enters first: those that enter together are then alike in length, and little is padded.
    """

    def __init__(self, lengths: Sequence[int], num_rows: int) -> None:
        self.prompts: list[int] = []
        self.num_rows = min(num_rows, len(lengths))
        self._waiting = deque(sorted(range(len(lengths)), key=lambda prompt: -lengths[prompt]))

    def turn(self, ended: Iterable[int] = ()) -> Change:
        """The prompts in the rows `ended` leave. Who waits takes those rows, and such as are free; then gaps close."""
        gaps, entered = sorted(ended), []
        while self._waiting and (gaps or len(self.prompts) < self.num_rows):
            row = gaps.pop(0) if gaps else len(self.prompts)
            self.prompts[row : row + 1] = [self._waiting.popleft()]
            entered.append(row)
        return Change(tuple(entered), self._close(gaps))

    def _close(self, gaps: list[int]) -> dict[int, int]:
        """Prompts in the last rows move into `gaps`, until what is in use has none; who went where."""
        size = len(self.prompts) - len(gaps)
        moving = [row for row in range(size, len(self.prompts)) if row not in gaps]
        moved = dict(zip(moving, gaps, strict=False))  # gaps at the end are past all that stays
        for source, target in moved.items():
            self.prompts[target] = self.prompts[source]
        del self.prompts[size:]
        return moved
