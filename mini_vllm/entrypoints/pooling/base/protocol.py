"""What every pooling request may say. Upstream twin: `vllm/entrypoints/pooling/base/protocol.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from mini_vllm.entrypoints.openai.engine.protocol import OpenAIBaseModel
from mini_vllm.pool.params import PoolingParams
from mini_vllm.renderers.params import TokenizeParams
from mini_vllm.utils import random_uuid


class PoolingBasicRequestMixin(OpenAIBaseModel):
    """Upstream: upstream/vllm/entrypoints/pooling/base/protocol.py:21 — `PoolingBasicRequestMixin`."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    request_id: str = Field(default_factory=random_uuid)
    priority: int = Field(default=0, ge=-(2**63), le=2**63 - 1)
    mm_processor_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    add_special_tokens: bool = True
    use_activation: bool | None = None

    def build_tok_params(self, max_model_len: int) -> TokenizeParams:
        """A prompt may fill the context. What is cut, is cut at its end, as upstream's pooling tokenizers do."""
        return TokenizeParams(
            max_total_tokens=max_model_len,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            truncation_side=self.truncation_side or "right",
            add_special_tokens=self.add_special_tokens,
            max_total_tokens_param="max_model_len",
        )

    def to_pooling_params(self, task: str) -> PoolingParams:
        """What the engine is asked for."""
        return PoolingParams(
            task=task, use_activation=self.use_activation, dimensions=getattr(self, "dimensions", None)
        )


class InputRequest(PoolingBasicRequestMixin):
    """One input or several: texts, or token ids.

    Upstream: upstream/vllm/entrypoints/pooling/base/protocol.py:155 — `CompletionRequestMixin`; conversations are not
    taken here.
    """

    input: list[int] | list[list[int]] | str | list[str]


class EncodingRequestMixin(OpenAIBaseModel):
    """How the numbers are written: a list, or base64 of little-endian float32.

    Upstream: upstream/vllm/entrypoints/pooling/base/protocol.py:259 — `EncodingRequestMixin`, which also knows bytes
    and other widths.
    """

    encoding_format: Literal["float", "base64"] = "float"
    embed_dtype: Literal["float32"] = "float32"
    endianness: Literal["native", "little"] = "native"
