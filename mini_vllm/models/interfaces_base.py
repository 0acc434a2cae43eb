"""What every architecture has in common: the attributes that the engine reads, and arrays to be filled.

Upstream twin: `vllm/model_executor/models/interfaces_base.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.layers.linear import Linear, Shard, UnquantizedLinearMethod
from mini_vllm.layers.logits import logits_of
from mini_vllm.layers.quantization.base_config import QuantizationConfig
from mini_vllm.platforms.cpu.memory import aligned_empty
from mini_vllm.platforms.cpu.workspace import Workspace
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array

Attention = Callable[[int, Array, Array, Array], Array]
"""attn(layer_idx, q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq * D]; writes k and v to the KV cache first."""

_SLAB_BYTES = 1 << 24


class CausalLM:
    """The contract of a model here.

    `forward(input_ids [T] int64, positions [T] int64, attn) -> hidden [T, H]`;
    `compute_logits(hidden [R, H]) -> [R, V]`, called only with the rows to be sampled.
    Subclasses allocate their arrays in `__init__` and name them in `weights`; `load_model` fills them once.
    Upstream: upstream/vllm/model_executor/models/interfaces_base.py:114 — `VllmModelForTextGeneration`.
    """

    lm_head: Array
    embed: Array
    max_partial_sum = 0
    """Elements of the largest partial sum that ranks of tensor parallelism exchange; 0: the model cannot be shared."""
    is_engines_own = False
    """Nobody but its engine has this model, so that the shards may take over its memory."""

    def __init__(
        self, config: HFConfig, dtype: str = "float32", quant_config: QuantizationConfig | None = None
    ) -> None:
        self.config, self.quant_config = config, quant_config
        self.dtype = np.dtype(dtype)
        self.num_layers = config.num_hidden_layers
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_model_len
        self.bos_token_id = config.bos_token_id
        self.eos_token_ids = config.eos_token_ids
        self.sliding_windows = config.sliding_windows
        self.sliding_window = config.sliding_window
        self.rank = 0
        self._workspace = Workspace(self.dtype)
        self._slab = np.empty(0, self.dtype)
        self._sizes: tuple[int, int] | None = None

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
        """Weights in all; tied embeddings count once."""
        return self._sizes[0] if self._sizes else sum(array.size for _, array in self.weights())

    def _new(self, *shape: int) -> Array:
        """An array to be filled. Small ones are cut from a common slab, which the system backs with large pages."""
        size = math.prod(shape)
        if size * self.dtype.itemsize > _SLAB_BYTES // 4:
            return aligned_empty(shape, self.dtype)
        if len(self._slab) < size:
            self._slab = aligned_empty((_SLAB_BYTES // self.dtype.itemsize,), self.dtype)
        array, self._slab = self._slab[:size].reshape(shape), self._slab[-(-size // 16) * 16 :]
        return array

    def _new_linear(self, prefix: str, in_features: int, *partitions: int) -> Any:
        """A projection [sum(partitions), in_features]: an array, or a `Linear` where the weights are quantized.

        Args:
            prefix: its name, e.g. "model.layers.0.self_attn.qkv_proj".
            partitions: rows of each of the checkpoint's tensors that are stacked in it.
        """
        rows = sum(partitions)
        if self.quant_config is None:
            return self._new(rows, in_features)
        linear = Linear(in_features, rows, self.quant_config, prefix, partitions=list(partitions), dtype=self.dtype)
        return linear.weight if isinstance(linear.quant_method, UnquantizedLinearMethod) else linear

    @property
    def weight_nbytes(self) -> int:
        """Bytes of all weights as they are held in memory, scales included; tied embeddings count once."""
        if self._sizes:
            return self._sizes[1]
        targets = [dest for _, dest in self.weights()]
        arrays = sum(dest.nbytes for dest in targets if isinstance(dest, np.ndarray))
        return arrays + sum(linear.nbytes for linear in linears_of(targets))

    def weights(self) -> Iterator[tuple[str, Any]]:
        """Every tensor of the checkpoint, and what it fills: (part of) an array, or a `Shard` of a `Linear`."""
        raise NotImplementedError

    def adapt_to(self, names: set[str]) -> None:
        """Hear which tensors the checkpoint has, where an architecture is stored in more than one layout."""

    def is_ignorable(self, name: str) -> bool:
        """True for a tensor of the checkpoint that is not a weight, or repeats one."""
        return name == "lm_head.weight" and self.lm_head is self.embed

    def forward(self, input_ids: Array, positions: Array, attn: Attention) -> Array:
        """Hidden states after the last norm: a view of scratch memory, valid until the next call."""
        raise NotImplementedError

    def remember_sizes(self) -> None:
        """Keep `num_parameters` and `weight_nbytes` as they are, whatever becomes of the arrays."""
        self._sizes = self.num_parameters, self.weight_nbytes

    def shards(self, group: TensorParallelGroup) -> Sequence[CausalLM]:
        """The part of this model that each rank of tensor parallelism computes."""
        raise ValueError(f"tensor_parallel_size must be 1 for {type(self).__name__}, got {group.world_size}")

    def compute_logits(self, hidden: Array, out: Array | None = None) -> Array:
        """Hidden rows [R, H] -> logits [R, V], into `out` if given; on a rank V is its share of the vocabulary."""
        return logits_of(hidden, self.lm_head, out)


def linears_of(targets: Iterable[Any]) -> list[Linear]:
    """The quantized projections among what `weights` yields, each once."""
    return list(dict.fromkeys(target.linear for target in targets if isinstance(target, Shard)))
