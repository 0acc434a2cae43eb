"""What the settings of KV connectors and of encoder-cache connectors share. Upstream has no twin: it says it twice."""

from __future__ import annotations

import uuid
from dataclasses import fields
from typing import Any, TypeVar

from mini_vllm.config.utils import one_of, whole_number
from mini_vllm.utils.checks import did_you_mean, is_real, shown

T = TypeVar("T")


def read_transfer(cls: type[T], name: str, value: T | dict[str, Any] | None) -> T | None:
    """An engine argument as an object of `cls`: such an object, a dict of its fields, or None.

    Raises:
        ValueError: names the argument, and the key that is not known.
    """
    if value is None or isinstance(value, cls):
        return value
    if not isinstance(value, dict):
        article = "an" if cls.__name__.startswith("E") else "a"
        raise ValueError(f"{name} must be a dict or {article} {cls.__name__}, got {shown(value)}")
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            hint = did_you_mean(str(key), known) or "."
            raise ValueError(f"{name}: unknown key {key!r}{hint} Allowed: {', '.join(known)}")
    return cls(**value)


def check_transfer(settings: Any, kind: str, roles: tuple[str, ...]) -> None:
    """Check the fields whose names begin with `kind`, "kv" or "ec", and give the engine a name that has none.

    Raises:
        ValueError: names the field, the value and what is allowed.
    """

    def field(name: str) -> tuple[str, Any]:
        return f"{kind}_{name}", getattr(settings, f"{kind}_{name}")

    texts = [field("connector"), ("engine_id", settings.engine_id), field("role"), field("connector_module_path")]
    for name, value in texts:
        if value is not None and (not isinstance(value, str) or not value):
            raise ValueError(f"{name} must be text that is not empty, got {shown(value)}")
    (connector_name, connector), (role_name, role) = field("connector"), field("role")
    if role is not None:
        one_of(role_name, role, roles)
    elif connector is not None:
        raise ValueError(f"{role_name} must be given with {connector_name}={connector!r}: one of {roles}")
    name, value = field("connector_extra_config")
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a dict, got {shown(value)}")
    name, value = field("buffer_size")
    if not is_real(value) or not value > 0:
        raise ValueError(f"{name} must be a number of bytes above 0, got {shown(value)}")
    if field("rank")[1] is not None:
        whole_number(*field("rank"), 0)
    whole_number(*field("parallel_size"), 1)
    whole_number(*field("port"), 1)
    if settings.engine_id is None:
        settings.engine_id = str(uuid.uuid4())
