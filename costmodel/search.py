"""Searches over ordered numbers, for what is true up to one of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence


def last_true(holds: Callable[[int], bool], count: int, guess: int = 0) -> int:
    """The last of `count` positions at which `holds` is true, if it is true at 0 and false from some position on.

    It is asked twice if the guess is right, and at about 2·log₂ of the distance if it is not. Whatever `holds` is
    like, it is true at the answer (if that is not 0) and false right behind it (if that is not the end).
    """
    low, high, step = 0, count, 1
    if 0 < guess < count and not holds(guess):
        high = guess
        while high - step > 0 and not holds(high - step):
            high, step = high - step, 2 * step
        low = max(0, high - step)
    else:
        low = guess if 0 < guess < count else 0
        while low + step < high and holds(low + step):
            low, step = low + step, 2 * step
        high = min(high, low + step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def line_guess(value: Callable[[int], int], sizes: Sequence[int], target: int, start: int = 1, rounds: int = 4) -> int:
    """About the last of the positions at which a value that grows in proportion to its size is within a target.

    Straight lines are drawn from position 0 to the last guess, `start` at first, until they lead to the same, or for
    so many rounds.
    """
    last = len(sizes) - 1
    place = min(max(start, 1), last)
    for _ in range(rounds):
        rise = value(place) - value(0)
        if rise <= 0:
            return place
        size = sizes[0] + (target - value(0)) * (sizes[place] - sizes[0]) // rise
        found = min(max(bisect_right(sizes, size) - 1, 1), last)
        if found == place:
            return place
        place = found
    return place
