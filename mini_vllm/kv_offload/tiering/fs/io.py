"""A block as a file: a header that says of what it is, the bytes, a checksum.

    MINIKV01 | length of the header, 4 bytes | header, JSON | the block | CRC-32 of all before, 4 bytes

A file gets its name when it is complete. Nothing is forced onto the disk: whatever a crash leaves, the checksum tells.

Upstream twin: `vllm/v1/kv_offload/tiering/fs/io.py`, whose files are the bytes alone: what has the right length is
taken.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zlib
from pathlib import Path
from typing import Any

from mini_vllm.utils.arrays import Array

MAGIC = b"MINIKV01"


class DamagedFile(OSError):
    """A file that is not what its name says; the message says what is wrong."""


def make_header(fields: dict[str, Any]) -> bytes:
    """What stands before the bytes of a block."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return MAGIC + len(text).to_bytes(4, "big") + text


def store_block(dest_path: Path, header: bytes, block: Array) -> None:
    """Write a block, uint8[bytes], unless the file is there.

    Raises:
        OSError: it cannot be written; nothing is left of it.

    Upstream: upstream/vllm/v1/kv_offload/tiering/fs/io.py:32 — `store_block`.
    """
    if dest_path.exists():
        return
    dest_path.parent.mkdir(parents=True, exist_ok=True)
    temporary = dest_path.with_name(f"{dest_path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(header)
            file.write(block.data)
            file.write(_checksum(header, block))
        os.replace(temporary, dest_path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def load_block(source_path: Path, header: bytes, block: Array) -> None:
    """Read a block into uint8[bytes]. A file that is not what it should be is removed.

    Raises:
        DamagedFile: it was removed. OSError: it cannot be read.

    Upstream: upstream/vllm/v1/kv_offload/tiering/fs/io.py:75 — `load_block`.
    """
    try:
        with open(source_path, "rb") as file:
            size = len(header) + block.nbytes + 4
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise DamagedFile(f"{source_path}: {found} bytes, expected {size}: its blocks are computed again")
            if file.read(len(header)) != header:
                raise DamagedFile(f"{source_path}: of another model or block: its blocks are computed again")
            if file.readinto(block.data) != block.nbytes or file.read(4) != _checksum(header, block):
                raise DamagedFile(f"{source_path}: the checksum differs: its blocks are computed again")
    except DamagedFile:
        with contextlib.suppress(OSError):
            source_path.unlink()
        raise
    except FileNotFoundError:
        raise OSError(f"{source_path}: has vanished: its blocks are computed again") from None


def _checksum(header: bytes, block: Array) -> bytes:
    return zlib.crc32(block.data, zlib.crc32(header)).to_bytes(4, "big")
