"""Adapters by name, for a server. Upstream twin: the part about them of `vllm/entrypoints/openai/models/serving.py`."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse
from mini_vllm.entrypoints.openai.models.protocol import LoRAModulePath
from mini_vllm.entrypoints.utils import create_error_response
from mini_vllm.exceptions import LoRAAdapterNotFoundError
from mini_vllm.logger import init_logger
from mini_vllm.lora.request import LoRARequest

logger = init_logger(__name__)


def may_update_loras() -> bool:
    """Whether VLLM_ALLOW_RUNTIME_LORA_UPDATING is 1 or true (upstream/vllm/envs.py:109 —
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING")."""
    return os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0").strip().lower() in ("1", "true")


class ServedLoRAs:
    """A part of `OpenAIServingModels`.

    A name keeps its number after it has been unloaded: blocks of the prefix cache go by names, so another adapter of
    that name is read in its place, which forgets them. Upstream gives it a new number, and the old blocks stay.

    Attributes:
        lora_requests: those that are served, by name.
    """

    lora_requests: dict[str, LoRARequest]

    def __init__(self, engine_client: Any, lora_modules: list[LoRAModulePath] | None) -> None:
        self.engine_client, self.static_lora_modules = engine_client, lora_modules
        self.lora_requests = {}
        self._numbers: dict[str, int] = {}
        self._lock = asyncio.Lock()

    def is_base_model(self, model_name: str) -> bool:
        """See `OpenAIServingModels`."""
        raise NotImplementedError

    async def init_static_loras(self) -> None:
        """Read those of the command line. Raises ValueError for one that cannot be served.

        Upstream: upstream/vllm/entrypoints/openai/models/serving.py:117 — `OpenAIServingModels.init_static_loras`.
        """
        from mini_vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest

        for lora in self.static_lora_modules or ():
            request = LoadLoRAAdapterRequest(
                lora_path=lora.path, lora_name=lora.name, is_3d_lora_weight=lora.is_3d_lora_weight
            )
            given = f"--lora-modules {lora.name}={lora.path}"
            try:
                result = await self.load_lora_adapter(request, lora.base_model_name)
            except (LoRAAdapterNotFoundError, ValueError) as error:
                raise ValueError(f"{given}: {error}") from error
            if isinstance(result, ErrorResponse):
                raise ValueError(f"{given}: {result.error.message}")

    async def load_lora_adapter(self, request: Any, base_model_name: str | None = None) -> ErrorResponse | str:
        """Read an adapter and serve it. Returns a sentence, or what is wrong with the request.

        Raises:
            LoRAAdapterNotFoundError: there are no files. ValueError: they cannot be served.

        Upstream: upstream/vllm/entrypoints/openai/models/serving.py:160 — `OpenAIServingModels.load_lora_adapter`.
        """
        name, path = request.lora_name, request.lora_path
        async with self._lock:
            refused = self._refuse_to_load(request)
            if refused is not None:
                return refused
            again = request.load_inplace or name in self._numbers
            number = self._numbers.get(name, max(self._numbers.values(), default=0) + 1)
            found = LoRARequest(name, number, path, load_inplace=again)
            if base_model_name is not None and self.is_base_model(base_model_name):
                found.base_model_name = base_model_name
            try:
                await self.engine_client.add_lora(found)
            except ValueError as error:
                if f"LoRA adapter {name!r} is not there" in str(error):
                    raise LoRAAdapterNotFoundError(name, path) from error
                raise
            except RuntimeError as error:  # read again while requests run
                return _invalid(str(error))
            self._numbers[name] = number
            self.lora_requests[name] = replace(found, load_inplace=False)
            logger.info("Loaded new LoRA adapter: name '%s', path '%s'", name, path)
            return f"Success: LoRA adapter '{name}' added successfully."

    def _refuse_to_load(self, request: Any) -> ErrorResponse | None:
        name = request.lora_name
        if not name or not request.lora_path:
            return _invalid("Both 'lora_name' and 'lora_path' must be provided.")
        if request.is_3d_lora_weight:
            return _invalid("is_3d_lora_weight must be False: adapters of experts are not served")
        if self.is_base_model(name):
            return _invalid(f"lora_name must not be one of the model's own, got '{name}'")
        if name in self.lora_requests and not request.load_inplace:
            return _invalid(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True."
            )
        return None

    async def unload_lora_adapter(self, request: Any) -> ErrorResponse | str:
        """Forget a name; requests that run end as they began. Returns a sentence, or what is wrong.

        Upstream: upstream/vllm/entrypoints/openai/models/serving.py:208 — `OpenAIServingModels.unload_lora_adapter`.
        """
        name = request.lora_name
        async with self._lock:
            if not name:
                return _invalid("'lora_name' needs to be provided to unload a LoRA adapter.")
            if name not in self.lora_requests:
                message = f"The lora adapter '{name}' cannot be found."
                return create_error_response(message, "NotFoundError", HTTPStatus.NOT_FOUND)
            del self.lora_requests[name]
            logger.info("Removed LoRA adapter: name '%s'", name)
            return f"Success: LoRA adapter '{name}' removed successfully."


def _invalid(message: str) -> ErrorResponse:
    return create_error_response(message, "InvalidUserInput")
