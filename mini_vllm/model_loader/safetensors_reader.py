"""Reads safetensors files, single or sharded, straight into arrays that the model owns.

A file is eight bytes (the length N of the header, little endian), N bytes of JSON (name -> dtype, shape, offsets) and
the raw data, which the tensors cover once: sorted by their offsets, each begins where the one before it ended. The data
is mapped, copied in pieces and let go again, so that loading never holds a second copy.
Upstream uses the `safetensors` library:
upstream/vllm/model_executor/model_loader/weight_utils.py:893 — `safetensors_weights_iterator`.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.transformers_utils.file_keys import OBJECT, FileKeys, Kind
from mini_vllm.utils.checks import is_int, shown

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Stored types we read; bf16 is the upper half of a float32, so it is read as 16-bit integers and shifted."""
STORED = {**DTYPES, "I8": "i1", "U8": "u1", "I32": "<i4", "I64": "<i8", "F8_E4M3": "u1"}
"""Those, and what quantized weights are made of; FP8 is handed out as its codes, and only by `read_stored`."""
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
INDEX = FileKeys(
    INDEX_NAME,
    used={"weight_map": Kind(
        "an object of file names",
        lambda value: OBJECT.allows(value) and all(isinstance(name, str) for name in value.values()),
    )},
    harmless=frozenset({"metadata"}),
    needed=frozenset({"weight_map"}),
)  # fmt: skip
_PIECE = 1 << 22  # elements copied before the mapped pages are let go
_MAX_HEADER = 100_000_000
_ENTRY = {"dtype", "shape", "data_offsets"}


class CheckpointError(ValueError):
    """A weight file is damaged, or does not hold what the model needs."""


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: `start` counts bytes from the beginning of the file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int


class SafetensorsFile:
    """One mapped file. `tensors` maps names to `TensorInfo`.

    Raises:
        CheckpointError: header unreadable, an unknown dtype, data that ends before a tensor does, or tensors that
            overlap or leave bytes between them; names the file and the tensor.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        with path.open("rb") as file:
            header, offset = self._read_header(file.read(8), file)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        self.tensors = {name: self._check(name, entry, offset) for name, entry in entries.items()}
        self._check_cover(sorted((*entry["data_offsets"], name) for name, entry in entries.items()), offset)

    def _read_header(self, prefix: bytes, file: Any) -> tuple[dict[str, Any], int]:
        if len(prefix) < 8:
            raise CheckpointError(f"{self.path}: {self.size} bytes are too few for a safetensors file")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(self.size - 8, _MAX_HEADER):
            raise CheckpointError(
                f"{self.path}: truncated or not safetensors: header of {length} bytes in a file of {self.size}"
            )
        try:
            header = json.loads(file.read(length), object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:  # not JSON, not text, nested too deep
            raise CheckpointError(f"{self.path}: header is not JSON ({error})") from None
        if not isinstance(header, dict):
            raise CheckpointError(f"{self.path}: header must be a JSON object, got {type(header).__name__}")
        notes = header.get("__metadata__", {})
        if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
            raise CheckpointError(f"{self.path}: __metadata__ must be an object of texts, got {shown(notes)}")
        return header, 8 + length

    def _check_cover(self, ranges: list[tuple[int, int, str]], offset: int) -> None:
        """The buffer from its first byte to its last, each byte once.

        Upstream: `safetensors.safe_open` refuses it ("invalid offset for tensor").
        """
        done, before = 0, "the header"
        for start, end, name in ranges:
            if start != done:
                said = "overlaps" if start < done else f"leaves {start - done} bytes after"
                raise CheckpointError(
                    f"{self.path}: invalid offset for tensor {name!r}: it begins at byte {offset + start} and {said} "
                    f"{before}, which ends at {offset + done}: damaged"
                )
            done, before = end, repr(name)
        if offset + done != self.size:
            raise CheckpointError(
                f"{self.path}: the tensors end at byte {offset + done}, the file has {self.size}: damaged"
            )

    def _check(self, name: str, entry: Any, offset: int) -> TensorInfo:
        try:
            dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            sizes = (*shape, start, end)
            if (
                set(entry) != _ENTRY
                or not isinstance(dtype, str)
                or not all(is_int(n) and 0 <= n < 1 << 62 for n in sizes)
            ):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise CheckpointError(f"{self.path}: tensor {name!r} has a damaged header entry {shown(entry)}") from None
        expected = math.prod(shape) * np.dtype(STORED[dtype]).itemsize if dtype in STORED else end - start
        if end - start != expected:
            said = f"tensor {name!r} of shape {shape} ({dtype}) has {end - start} bytes, expected {expected}"
            raise CheckpointError(f"{self.path}: {said}")
        if end < start or offset + end > self.size:
            raise CheckpointError(
                f"{self.path}: truncated: tensor {name!r} ends at byte {offset + end}, the file has {self.size}"
            )
        return TensorInfo(self.path.name, dtype, shape, offset + start)

    def read_into(
        self, name: str, dest: np.ndarray, shape: tuple[int, ...] | None = None, index: tuple[slice, ...] = ()
    ) -> None:
        """Copy a tensor, or its part `index`, into `dest` (any float dtype), converting.

        Args:
            dest: has the shape of what is copied; may be a view with strides.
            shape: that the whole tensor must have; None: dest's.
        """
        info = self._info(name, DTYPES)
        expected = dest.shape if shape is None else shape
        if info.shape != expected:
            raise CheckpointError(f"{self.path}: tensor {name!r} has shape {info.shape}, expected {expected}")
        count = math.prod(info.shape)
        source = piece = np.frombuffer(self._map, DTYPES[info.dtype], count, info.start).reshape(info.shape)[index]
        rows = max(1, _PIECE // max(1, count // max(1, info.shape[0])))
        for first in range(0, len(source), rows):
            piece = source[first : first + rows]
            if info.dtype == "BF16":
                piece = (piece.astype(np.uint32) << 16).view(np.float32)
            dest[first : first + rows] = piece
            self._let_go()
        del source, piece

    def read(self, name: str, first: int = 0, last: int | None = None) -> np.ndarray:
        """A copy of rows first to last of floats (`DTYPES`), bf16 as float32. Others are refused: `read_stored`."""
        return self.read_stored(name, DTYPES, first, last)

    def read_stored(self, name: str, dtypes: Collection[str], first: int = 0, last: int | None = None) -> np.ndarray:
        """A copy of rows of a tensor of one of `dtypes`: integers as stored, FP8 as uint8 codes, bf16 as float32."""
        info = self._info(name, dtypes)
        source = np.frombuffer(self._map, STORED[info.dtype], math.prod(info.shape), info.start).reshape(info.shape)
        rows = source[first:last] if info.shape else source
        copy = (rows.astype(np.uint32) << 16).view(np.float32) if info.dtype == "BF16" else rows.copy()
        del source, rows
        self._let_go()
        return copy

    def _info(self, name: str, dtypes: Collection[str]) -> TensorInfo:
        info = self.tensors[name]
        if info.dtype not in dtypes:
            raise CheckpointError(f"{self.path}: tensor {name!r} has dtype {info.dtype}; allowed: {', '.join(dtypes)}")
        return info

    def _let_go(self) -> None:
        """Give the mapped pages back, so that they do not count as resident memory."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmap the file. An interrupt in mid-copy leaves views of it behind: then it goes with the last of them."""
        with contextlib.suppress(BufferError):
            self._map.close()


