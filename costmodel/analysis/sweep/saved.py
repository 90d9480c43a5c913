"""Saved sweeps read back: what a sweep writes and nothing else, checked before anything in it is decoded.

A file from elsewhere may be damaged, or made to do harm: neither a codec that it names nor a size that it claims is
believed. Zarr stores are therefore read here, not by a library that looks codecs up by name.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow
from pyarrow import parquet

from costmodel.cost.quantities import ALL
from costmodel.errors import shown

if TYPE_CHECKING:
    import pandas

    from costmodel.symbolic.evaluation import Array

ALWAYS = 2**25
"""Columns of fewer bytes in memory are read however small their file is."""
EXPANSION = 50
"""Larger ones are not, if they take more times the bytes of their file: that is what a decompression bomb does."""
MOST_COLUMNS = 200
MOST_METADATA = 2**20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")
_SCALARS = (pyarrow.types.is_integer, pyarrow.types.is_floating, pyarrow.types.is_boolean, pyarrow.types.is_string)


class Damaged(Exception):
    """Why a file is no sweep as one is written here."""


class Saved(ABC):
    """Abstract: a saved sweep, of which nothing but metadata has been read. columns: its variables and axes."""

    columns: list[str]

    @property
    def axes(self) -> list[str]:
        """Those columns that are axes."""
        return [name for name in self.columns if name not in ALL and name != "reason"]

    @abstractmethod
    def cells(self, names: Sequence[str]) -> pandas.DataFrame:
        """These columns, a row for each cell that has a value in all of them. Raises Damaged."""


def open_saved(path: Path) -> Saved:
    """The sweep in a Parquet file, a folder of them, or a Zarr store. Raises Damaged."""
    try:
        saved = _ZarrStore(path) if path.suffix == ".zarr" else _ParquetFiles(path)
    except (OSError, pyarrow.ArrowException, ValueError) as error:
        raise Damaged(_why(error)) from None
    if len(saved.columns) > MOST_COLUMNS:
        raise Damaged(f"it has {len(saved.columns):,} columns")
    for name in saved.columns:
        if not _NAME.fullmatch(name):
            raise Damaged(f"a column is called {shown(name)}, as no quantity, setting or size is")
    return saved


def _why(error: Exception) -> str:
    return shown(getattr(error, "strerror", None) or str(error).partition("\n")[0]).strip("'\"")


def check_expansion(decoded: int, stored: int) -> None:
    """Raise Damaged for columns that take far more memory than their file could fill."""
    if decoded > max(ALWAYS, EXPANSION * stored):
        raise Damaged(f"{stored:,} bytes claim to hold {decoded:,}")


def check_regular(path: Path) -> int:
    """The size of a regular file [bytes]. Raises Damaged for what is none, which reading might never return from."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise Damaged(f"{shown(path.name)}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{shown(path.name)} is no regular file")
    return status.st_size


class _ParquetFiles(Saved):
    """One file, or the files of a folder that a lazy sweep was written to."""

    def __init__(self, path: Path) -> None:
        self.files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not self.files:
            raise Damaged("the folder has no Parquet files")
        self.size = sum(map(check_regular, self.files))
        schema: pyarrow.Schema = parquet.read_schema(self.files[0])
        for field in schema:
            if not any(is_kind(field.type) for is_kind in _SCALARS):
                raise Damaged(f"column {shown(field.name)} is of {shown(str(field.type))}")
        self.columns = list(schema.names)
        if len(set(self.columns)) < len(self.columns):
            raise Damaged("two columns have one name")

    def cells(self, names: Sequence[str]) -> pandas.DataFrame:
        """See the class."""
        try:
            tables = list(self._tables(list(names)))
            return pyarrow.concat_tables(tables).to_pandas(ignore_metadata=True)
        except (OSError, pyarrow.ArrowException, ValueError, KeyError, TypeError) as error:
            raise Damaged(_why(error)) from None

    def _tables(self, names: list[str]) -> Iterator[pyarrow.Table]:
        decoded = 0
        for path in self.files:
            with parquet.ParquetFile(path) as file:
                if any(name not in file.schema_arrow.names for name in names):
                    raise Damaged(f"{shown(path.name)} has other columns")
                decoded += _parquet_bytes(file.metadata, names)
                check_expansion(decoded, self.size)
                for number in range(file.metadata.num_row_groups):
                    yield _complete(file.read_row_group(number, names).replace_schema_metadata(None))


def _parquet_bytes(metadata: Any, names: Sequence[str]) -> int:
    """Bytes in memory of some columns, by what the file says of its rows and pages."""
    total = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(n) for n in range(group.num_columns)]
        pages = sum(c.total_uncompressed_size for c in columns if c.path_in_schema in names)
        total += max(8 * group.num_rows * len(names), pages)
    return total


def _complete(table: pyarrow.Table) -> pyarrow.Table:
    """Rows without a null, which a whole number would otherwise be rounded for; and without what is no number."""
    complete = np.ones(table.num_rows, bool)
    for column in table.columns:
        complete &= np.asarray(column.is_valid())
        if pyarrow.types.is_floating(column.type):
            complete &= np.isfinite(column.to_numpy())
    return table if complete.all() else table.filter(pyarrow.array(complete))


