"""mini_vllm: a small engine with the architecture, the names and the decisions of vLLM V1, in numpy.

`import mini_vllm` imports numpy and the standard library, nothing else; everything further is imported where used.
"""

from mini_vllm.engine import EngineCore, LLMEngine
from mini_vllm.llm import LLM
from mini_vllm.outputs import CompletionOutput, FinishReason, RequestOutput, RequestOutputKind
from mini_vllm.sampling_params import SamplingParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineCore",
    "FinishReason",
    "LLMEngine",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
]
__version__ = "0.1.0"
