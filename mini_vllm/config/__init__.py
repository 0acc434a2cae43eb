"""The engine's settings, checked at the door. Names and defaults are upstream's unless said otherwise.

Upstream twin: `vllm/config/__init__.py`.
"""

from mini_vllm.config.cache import CacheConfig
from mini_vllm.config.compilation import CUDAGraphMode
from mini_vllm.config.ec_transfer import ECTransferConfig
from mini_vllm.config.kv_events import KVEventsConfig
from mini_vllm.config.kv_transfer import KVTransferConfig
from mini_vllm.config.load import LoadConfig
from mini_vllm.config.lora import LoRAConfig
from mini_vllm.config.model import ModelConfig
from mini_vllm.config.multimodal import MultiModalConfig
from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.config.reasoning import ReasoningConfig
from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.config.vllm import EngineConfig

__all__ = [
    "CUDAGraphMode",
    "CacheConfig",
    "ECTransferConfig",
    "EngineConfig",
    "KVEventsConfig",
    "KVTransferConfig",
    "LoRAConfig",
    "LoadConfig",
    "ModelConfig",
    "MultiModalConfig",
    "PoolerConfig",
    "ReasoningConfig",
    "SchedulerConfig",
    "SpeculativeConfig",
    "StructuredOutputsConfig",
]
