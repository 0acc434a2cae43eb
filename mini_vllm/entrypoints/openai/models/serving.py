"""The names that the server answers to. Upstream twin: `vllm/entrypoints/openai/models/serving.py`."""

from __future__ import annotations

from http import HTTPStatus

from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse, ModelCard, ModelList, ModelPermission
from mini_vllm.entrypoints.openai.models.protocol import BaseModelPath
from mini_vllm.entrypoints.utils import create_error_response


class OpenAIServingModels:
    """All names are of one model; adapters come with phase 11.

    Upstream: upstream/vllm/entrypoints/openai/models/serving.py:76 — `OpenAIServingModels`.
    """

    def __init__(self, base_model_paths: list[BaseModelPath], max_model_len: int) -> None:
        self.base_model_paths = base_model_paths
        self.max_model_len = max_model_len

    def model_name(self) -> str:
        """What answers call the model: its first name."""
        return self.base_model_paths[0].name

    def is_base_model(self, model_name: str) -> bool:
        """True for one of the names."""
        return any(path.name == model_name for path in self.base_model_paths)

    def check_model(self, model_name: str | None) -> ErrorResponse | None:
        """None, or a 404; a request without a name means the model that is there."""
        if not model_name or self.is_base_model(model_name):
            return None
        message = f"The model `{model_name}` does not exist."
        return create_error_response(message, "NotFoundError", HTTPStatus.NOT_FOUND, param="model")

    def show_available_models(self) -> ModelList:
        """A card for each name."""
        return ModelList(
            data=[
                ModelCard(
                    id=path.name,
                    max_model_len=self.max_model_len,
                    root=path.model_path,
                    permission=[ModelPermission()],
                )
                for path in self.base_model_paths
            ]
        )