_DTYPES = {"int64": np.dtype("<i8"), "float64": np.dtype("<f8"), "bool": np.dtype("?")}
_GROUP_KEYS = frozenset(("attributes", "zarr_format", "node_type", "consolidated_metadata"))


class _Stored(NamedTuple):
    """One array of a store: where its chunks are, and how they are laid out."""

    folder: Path
    kind: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dims: tuple[str, ...]

    @property
    def width(self) -> int:
        """Bytes of an element in memory."""
        return _DTYPES[self.kind].itemsize if self.kind in _DTYPES else 8


def metadata_of(folder: Path) -> dict[str, Any]:
    """What `zarr.json` in a folder says. Raises Damaged."""
    path = folder / "zarr.json"
    if check_regular(path) > MOST_METADATA:
        raise Damaged(f"{shown(folder.name)} describes itself in more than {MOST_METADATA:,} bytes")
    try:
        metadata = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{shown(folder.name)}: {_why(error)}") from None
    if not isinstance(metadata, dict) or metadata.get("zarr_format") != 3 or isinstance(metadata["zarr_format"], bool):
        raise Damaged(f"{shown(folder.name)} is not of Zarr format 3")
    return metadata


class _ZarrStore(Saved):
    """A store of format 3 with the codecs, grids and types that a sweep is written with."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise Damaged("there is no such folder")
        group = metadata_of(path)
        if group.get("node_type") != "group" or not group.keys() <= _GROUP_KEYS:
            raise Damaged("it is no group of arrays")
        names = sorted(each.name for each in path.iterdir() if each.name != "zarr.json")
        self.arrays = {name: _array(path / name) for name in names[: MOST_COLUMNS + 1]}
        dims = dict.fromkeys(dim for name, array in self.arrays.items() if name in ALL for dim in array.dims)
        for name in self.arrays:
            if name not in ALL and name != "reason" and name not in dims and self.arrays[name].shape:
                raise Damaged(f"{shown(name)} is no variable or axis of a sweep")
        self.columns = [*dims, *(name for name in self.arrays if name not in dims and self.arrays[name].shape)]
        self.columns += [name for name in ALL if name in self.arrays and not self.arrays[name].shape]

    def cells(self, names: Sequence[str]) -> pandas.DataFrame:
        """See the class: a cell whose chunk is not there has no value."""
        quantities = [name for name in names if name in ALL]
        dims = self.arrays[quantities[0]].dims if quantities else ()
        shape = self.arrays[quantities[0]].shape if quantities else ()
        for name in quantities:
            if (self.arrays[name].dims, self.arrays[name].shape) != (dims, shape):
                raise Damaged(f"{shown(name)} is over other axes than {shown(quantities[0])}")
        for dim, size in zip(dims, shape, strict=True):
            if dim not in self.arrays or self.arrays[dim].shape != (size,) or self.arrays[dim].dims != (dim,):
                raise Damaged(f"axis {shown(dim)} has no labels, or not {size:,} of them")
        needed = [self.arrays[name] for name in dict.fromkeys((*dims, *quantities))]
        decoded = math.prod(shape) * sum(array.width + 1 for array in needed)
        check_expansion(decoded, sum(sum(map(check_regular, _chunks(array).values())) for array in needed))
        try:
            return self._frame(dims, quantities, shape)
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise Damaged(_why(error)) from None

    def _frame(self, dims: Sequence[str], names: Sequence[str], shape: tuple[int, ...]) -> pandas.DataFrame:
        import pandas

        labels = []
        for dim in dims:
            values, present = _values(self.arrays[dim])
            if not present.all():
                raise Damaged(f"axis {shown(dim)} lacks labels")
            labels.append(values)
        quantities = {name: _values(self.arrays[name]) for name in names}
        complete = np.ones(shape, bool)
        for values, present in quantities.values():
            complete &= present & np.isfinite(values) if values.dtype.kind == "f" else present
        places = np.nonzero(complete)
        columns = {dim: values[place] for dim, values, place in zip(dims, labels, places, strict=True)}
        return pandas.DataFrame({**columns, **{name: values[complete] for name, (values, _) in quantities.items()}})


def _array(folder: Path) -> _Stored:
    """An array that is laid out as a sweep's are, of numbers or texts under Zstandard: no other codec is reached.

    Raises Damaged.
    """
    match metadata := metadata_of(folder):
        case {
            "node_type": "array",
            "zarr_format": 3,
            "shape": [*shape],
            "data_type": "int64" | "float64" | "bool" | "string" as kind,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*chunk]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes" | "vlen-utf8" as coder, **coding}, {"name": "zstd"}],
            "fill_value": _,
            **others,
        } if (
            (coder == "vlen-utf8") == (kind == "string")
            and coding in ({}, {"configuration": {}}, {"configuration": {"endian": "little"}})
            and others.keys() <= {"attributes", "dimension_names", "storage_transformers"}
            and not others.get("storage_transformers")
        ):
            dims = others.get("dimension_names") or []
        case _:
            raise Damaged(f"{shown(folder.name)} is stored in a way that no sweep is: {shown(metadata)}")
    sized = all(type(size) is int and 0 <= size < 2**40 for size in (*shape, *chunk)) and 0 not in chunk
    named = isinstance(dims, list) and all(isinstance(dim, str) and _NAME.fullmatch(dim) for dim in dims)
    if not sized or not named or not len(shape) == len(chunk) == len(set(dims)) == len(dims) <= MOST_COLUMNS:
        raise Damaged(f"the axes {shown(dims)}, shape {shown(shape)} and chunks of {shown(folder.name)} do not agree")
    return _Stored(folder, kind, tuple(shape), tuple(chunk), tuple(dims))


def _chunks(array: _Stored) -> dict[tuple[int, ...], Path]:
    """The chunks that are there, by place. Raises Damaged for what lies among them and is none."""
    counts = [-(-size // span) for size, span in zip(array.shape, array.chunk, strict=True)]
    chunks = {(): array.folder / "c"} if (array.folder / "c").exists() else {}
    for count in counts:
        deeper: dict[tuple[int, ...], Path] = {}
        for place, folder in chunks.items():
            if folder.is_dir():
                names = {each.name for each in folder.iterdir() if not each.name.endswith(".partial")}
                numbers = sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)
                if len(numbers) < len(names) or (numbers and numbers[-1] >= count):
                    raise Damaged(f"{shown(array.folder.name)} has chunks where its grid has none")
                deeper.update({(*place, number): folder / str(number) for number in numbers})
        chunks = deeper
    return chunks


def _values(array: _Stored) -> tuple[Array, Array]:
    """The values of an array, and where it has any. Raises Damaged, and what decompression raises."""
    kind = _DTYPES.get(array.kind, np.dtype("O"))
    values, present = np.zeros(array.shape, kind), np.zeros(array.shape, bool)
    for place, path in _chunks(array).items():
        window = tuple(slice(n * span, (n + 1) * span) for n, span in zip(place, array.chunk, strict=True))
        chunk = _texts(path, array) if array.kind == "string" else _numbers(path, array, kind)
        inside = tuple(slice(0, size) for size in values[window].shape)
        values[window] = chunk[inside]
        present[window] = True
    return values, present


def _numbers(path: Path, array: _Stored, kind: np.dtype[Any]) -> Array:
    size = math.prod(array.chunk) * kind.itemsize
    content = _decompressed(path, size)
    if len(content) != size:
        raise Damaged(f"a chunk of {shown(array.folder.name)} has {len(content):,} bytes, not {size:,}")
    if array.kind == "bool" and not set(content) <= {0, 1}:
        raise Damaged(f"a chunk of {shown(array.folder.name)} has truth values that are none")
    return np.frombuffer(content, kind).reshape(array.chunk)


def _texts(path: Path, array: _Stored) -> Array:
    """Texts as the codec vlen-utf8 lays them out: how many, then the length of each and its bytes."""
    content = _decompressed(path, ALWAYS)
    count, at = math.prod(array.chunk), 4
    texts: list[str] = []
    if int.from_bytes(content[:4], "little") != count or 4 * count > len(content):
        raise Damaged(f"a chunk of {shown(array.folder.name)} does not have {count:,} texts")
    for _ in range(count):
        end = at + 4 + int.from_bytes(content[at : at + 4], "little")
        if end > len(content):
            raise Damaged(f"a chunk of {shown(array.folder.name)} ends within a text")
        texts.append(content[at + 4 : end].decode())
        at = end
    return np.array(texts, object).reshape(array.chunk)


def _decompressed(path: Path, most: int) -> bytes:
    """A chunk's content, which says how long it is and is not longer than it may be. Raises Damaged."""
    if check_regular(path) > most + MOST_METADATA:
        raise Damaged(f"chunk {shown(path.name)} is longer than what it holds")
    raw = path.read_bytes()
    size = _content_size(raw)
    if not 0 <= size <= most:
        raise Damaged(f"chunk {shown(path.name)} is damaged, or claims to hold {size:,} bytes")
    return pyarrow.Codec("zstd").decompress(raw, decompressed_size=size, asbytes=True) if size else b""


def _content_size(raw: bytes) -> int:
    """Bytes that a Zstandard frame says it holds, −1 where it is none or does not say (RFC 8878, §3.1.1.1)."""
    if raw[:4] != b"\x28\xb5\x2f\xfd" or len(raw) < 6:
        return -1
    single, flag, dictionary = raw[4] >> 5 & 1, raw[4] >> 6, raw[4] & 3
    length = (1 if single else 0, 2, 4, 8)[flag]
    at = 5 + (1 - single) + (0, 1, 2, 4)[dictionary]
    if not length or len(raw) < at + length:
        return -1
    return int.from_bytes(raw[at : at + length], "little") + (256 if flag == 1 else 0)
