"""What engines say of adapters: read one, forget one, which are there, keep one.

Upstream twins: these methods of `vllm/v1/engine/llm_engine.py` and `vllm/v1/engine/async_llm.py`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.engine.core_client import EngineCoreClient
from mini_vllm.engine.lora_registry import LoRARegistry
from mini_vllm.lora.request import LoRARequest


class LoRACalls:
    """A part of `LLMEngine`."""

    lora_registry: LoRARegistry
    core_client: EngineCoreClient

    def reset_prefix_cache(self) -> Any:
        """See `LLMEngine`."""
        raise NotImplementedError

    def check_lora(self, lora_request: LoRARequest) -> LoRARequest:
        """Look into an adapter's files when it is new, before a request for it is queued. Raises what is wrong."""
        if self.lora_registry.is_new(lora_request):
            self.core_client.call_utility("call_lora", "check_lora", lora_request)
        return self.lora_registry.note(lora_request)

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter before anybody asks for it; False where it is there.

        With `load_inplace` it is read again. What the prefix cache holds was computed with the old one, so it is
        forgotten; while requests run that is refused.

        Raises:
            ValueError: what is wrong with it. RuntimeError: requests run.

        Upstream: upstream/vllm/v1/engine/llm_engine.py:394 — `LLMEngine.add_lora`.
        """
        self.lora_registry.is_new(lora_request)
        if lora_request.load_inplace and not self.reset_prefix_cache():
            raise RuntimeError("an adapter can be read again (load_inplace) only while no request runs")
        added = self.core_client.call_utility("call_lora", "add_lora", lora_request)
        self.lora_registry.note(lora_request)
        return added

    def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; False where it was not there. A request that asks for it reads it again.

        Upstream: upstream/vllm/v1/engine/llm_engine.py:398 — `LLMEngine.remove_lora`.
        """
        return self.core_client.call_utility("call_lora", "remove_lora", lora_id)

    def list_loras(self) -> set[int]:
        """Numbers of the adapters in memory (upstream/vllm/v1/engine/llm_engine.py:402 — `LLMEngine.list_loras`)."""
        return self.core_client.call_utility("call_lora", "list_loras")

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in its slot (upstream/vllm/v1/engine/llm_engine.py:406 — `LLMEngine.pin_lora`)."""
        return self.core_client.call_utility("call_lora", "pin_lora", lora_id)


class AsyncLoRACalls:
    """A part of `AsyncLLM`."""

    lora_registry: LoRARegistry
    core_client: EngineCoreClient

    async def reset_prefix_cache(self) -> Any:
        """See `AsyncLLM`."""
        raise NotImplementedError

    async def _ask(self, method: str, *args: Any) -> Any:
        raise NotImplementedError

    async def check_lora(self, lora_request: LoRARequest) -> LoRARequest:
        """See `LoRACalls`."""
        if self.lora_registry.is_new(lora_request):
            await self._ask("call_lora", "check_lora", lora_request)
        return self.lora_registry.note(lora_request)

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """See `LLMEngine.add_lora` (upstream/vllm/v1/engine/async_llm.py:948 — `AsyncLLM.add_lora`)."""
        self.lora_registry.is_new(lora_request)
        if lora_request.load_inplace and not await self.reset_prefix_cache():
            raise RuntimeError("an adapter can be read again (load_inplace) only while no request runs")
        added = await self._ask("call_lora", "add_lora", lora_request)
        self.lora_registry.note(lora_request)
        return added

    async def remove_lora(self, lora_id: int) -> bool:
        """See `LLMEngine.remove_lora`."""
        return await self._ask("call_lora", "remove_lora", lora_id)

    async def list_loras(self) -> set[int]:
        """See `LLMEngine.list_loras`."""
        return await self._ask("call_lora", "list_loras")

    async def pin_lora(self, lora_id: int) -> bool:
        """See `LLMEngine.pin_lora`."""
        return await self._ask("call_lora", "pin_lora", lora_id)
