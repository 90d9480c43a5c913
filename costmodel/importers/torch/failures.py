"""Why torch.export could not follow a module, in one line: the cause, and the place in the module's own code."""

from __future__ import annotations

import linecache
import os
import traceback

from costmodel.errors import SpecError

_DATA = ("DataDependent", "data-dependent", "u0", "Tensor.item()", "Cannot call")


def explained(error: Exception, module: str) -> SpecError:
    """The error to raise for one of torch.export's."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    where = _place(error)
    if any(word in f"{type(error).__name__} {text}" for word in _DATA):
        return SpecError(
            f"{module}: what is run depends on the data{where}: from_torch needs a forward pass that is the same for "
            "all inputs of a shape"
        )
    return SpecError(f"{module}: torch.export cannot run it on the example inputs{where}: {text[:300]}")


def _place(error: BaseException) -> str:
    """The innermost line of code that is not a library's: file, line, and what it says."""
    outside = (os.sep + "torch" + os.sep, os.sep + "costmodel" + os.sep + "imported" + os.sep)
    found = ""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        for frame, line in traceback.walk_tb(cause.__traceback__):
            path = frame.f_code.co_filename
            if not any(part in path for part in outside) and not path.startswith("<"):
                code = linecache.getline(path, line).strip()
                found = f" at {os.path.basename(path)}:{line} in {frame.f_code.co_name}" + (
                    f" ({code[:80]})" if code else ""
                )
        cause = cause.__cause__ or cause.__context__
        if found and cause is not None and not cause.__traceback__:
            break
    return found
