"""Pytest plugin of `course milestone`: every engine that a test makes is made of lab parts.

COURSE_PLUGS names the labs as `--with-labs` does, COURSE_PLUG_PARTS the parts to take from them. The tests stay as
they are: the names under which they find pool, scheduler and sampler are given other meanings before they are imported.
"""

import importlib
import os
from dataclasses import replace
from typing import Any

import pytest

from course.plugs.parts import assemble, find_parts
from mini_vllm.engine.parts import EngineParts


def pytest_configure(config: pytest.Config) -> None:
    """Replaces the parts in the modules that use them."""
    names = os.environ["COURSE_PLUG_PARTS"].split(",")
    found = [part for part in find_parts(os.environ["COURSE_PLUGS"]) if part.plug.part in names]

    def parts(*_: object) -> EngineParts:
        return assemble([replace(part) for part in found], quiet=True)

    def pool(num_gpu_blocks: int, enable_caching: bool = True) -> Any:
        return parts().block_pool(num_gpu_blocks, enable_caching)

    def scheduler(*args: Any) -> Any:
        made = parts()
        return made.scheduler(*args, check_stop=made.check_stop)

    _set("engine.core", EngineParts=parts)
    _set("engine.front_end", parts_from_labs=parts)
    _set("sample.sampler", Sampler=parts().sampler)
    for module in ("core.block_pool", "core.kv_cache_manager"):
        _set(module, BlockPool=pool)
    _set("tests.helpers", Scheduler=scheduler, BlockPool=pool)


def _set(module: str, **values: Any) -> None:
    for name, value in values.items():  # raises where a name has gone, since the lab's part would go unused
        pytest.MonkeyPatch().setattr(importlib.import_module(f"mini_vllm.{module}"), name, value)
