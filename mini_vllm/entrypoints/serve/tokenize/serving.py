"""Texts to tokens and back, without the engine. Upstream twin: `vllm/entrypoints/serve/tokenize/serving.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse
from mini_vllm.entrypoints.openai.engine.serving import OpenAIServing
from mini_vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeChatRequest,
    TokenizeRequest,
    TokenizeResponse,
    TokenizerInfoResponse,
)
from mini_vllm.tokenizers.tokenizer_files import load_json_if_there


class OpenAIServingTokenization(OpenAIServing):
    """Upstream: upstream/vllm/entrypoints/serve/tokenize/serving.py:30 — `OpenAIServingTokenization`."""

    openai_serving_render: Any

    async def create_tokenize(self, request: TokenizeRequest) -> TokenizeResponse | ErrorResponse:
        """The ids of a text, or of a conversation as the template writes it."""
        refused = self._check_model(request.model)
        if refused is not None:
            return refused
        render = self.openai_serving_render
        if isinstance(request, TokenizeChatRequest):
            refused = render.validate_chat_template(request)
            if refused is not None:
                return refused
            tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
            _, prompt = await render.preprocess_chat(request, tools)
        else:
            (prompt,) = await render.preprocess_completion(request, request.prompt)
        ids = prompt["prompt_token_ids"]
        return TokenizeResponse(
            tokens=ids,
            token_strs=self._token_strings(ids) if request.return_token_strs else None,
            count=len(ids),
            max_model_len=self.max_model_len,
        )

    def _token_strings(self, ids: list[int]) -> list[str]:
        tokenizer = self.renderer.get_tokenizer()
        convert = getattr(tokenizer, "convert_ids_to_tokens", None)
        if convert is not None:
            return [token or "" for token in convert(ids)]
        return [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in ids]

    async def create_detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse | ErrorResponse:
        """The text of ids."""
        refused = self._check_model(request.model)
        if refused is not None:
            return refused
        text = self.renderer.get_tokenizer().decode(request.tokens, skip_special_tokens=False)
        return DetokenizeResponse(prompt=text)

    def get_tokenizer_info(self) -> TokenizerInfoResponse:
        """What `tokenizer_config.json` says, and the template in use."""
        tokenizer, folder = self.renderer.get_tokenizer(), self.renderer.folder
        config = {} if folder is None else dict(load_json_if_there(Path(folder) / "tokenizer_config.json"))
        config["tokenizer_class"] = type(tokenizer).__name__
        if self.options.chat_template:
            config["chat_template"] = self.options.chat_template
        return TokenizerInfoResponse(**config)
