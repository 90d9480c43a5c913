"""Data that is kept in a JSON file and read as what nobody vouches for: at most so large, of one kind, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from costmodel.errors import shown

FileModel = TypeVar("FileModel", bound=BaseModel)


class NotStored(Exception):
    """Why a file holds no such data. content: whether it could be read and what it says is wrong."""

    def __init__(self, reason: str, content: bool = True) -> None:
        super().__init__(reason)
        self.content = content


def read_stored(kind: type[FileModel], path: Path, most: int) -> FileModel:
    """What a regular JSON file of at most so many bytes holds. Raises NotStored."""
    try:
        if path.exists() and not path.is_file():  # a device may never end, and a pipe never begin
            raise NotStored("it is no regular file")
        with open(path, "rb") as file:
            text = file.read(most + 1)
        if len(text) > most:
            raise NotStored(f"it is larger than {most:,} bytes")
        return kind.model_validate_json(text)
    except (OSError, ValueError) as error:
        if isinstance(error, ValidationError):
            raise NotStored(first_of(error)) from None
        why = getattr(error, "strerror", None) or str(error)
        raise NotStored(f"cannot be read: {why}", content=False) from None
    except RecursionError:
        raise NotStored("nested too deep") from None


def first_of(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    first = error.errors()[0]
    where = shown(".".join(map(str, first["loc"]))) if first["loc"] else ""
    return f"{where + ': ' if where else ''}{first['msg']}"