class Checkpoint:
    """All tensors of a checkpoint folder, whether in one file or in shards.

    Use as a context manager. `names()` are the tensors on disk; `read_into` copies one into an array.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.files: dict[str, SafetensorsFile] = {}
        self._where: dict[str, str] = {}
        index, single = self.folder / INDEX_NAME, self.folder / SINGLE_NAME
        try:
            if index.is_file():
                self._open_shards(index)
            elif single.is_file():
                self._where = dict.fromkeys(self._open(single.name).tensors, single.name)
            else:
                raise FileNotFoundError(
                    f"no {SINGLE_NAME} or {INDEX_NAME} in {str(self.folder)!r}{self._what_is_there()}"
                )
        except BaseException:
            self.close()
            raise

    def _what_is_there(self) -> str:
        others = sorted(path.name for path in self.folder.glob("*.safetensors"))
        if others:
            return f": it has {shown(others)}; save it once with transformers, which writes the names that are read"
        pickled = any(self.folder.glob("*.bin"))
        return ": it has only pickled weights (*.bin), which are not read; convert them" if pickled else ""

    def _open(self, name: str) -> SafetensorsFile:
        if name not in self.files:
            path = self.folder / name
            if Path(name).name != name or not path.is_file():
                raise CheckpointError(f"{self.folder / INDEX_NAME}: the shard {name!r} is not in the folder")
            self.files[name] = SafetensorsFile(path)
        return self.files[name]

    def _open_shards(self, index: Path) -> None:
        weight_map = INDEX.read_file(index, CheckpointError)["weight_map"]
        if (self.folder / SINGLE_NAME).is_file() and SINGLE_NAME not in weight_map.values():
            raise CheckpointError(
                f"{self.folder}: {SINGLE_NAME} and {INDEX_NAME} name two sets of weights, of which transformers reads "
                "the first and vLLM the second: take one of them out"
            )
        for tensor, file in weight_map.items():
            if tensor not in self._open(file).tensors:
                raise CheckpointError(f"{self.folder / file}: tensor {tensor!r} is missing, the index says it is here")
        for name, file in self.files.items():
            for tensor in file.tensors:
                if weight_map.get(tensor) != name:
                    raise CheckpointError(f"{file.path}: tensor {tensor!r} is here, and {index.name} does not say so")
        self._where = dict(weight_map)

    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor as stored."""
        return self._file(name).tensors[name].shape

    def read_into(
        self, name: str, dest: np.ndarray, shape: tuple[int, ...] | None = None, index: tuple[slice, ...] = ()
    ) -> None:
        """Copy tensor `name`, or a part of it, into `dest`: see `SafetensorsFile.read_into`.

        Raises:
            CheckpointError: the tensor is missing, or has another shape or an unreadable dtype.
        """
        expected = dest.shape if shape is None else shape
        self._file(name, f", expected shape {expected}").read_into(name, dest, shape, index)

    def read(self, name: str, first: int = 0, last: int | None = None) -> np.ndarray:
        """Rows first to last of floats: see `SafetensorsFile.read`. Raises CheckpointError."""
        return self._file(name).read(name, first, last)

    def read_stored(self, name: str, dtypes: Collection[str], first: int = 0, last: int | None = None) -> np.ndarray:
        """Rows first to last, with dtype: see `SafetensorsFile.read_stored`. Raises CheckpointError."""
        return self._file(name).read_stored(name, dtypes, first, last)

    def _file(self, name: str, more: str = "") -> SafetensorsFile:
        if name not in self._where:
            raise CheckpointError(f"{self.folder}: tensor {name!r} is missing{more}")
        return self.files[self._where[name]]

    def close(self) -> None:
        """Unmap all files."""
        for file in self.files.values():
            file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which no name stands twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice")
    return found
