"""Values that are made once for as long as they are asked for now and then, and of which so many are kept at most."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

Kept = TypeVar("Kept")


class LruCache(OrderedDict[Any, Kept]):
    """The values of at most so many keys; of more, those that have not been asked for longest are forgotten."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def of(self, key: Any, make: Callable[[], Kept]) -> Kept:
        """The value of a key, made if there is none."""
        if key in self:
            self.move_to_end(key)
            return self[key]
        self[key] = value = make()
        if len(self) > self.most:
            self.popitem(last=False)
        return value
