"""The corpus, run case by case in a process of its own: `python -m tests.hostile.corpus EVERY [PART]`."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.command import is_brief
from tests.hostile.calls import calls
from tests.hostile.commands import commands
from tests.hostile.declared import declared
from tests.hostile.files import Case, configs, files
from tests.hostile.ground import Ground, prepare, warm
from tests.hostile.known import known
from tests.hostile.places import places
from tests.hostile.saved import lay, saved
from tests.hostile.trial import Outcome, trial

PARTS: dict[str, Callable[[Ground], Iterator[Case]]] = {
    "known": known,
    "files": files,
    "configs": configs,
    "commands": commands,
    "saved": saved,
    "calls": calls,
    "declared": declared,
    "places": places,
}
MOST_CALLS = 5_000_000
"""Calls of functions that a case may make, Python's and C's: about a second's worth."""
MOST_GROWN = 200_000_000
"""Bytes beyond the start."""
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def fault(outcome: Outcome, ground: Ground) -> str:
    """What is wrong with what a case did; "" if nothing."""
    if outcome.failure:
        lines = [line.strip() for line in outcome.failure.splitlines() if "^^" not in line]
        ours = [line for line in lines if line.startswith("File") and "/costmodel/" in line]
        return f"a traceback: {lines[-1]} ({ours[-1] if ours else 'nowhere of ours'})"
    if found := _CONTROLS.search(outcome.out + outcome.err):
        return f"a control character {found[0]!r} after {found.string[max(0, found.start() - 60) : found.start()]!r}"
    if harm := ground.unharmed(outcome.out + outcome.err):
        return harm
    said = "\n".join(line for line in outcome.err.splitlines() if not line.startswith("note: "))
    if outcome.code == 2 and not (said.startswith("error: ") and is_brief(said)):
        return f"an error that is not brief: {outcome.err[:500]!r}"
    if outcome.grown > MOST_GROWN:
        return f"{outcome.grown / 1e6:.0f} MB"
    if outcome.calls > MOST_CALLS:
        return f"{outcome.calls:,} calls"
    return ""


def main(every: int, part: str = "") -> None:
    """Run every so manieth case of all parts, or of one, and all that are known.

    Prints as JSON what is wrong, and how many there were.
    """
    warm()
    faults: list[tuple[str, str]] = []
    counts: Counter[str] = Counter()
    longest: list[tuple[int, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        ground = prepare(Path(folder))
        trial(lambda: lay(ground))
        for name, cases in PARTS.items():
            if part and name != part:
                continue
            for number, (label, case) in enumerate(cases(ground)):
                if number % every and name != "known":
                    continue
                outcome = trial(case)
                counts[name] += 1
                longest.append((outcome.calls, label))
                if wrong := fault(outcome, ground):
                    faults.append((label, wrong))
                    print(f"{name}: {label}: {wrong[-600:]}", file=sys.stderr, flush=True)
    print(json.dumps({"counts": counts, "faults": faults, "longest": sorted(longest)[-5:]}))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
