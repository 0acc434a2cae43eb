"""`LLM.embed`, `classify`, `score`, `encode`. Upstream twin: `vllm/entrypoints/pooling/offline.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mini_vllm.engine.input_processor import Prompt
from mini_vllm.engine.missing_names import refuse_arguments
from mini_vllm.entrypoints.offline_utils import Bar, OfflineInferenceMixin
from mini_vllm.entrypoints.pooling.scoring.io_processor import (
    PROCESSORS,
    SCORE_TYPE_MAP,
    ScoringIOProcessor,
    validate_score_input,
)
from mini_vllm.lora.request import LoRARequest
from mini_vllm.pool.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
)
from mini_vllm.pool.params import PoolingParams
from mini_vllm.utils.checks import shown

Params = PoolingParams | Sequence[PoolingParams] | None
Loras = LoRARequest | Sequence[LoRARequest | None] | None


class PoolingOfflineMixin(OfflineInferenceMixin):
    """Upstream: upstream/vllm/entrypoints/pooling/offline.py:31 — `PoolingOfflineMixin`."""

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        """What `encode` can be asked for; ("generate",) of a model that generates."""
        return self.llm_engine.config.supported_tasks

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: Params = None,
        *,
        use_tqdm: Bar = True,
        lora_request: Loras = None,
        pooling_task: str | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[PoolingRequestOutput]:
        """The pooled result of every prompt, `outputs.data`, in the order of the prompts.

        Args:
            prompts: as `LLM.generate` takes them. pooling_params: one for all, or one for each.
            lora_request: an adapter for all, or one or None for each (`enable_lora`).
            pooling_task: "embed", "classify", "token_embed" or "token_classify".

        Raises:
            ValueError, TypeError: what is wrong with which prompt; nothing has been queued.
            RuntimeError: the result of one of them is not a number.

        Upstream: upstream/vllm/entrypoints/pooling/offline.py:51 — `encode`.
        """
        verify_pooling_task(pooling_task, self.supported_tasks)
        given = PoolingParams() if pooling_params is None else pooling_params
        params = with_task(given, str(pooling_task)) if isinstance(given, PoolingParams) else [
            with_task(each, str(pooling_task)) for each in given
        ]  # fmt: skip
        processed = self._process(prompts, params, tokenization_kwargs, lora_request)
        outputs: list[Any] = self._run_engine(self._add_requests(processed, None), use_tqdm)
        for output in outputs:
            if output.outputs.data is None:
                raise RuntimeError(f"request {output.request_id} failed: {output.outputs.error}")
        return outputs

    def embed(
        self, prompts: Any, *, use_tqdm: Bar = True, pooling_params: Params = None, lora_request: Loras = None,
        tokenization_kwargs: Any = None,
    ) -> list[PoolingRequestOutput]:  # fmt: skip
        """A vector for each prompt: `outputs.embedding`.

        Upstream: upstream/vllm/entrypoints/pooling/offline.py:199 — `embed`.
        """
        kwargs: dict[str, Any] = {"use_tqdm": use_tqdm, "tokenization_kwargs": tokenization_kwargs}
        items = self.encode(prompts, pooling_params, lora_request=lora_request, pooling_task="embed", **kwargs)
        return [
            EmbeddingRequestOutput(**{**vars(i), "outputs": EmbeddingOutput(i.outputs.data.tolist())}) for i in items
        ]

    def classify(
        self, prompts: Any, *, pooling_params: Params = None, use_tqdm: Bar = True, lora_request: Loras = None,
        tokenization_kwargs: Any = None,
    ) -> list[PoolingRequestOutput]:  # fmt: skip
        """Probabilities of the labels for each prompt: `outputs.probs`.

        Upstream: upstream/vllm/entrypoints/pooling/offline.py:244 — `classify`.
        """
        kwargs: dict[str, Any] = {"use_tqdm": use_tqdm, "tokenization_kwargs": tokenization_kwargs}
        items = self.encode(prompts, pooling_params, lora_request=lora_request, pooling_task="classify", **kwargs)
        made = [(item, ClassificationOutput(item.outputs.data.tolist())) for item in items]
        return [ClassificationRequestOutput(**{**vars(item), "outputs": output}) for item, output in made]

    def score(
        self, data_1: Any, data_2: Any, /, *, use_tqdm: Bar = True, pooling_params: PoolingParams | None = None,
        lora_request: Loras = None, tokenization_kwargs: None = None, chat_template: None = None,
    ) -> list[PoolingRequestOutput]:  # fmt: skip
        """How well each pair of texts fits: `outputs.score`. One text and many, or as many as many.

        Raises:
            ValueError: the model cannot score, or the texts do not pair; an argument that has no effect on pairs.

        Upstream: upstream/vllm/entrypoints/pooling/offline.py:333 — `score`.
        """
        refuse_arguments(tokenization_kwargs=tokenization_kwargs, chat_template=chat_template)
        processor = scoring_processor(self.llm_engine)
        data = validate_score_input(data_1, data_2)
        prompts, params = processor.pre_process(data, pooling_params or PoolingParams())
        given: dict[str, Any] = {"lora_request": lora_request, "use_tqdm": use_tqdm}
        items = self.encode(prompts, params, pooling_task=processor.task, **given)
        return processor.post_process(items, len(data.data_1))

    def reward(
        self, prompts: Any, /, *, pooling_params: Params = None, use_tqdm: Bar = True, lora_request: Loras = None,
        tokenization_kwargs: Any = None,
    ) -> list[PoolingRequestOutput]:  # fmt: skip
        """A score for every token (upstream/vllm/entrypoints/pooling/offline.py:289 — `reward`, on its way out)."""
        kwargs: dict[str, Any] = {"use_tqdm": use_tqdm, "tokenization_kwargs": tokenization_kwargs}
        return self.encode(prompts, pooling_params, lora_request=lora_request, pooling_task="token_classify", **kwargs)


def with_task(params: PoolingParams, task: str) -> PoolingParams:
    """A copy for this task. Raises ValueError where it has another."""
    if not isinstance(params, PoolingParams):
        raise TypeError(f"pooling_params must be PoolingParams or a list of them, got {type(params).__name__}")
    if params.task not in (None, task):
        raise ValueError(f"You cannot overwrite param.task={params.task!r} with pooling_task={task!r}!")
    return replace(params, task=task)


def verify_pooling_task(task: str | None, supported: Sequence[str]) -> None:
    """Raise ValueError where this engine cannot do it, in upstream's words.

    Upstream: upstream/vllm/entrypoints/pooling/offline.py:138 — `_verify_pooling_task`.
    """
    if "generate" in supported:
        raise ValueError(
            "LLM.encode() is only supported for pooling models. Try passing `--runner pooling` to use the model as a "
            "pooling model."
        )
    if task is None:
        raise ValueError(f"pooling_task required for `LLM.encode`: one of {list(supported)}")
    if task in supported:
        return
    if task in ("embed", "token_embed"):
        raise ValueError(
            "Embedding API is not supported by this model. Try converting the model using `--convert embed`."
        )
    if task in ("classify", "token_classify"):
        raise ValueError(
            "Classification API is not supported by this model. Try converting the model using `--convert classify`."
        )
    raise ValueError(f"Unsupported task: {shown(task)} Supported tasks: {list(supported)}")


def scoring_processor(engine: Any) -> ScoringIOProcessor:
    """The way in which this engine scores. Raises ValueError where it has none, or more than one label."""
    supported = engine.config.supported_tasks
    if "generate" in supported:
        raise ValueError(
            "LLM.score() is only supported for pooling models. Try passing `--runner pooling` to use the model as a "
            "pooling model."
        )
    task = next((task for task in ("embed", "classify", "token_embed") if task in supported), None)
    if task is None:
        raise ValueError("This model does not support the Scoring API.")
    hf = engine.resolved_model.hf_config
    raw = {} if hf is None else hf.raw
    labels = raw.get("num_labels") or len(raw.get("id2label") or ()) or 2
    if task == "classify" and labels != 1:
        raise ValueError("Scoring API is only enabled for num_labels == 1.")
    if engine.tokenizer is None:
        raise ValueError("score needs a tokenizer, and this model has none")
    return PROCESSORS[SCORE_TYPE_MAP[task]](engine.tokenizer, "type_vocab_size" in raw)
