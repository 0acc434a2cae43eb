"""From what a user gives to what the engine serves. Upstream twin: `vllm/multimodal/processing/__init__.py`."""

from mini_vllm.multimodal.processing.context import BaseProcessingInfo
from mini_vllm.multimodal.processing.processor import (
    BaseMultiModalProcessor,
    PromptReplacement,
    PromptUpdateDetails,
)

__all__ = ["BaseMultiModalProcessor", "BaseProcessingInfo", "PromptReplacement", "PromptUpdateDetails"]
