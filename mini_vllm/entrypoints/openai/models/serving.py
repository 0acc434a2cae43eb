"""The names that the server answers to. Upstream twin: `vllm/entrypoints/openai/models/serving.py`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse, ModelCard, ModelList, ModelPermission
from mini_vllm.entrypoints.openai.models.lora import ServedLoRAs
from mini_vllm.entrypoints.openai.models.protocol import BaseModelPath, LoRAModulePath
from mini_vllm.entrypoints.utils import create_error_response
from mini_vllm.lora.request import LoRARequest


class OpenAIServingModels(ServedLoRAs):
    """The model's own names, and those of adapters.

    Upstream: upstream/vllm/entrypoints/openai/models/serving.py:76 — `OpenAIServingModels`.
    """

    def __init__(
        self,
        base_model_paths: list[BaseModelPath],
        max_model_len: int,
        engine_client: Any = None,
        lora_modules: list[LoRAModulePath] | None = None,
    ) -> None:
        super().__init__(engine_client, lora_modules)
        self.base_model_paths = base_model_paths
        self.max_model_len = max_model_len

    def model_name(self, lora_request: LoRARequest | None = None) -> str:
        """What answers call the model: its first name, or the adapter's."""
        return self.base_model_paths[0].name if lora_request is None else lora_request.lora_name

    def is_base_model(self, model_name: str) -> bool:
        """True for one of the names."""
        return any(path.name == model_name for path in self.base_model_paths)

    def check_model(self, model_name: str | None) -> ErrorResponse | None:
        """None, or a 404; a request without a name means the model that is there."""
        if not model_name or self.is_base_model(model_name) or model_name in self.lora_requests:
            return None
        message = f"The model `{model_name}` does not exist."
        return create_error_response(message, "NotFoundError", HTTPStatus.NOT_FOUND, param="model")

    def show_available_models(self) -> ModelList:
        """A card for each name; an adapter's says whose it is."""
        base = [
            ModelCard(
                id=path.name, max_model_len=self.max_model_len, root=path.model_path, permission=[ModelPermission()]
            )
            for path in self.base_model_paths
        ]
        adapters = [
            ModelCard(
                id=lora.lora_name,
                root=lora.lora_path,
                parent=lora.base_model_name or self.model_name(),
                permission=[ModelPermission()],
            )
            for lora in self.lora_requests.values()
        ]
        return ModelList(data=[*base, *adapters])
