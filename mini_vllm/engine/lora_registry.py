"""Which adapters the front end has seen: a name and a number belong together.

Upstream has no twin: there a number must be unique, and nobody looks. Two adapters of one number would share a slot,
two numbers of one name the blocks of the prefix cache.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.config.lora import LoRAConfig
from mini_vllm.lora.request import LoRARequest
from mini_vllm.utils.checks import shown


class LoRARegistry:
    """Args: lora_config: None where adapters are not enabled."""

    def __init__(self, lora_config: LoRAConfig | None) -> None:
        self.lora_config = lora_config
        self._by_id: dict[int, LoRARequest] = {}
        self._by_name: dict[str, LoRARequest] = {}

    def is_new(self, request: Any, may_replace: bool = False) -> bool:
        """Whether an adapter has not been seen yet.

        Args: may_replace: of `add_lora`, which reads an adapter again. (Upstream reads it again in each step of a
            request with `load_inplace`, and the blocks that it cached before stay.)

        Raises:
            TypeError: it is no `LoRARequest`. ValueError: adapters are not enabled, its name or its number is another
                adapter's, or `load_inplace` where nothing is replaced.
        """
        if not isinstance(request, LoRARequest):
            raise TypeError(
                f"lora_request must be a LoRARequest or None, got {type(request).__name__}: {shown(request)}"
            )
        if self.lora_config is None:
            raise ValueError(f"lora_request needs an engine with enable_lora=True, got {request.lora_name!r}")
        if request.load_inplace and not may_replace:
            raise ValueError(
                f"lora_request {request.lora_name!r} must have load_inplace=False, got True: `add_lora` replaces an "
                "adapter, and requests name it"
            )
        known = self._by_id.get(request.lora_int_id), self._by_name.get(request.lora_name)
        for other in known:
            if other is not None and (other.lora_int_id, other.lora_name) != (request.lora_int_id, request.lora_name):
                raise ValueError(
                    f"lora_request {request.lora_name!r} has lora_int_id={request.lora_int_id}, but "
                    f"{other.lora_name!r} has {other.lora_int_id}: a name and a number belong together"
                )
        seen = known[0]
        if seen is not None and seen.lora_path != request.lora_path and not request.load_inplace:
            raise ValueError(
                f"lora_request {request.lora_name!r} was read from {seen.lora_path!r}, got {request.lora_path!r}: "
                "`add_lora` with load_inplace=True replaces it"
            )
        return seen is None

    def note(self, request: LoRARequest) -> LoRARequest:
        """Remember an adapter that can be served."""
        self._by_id[request.lora_int_id] = self._by_name[request.lora_name] = request
        return request
