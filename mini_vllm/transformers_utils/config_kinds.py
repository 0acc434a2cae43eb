"""What each key of `config.json` must be, whatever the architecture: a key means one thing in all of them.

Upstream twin: the typed configs of transformers, which refuse what is of another type.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.transformers_utils.config_keys import IGNORABLE, READ_BY_POOLERS, KeyTable
from mini_vllm.transformers_utils.file_keys import (
    ANYTHING,
    COUNT,
    FLAG,
    NULL,
    OBJECT,
    POSITIVE,
    TEXT,
    TEXTS,
    WHOLE,
    WHOLES,
    Kind,
    one_of,
)
from mini_vllm.utils.checks import is_int, is_real, shown

MAX_SIZE = 1 << 24
"""Larger numbers are damage: they are refused before a list of that length, or an array, is made."""
SIZE = Kind(f"a whole number of at least 1 and at most {MAX_SIZE:,}", lambda v: is_int(v) and 1 <= v <= MAX_SIZE)
_SOFT_CAP = Kind(f"a number above 0 and at most {MAX_SIZE:,}", lambda v: is_real(v) and 0 < v < MAX_SIZE)
_NOT_NEGATIVE = Kind("a whole number of at least 0", lambda v: is_int(v) and 0 <= v <= MAX_SIZE)
_IDS = Kind("a token id or a list of them", (WHOLE | WHOLES | NULL).allows)
_STORED = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "double", "float", "half")
_DTYPE = Kind(
    "one of " + ", ".join(_STORED), lambda v: isinstance(v, str) and v.removeprefix("torch.") in _STORED
)  # fmt: skip

_BY_KIND: dict[Kind, str] = {
    COUNT: """vocab_size hidden_size num_hidden_layers num_attention_heads max_position_embeddings intermediate_size
        ffn_dim word_embed_proj_dim num_local_experts num_experts num_experts_per_tok moe_intermediate_size
        decoder_sparse_step n_routed_experts local_attention global_attn_every_n_layers type_vocab_size kv_lora_rank
        qk_nope_head_dim qk_rope_head_dim v_head_dim original_max_position_embeddings""",
    COUNT | NULL: """num_key_value_heads head_dim sliding_window sliding_window_pattern q_lora_rank n_group topk_group
        colbert_dim dim projection_dim num_labels""",
    _NOT_NEGATIVE: "max_window_layers first_k_dense_replace",
    SIZE: "n_shared_experts",
    FLAG: """tie_word_embeddings attention_bias mlp_bias norm_bias classifier_bias enable_bias do_layer_norm_before
        use_sliding_window norm_topk_prob""",
    FLAG | NULL: "is_matryoshka",
    POSITIVE: """rms_norm_eps layer_norm_eps norm_eps rope_local_base_freq global_rope_theta local_rope_theta""",
    POSITIVE | NULL: "rope_theta partial_rotary_factor",
    _SOFT_CAP: """query_pre_attn_scalar swiglu_limit swiglu_alpha embedding_multiplier attention_multiplier
        residual_multiplier logits_scaling routed_scaling_factor""",
    _SOFT_CAP | NULL: "attn_logit_softcapping final_logit_softcapping",
    TEXT: "hidden_act topk_method",
    one_of("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"): "classifier_activation",
    one_of("cls", "mean"): "classifier_pooling",
    TEXTS | NULL: "layer_types",
    WHOLES | NULL: "mlp_only_layers matryoshka_dimensions",
    OBJECT | NULL: "rope_scaling rope_parameters id2label sentence_transformers quantization_config compression_config",
    TEXT | NULL: "sbert_ce_default_activation_function",
    one_of("regression", "single_label_classification", "multi_label_classification", None): "problem_type",
    _DTYPE | NULL: "dtype torch_dtype",
    _IDS: "bos_token_id eos_token_id",
}  # fmt: skip
KINDS: dict[str, Kind] = {key: kind for kind, keys in _BY_KIND.items() for key in keys.split()}
ALWAYS_READ = {"dtype", "torch_dtype", "bos_token_id", "eos_token_id", "quantization_config", "compression_config"}
"""Keys of every architecture that are read, beside those of its table."""


def check_keys(raw: dict[str, Any], table: KeyTable, architecture: str, error: type[ValueError]) -> None:
    """Each key is used and of its kind, fixed to certain values, inert, or an error that names it."""
    for key, value in raw.items():
        if key in table.used or key in table.own or key in ALWAYS_READ or key in READ_BY_POOLERS:
            kind = KINDS.get(key, ANYTHING)
            if not kind.allows(value) and (key not in table.own or kind.allows(table.own[key])):
                raise error(f"config.json: {key} must be {kind.said}, got {shown(value)}")
        elif key in table.fixed:
            if value is not None and not _is_among(value, table.fixed[key]):
                allowed = " or ".join(repr(v) for v in table.fixed[key])
                raise error(f"config.json: {key} = {value!r} is not supported for {architecture}; allowed: {allowed}")
        elif key not in IGNORABLE and key not in table.ignorable and value is not None:
            raise error(f"config.json: unknown key {key!r} = {value!r}: it could change what {architecture} computes")


def _is_among(value: Any, allowed: tuple[Any, ...]) -> bool:
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in allowed)
