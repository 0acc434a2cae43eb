"""What every architecture has in common: the contract that the engine reads, and the weights to be filled.

Upstream twin: `vllm/model_executor/models/interfaces_base.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from mini_vllm.distributed.parallel_state import RankGroup, TensorParallelGroup
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.fused_moe.config import FusedMoEParallelConfig
from mini_vllm.layers.linear_weights import LinearWeights
from mini_vllm.layers.logits import LogitsProcessor
from mini_vllm.layers.quantization.base_config import QuantizationConfig
from mini_vllm.models.utils import is_pp_missing_parameter, span_of_layers
from mini_vllm.parameter import Shard
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array

Attention = Callable[[int, Array, Array, Array], Array]
"""attn(layer_idx, q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq * D]; writes k and v to the KV cache first."""


class CausalLM:
    """The contract of a model here.

    `forward(input_ids [T] int64, positions [T] int64, attn, inputs_embeds [T, H] = None) -> hidden [T, H]`;
    `embed_input_ids(input_ids [T]) -> [T, H]`;
    `compute_logits(hidden [R, H]) -> [R, V]`, called only with the rows to be sampled.
    Subclasses make `model`, which goes from embedded tokens to hidden states, and `lm_head`. Their weights are there
    after `load_model`, which fills what `weights` names.

    Args:
        dtype: "float32" or "float64". quant_config: how projections are stored; None: floats.
        group: the processes that share every layer; None: this one has all of it.
        enable_expert_parallel: with a group, each process has some experts whole instead of a part of each.
        pp: the processes that have one stage of a pipeline each; None: this one has all layers.
        ep: how whole experts are dealt, to the processes of other replicas too; None: in runs, to those of `group`.

    Attributes:
        num_heads, num_kv_heads, num_layers, sliding_windows: of this process. context: what all layers share.

    Upstream: upstream/vllm/model_executor/models/interfaces_base.py:114 — `VllmModelForTextGeneration`.
    """

    model: Any
    lm_head: Any
    use_mla = False
    """The cache holds latents, `head_dim` numbers a token; `attn` takes them for k, and their first part for v."""
    attn_scale: float | None = None
    """Scores are multiplied by it; None: head_dim ** -0.5."""
    logits_soft_cap: float | None = None
    """Attention scores s become cap * tanh(s / cap)."""
    sinks: list[Array] | None = None
    """For each layer a bias for each head: the score of one more key, whose value is zero."""
    is_engines_own = False
    """Nobody but its engine has this model."""

    def __init__(
        self, config: HFConfig, dtype: str = "float32", quant_config: QuantizationConfig | None = None,
        group: TensorParallelGroup | None = None, enable_expert_parallel: bool = False,
        pp: RankGroup | None = None, ep: FusedMoEParallelConfig | None = None,
    ) -> None:  # fmt: skip
        self.config, self.quant_config = config, quant_config
        self.dtype = np.dtype(dtype)
        ep = ep or FusedMoEParallelConfig()
        self.context = ModelContext(self.dtype, quant_config, group, enable_expert_parallel, pp=pp, ep=ep)
        ranks = self.context.tp_size
        self.start_layer, self.end_layer = span_of_layers(self.context, config.num_hidden_layers)
        self.num_layers = self.end_layer - self.start_layer
        self.num_heads = self.context.divide(config.num_attention_heads, "num_heads of the model")
        self.num_kv_heads = max(1, config.num_key_value_heads // ranks)
        self.head_dim = config.head_dim
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_model_len
        self.bos_token_id = config.bos_token_id
        self.eos_token_ids = config.eos_token_ids
        self.sliding_windows = config.sliding_windows[self.start_layer : self.end_layer]
        self.sliding_window = config.sliding_window
        self.logits_processor = LogitsProcessor()

    @property
    def default_sampling_params(self) -> dict[str, Any]:
        """What `generation_config.json` says, under the names of `SamplingParams`.

        Upstream: upstream/vllm/config/model.py:1465 — `ModelConfig.get_diff_sampling_param`.
        """
        defaults = {key: value for key, value in self.config.generation_defaults.items() if value is not None}
        if "max_new_tokens" in defaults:
            defaults["max_tokens"] = defaults.pop("max_new_tokens")
        return defaults

    @property
    def num_parameters(self) -> int:
        """Weights in this process; tied embeddings count once."""
        return sum(layer.size for layer in self.context.layers)

    @property
    def weight_nbytes(self) -> int:
        """Bytes of all weights as this process holds them, scales included; tied embeddings count once."""
        return sum(layer.nbytes for layer in self.context.layers)

    def weights(self) -> Iterator[tuple[str, Any]]:
        """Every tensor of the checkpoint, and what it fills: see `mini_vllm/parameter.py`.

        Upstream: upstream/vllm/model_executor/models/llama.py:436 — `LlamaModel.load_weights`.
        """
        for layer in self.context.layers:
            yield from layer.weights()

    def adapt_to(self, names: set[str]) -> None:
        """Hear which tensors the checkpoint has, where an architecture is stored in more than one layout."""

    def is_ignorable(self, name: str) -> bool:
        """True for a tensor of the checkpoint that is not a weight, or repeats one.

        Some hold tables that we compute: upstream/vllm/model_executor/models/llama.py:448 — "rotary_emb.inv_freq".
        """
        elsewhere = is_pp_missing_parameter(name, self.context)
        return "rotary_emb." in name or elsewhere or self.repeated(name) is not None

    def repeated(self, name: str) -> str | None:
        """The tensor that `name` must be equal to, since both are one array here: a tied output matrix. None: there is
        none.

        Upstream passes over the second one, whatever it holds: upstream/vllm/model_executor/models/llama.py:587 —
        "skip_prefixes=".
        """
        embedding = self.model.embed_tokens
        return f"{embedding.prefix}.weight" if name == "lm_head.weight" and self.lm_head is embedding else None

    def embed_input_ids(self, input_ids: Array) -> Array:
        """Token ids [T] -> [T, H].

        Upstream: upstream/vllm/model_executor/models/llama.py:562 — `LlamaForCausalLM.embed_input_ids`.
        """
        return self.model.embed_tokens(input_ids)

    def forward(self, input_ids: Any, positions: Array, attn: Attention, inputs_embeds: Array | None = None) -> Array:
        """Hidden states after the last norm.

        Args:
            input_ids, positions: [T] int64, the tokens of all requests of the step one after the other.
            attn: see `Attention`.
            inputs_embeds: [T, H], in the place of the embedded ids, which may then be None.

        Returns:
            [T, H]; of a compiled form, valid until its next call.
        """
        hidden = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        return self.model(hidden, positions, attn)

    def compute_logits(self, hidden: Array) -> Array:
        """Hidden rows [R, H] -> logits [R, V].

        Upstream: upstream/vllm/model_executor/models/llama.py:577 — `LlamaForCausalLM.compute_logits`.
        """
        return self.logits_processor(self.lm_head, hidden)


def linears_of(targets: Iterable[Any]) -> list[LinearWeights]:
    """The quantized projections among what `weights` yields, each once."""
    return list(dict.fromkeys(target.linear for target in targets if isinstance(target, Shard)))
