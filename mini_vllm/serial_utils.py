"""Messages as bytes: msgpack, by the library msgspec. Upstream twin: `vllm/v1/serial_utils.py`.

Two ways. With a message class given, msgspec writes and reads plain fields by itself, at the speed of C: that is what
each step's outputs take. Without one, every value keeps its type: dataclasses and enums of `mini_vllm`, tuples, sets,
arrays, whole numbers of any size. That is for what comes once a request or less often. Nothing is pickled: bytes from
a socket can make values, never call a function (upstream needs `VLLM_ALLOW_INSECURE_SERIALIZATION` for pickles).
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter, deque
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import msgspec

_TYPED = 1
"""Code of the msgpack extension that holds [tag, value]."""
_PLAIN = frozenset({type(None), bool, float, bytes})
_MIN_INT, _MAX_INT = -(1 << 63), (1 << 64) - 1
_COLLECTIONS = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}


def require_library(name: str) -> Any:
    """Import `msgspec` or `zmq`.

    Raises:
        ImportError: it is not installed; says which extra brings it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        what = {"zmq": "pyzmq"}.get(name, name)
        message = f"an engine core in a process of its own needs {what}: pip install 'mini-vllm-course[serve]'"
        raise ImportError(message, name=name) from None


class MsgpackEncoder:
    """Values to bytes.

    Args:
        message_class: a dataclass of plain fields, for messages that come often; None: any value, with its type.

    Upstream: upstream/vllm/v1/serial_utils.py:136 — `MsgpackEncoder`.
    """

    def __init__(self, message_class: type | None = None) -> None:
        self._msgpack = require_library("msgspec").msgpack
        self._encoder = self._msgpack.Encoder(enc_hook=_enc_hook)
        self._message_class = message_class

    def encode(self, value: Any) -> bytes:
        """Raises TypeError, with the type's name, for a value that cannot be sent."""
        if self._message_class is not None:
            return self._encoder.encode(value)
        return self._encoder.encode(self._to_wire(value))

    def _typed(self, tag: str, value: Any) -> Any:
        return self._msgpack.Ext(_TYPED, self._encoder.encode([tag, value]))

    def _to_wire(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is str:  # a lone surrogate is no UTF-8
            return value if value.isascii() else self._typed("str", value.encode("utf-8", "surrogatepass"))
        if kind is int:
            return value if _MIN_INT <= value <= _MAX_INT else self._typed("int", str(value))
        if kind is list:
            return value if _is_plain(value) else [self._to_wire(item) for item in value]
        if kind in (dict, Counter):
            pairs = [(self._to_wire(key), self._to_wire(item)) for key, item in value.items()]
            plain = kind is dict and all(type(key) in (str, int) for key in value)
            return dict(pairs) if plain and _is_plain(list(value)) else self._typed(kind.__name__, pairs)
        if kind.__name__ in _COLLECTIONS and kind.__module__ in ("builtins", "collections"):
            return self._typed(kind.__name__, [self._to_wire(item) for item in value])
        return self._object_to_wire(value)

    def _object_to_wire(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            return self._to_wire(value.item())
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            return self._typed("array", [value.dtype.str, list(value.shape), value.tobytes()])
        name = f"{type(value).__module__}:{type(value).__qualname__}"
        if name.startswith("mini_vllm.") and isinstance(value, enum.Enum):
            return self._typed(name, value.name)
        if name.startswith("mini_vllm.") and "__setstate__" in vars(type(value)):
            return self._typed(name, self._to_wire(value.__getstate__()))
        if name.startswith("mini_vllm.") and dataclasses.is_dataclass(value):
            own = vars(value) if hasattr(value, "__dict__") else {f: getattr(value, f) for f in _fields(value)}
            return self._typed(name, {key: self._to_wire(item) for key, item in own.items()})
        raise TypeError(
            f"{type(value).__module__}.{type(value).__qualname__} cannot be sent to an engine core in a process of its "
            f"own: {str(value)[:60]}"
        )


class MsgpackDecoder:
    """Bytes to values: the counterpart of `MsgpackEncoder` with the same `message_class`.

    Upstream: upstream/vllm/v1/serial_utils.py:313 — `MsgpackDecoder`.
    """

    def __init__(self, message_class: type | None = None) -> None:
        msgpack: Any = require_library("msgspec").msgpack
        self._decoder: msgspec.msgpack.Decoder[Any]
        self._decoder = msgpack.Decoder(*filter(None, [message_class]), ext_hook=self._ext_hook)

    def decode(self, data: Any) -> Any:
        """Raises ValueError for bytes that no encoder wrote (msgspec's errors are ValueErrors too)."""
        return self._decoder.decode(data)

    def _ext_hook(self, code: int, data: memoryview) -> Any:
        if code != _TYPED:
            raise ValueError(f"msgpack extension {code} is not known")
        tag, value = self._decoder.decode(data)
        if tag == "int":
            return int(value)
        if tag == "str":
            return value.decode("utf-8", "surrogatepass")
        if tag == "array":
            dtype, shape, raw = value
            return np.frombuffer(raw, dtype).reshape(shape).copy()
        if tag in ("dict", "Counter"):
            return Counter(dict(value)) if tag == "Counter" else dict(value)
        if tag in _COLLECTIONS:
            return _COLLECTIONS[tag](value)
        return _revive(tag, value)


def _revive(tag: str, value: Any) -> Any:
    """An enum member, or a dataclass with exactly the attributes that it had: it was checked when it was made."""
    module, _, name = tag.partition(":")
    if not module.startswith("mini_vllm."):
        raise ValueError(f"a message may hold types of mini_vllm alone, got {tag!r}")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return found[value]
    has_state = isinstance(found, type) and "__setstate__" in vars(found)
    if not has_state and not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise ValueError(f"{tag!r} is neither a dataclass nor an enum")
    made = object.__new__(found)
    if has_state:
        made.__setstate__(value)
        return made
    for key, item in value.items():
        object.__setattr__(made, key, item)
    return made


def _enc_hook(value: Any) -> Any:
    """What numpy left in a message of plain fields."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} cannot be sent: {str(value)[:60]}")


def _is_plain(items: list[Any]) -> bool:
    """True where msgpack can take the list as it is: decided by its types, so that long prompts cost little."""
    kinds = set(map(type, items))
    if kinds == {int}:
        return min(items) >= _MIN_INT and max(items) <= _MAX_INT
    return all(map(str.isascii, items)) if kinds == {str} else kinds <= _PLAIN


def _fields(value: Any) -> list[str]:
    return [each.name for each in dataclasses.fields(value)]
