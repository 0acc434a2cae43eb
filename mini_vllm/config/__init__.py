"""The engine's settings, checked at the door. Names and defaults are upstream's unless said otherwise.

Upstream twin: `vllm/config/__init__.py`.
"""

from mini_vllm.config.cache import CacheConfig
from mini_vllm.config.compilation import CUDAGraphMode
from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.config.vllm import EngineConfig

__all__ = ["CUDAGraphMode", "CacheConfig", "EngineConfig", "SchedulerConfig"]


def __getattr__(name: str) -> object:
    """What stood here before it moved: an error that says where it is now."""
    from mini_vllm.moved import missing

    raise missing(__name__, name)
