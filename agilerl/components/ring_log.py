"""What a replay buffer has gained since a moment: pieces that a log can append and give back in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of a buffer.

    Attributes:
        log: which life of its contents (`clear` and `load_state` begin another). row: rows ever added before.
        epoch: of the images placed from then on.
    """

    log: int
    row: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows `first` .. `first + count - 1`, counted from the first ever added, and images placed meanwhile.

    Attributes:
        start: place of the first row in the memory; the others follow, round its end.
        rows: their contents, None without any. frames: images with their numbers, None of a buffer without images.
    """

    first: int
    count: int
    start: int
    rows: Mapping[str, Any] | None
    frames: Mapping[str, Any] | None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it."""
        return not self.count and (self.frames is None or not len(self.frames["numbers"]))

    def tree(self) -> dict[str, Any]:
        """As plain data."""
        return {"first": self.first, "count": self.count, "start": self.start, "rows": self.rows, "frames": self.frames}

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Changes:
        """What `tree` returned."""
        return cls(tree["first"], tree["count"], tree["start"], tree["rows"], tree["frames"])
