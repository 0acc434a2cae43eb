"""`quantization_config`, format by format: which keys are used, which are harmless; others are refused.

What the tools that quantize wrote about their own work (calibration, kernels, batch sizes) does not change the weights
that lie there. Upstream has no twin: each of its configs asks for the keys that it knows.
"""

from __future__ import annotations

from mini_vllm.transformers_utils.file_keys import (
    COUNT,
    EMPTY,
    FLAG,
    NULL,
    OBJECT,
    TEXT,
    TEXTS,
    FileKeys,
    Kind,
    one_of,
)
from mini_vllm.utils.checks import is_int

GROUP_SIZE = Kind("a whole number of at least 1, or -1 for a whole row", lambda v: is_int(v) and (v == -1 or v >= 1))
_NAMES = Kind(
    "a list of texts, or of lists of texts",
    lambda value: isinstance(value, list) and all(TEXT.allows(each) or TEXTS.allows(each) for each in value),
)
_BLOCK = Kind(
    "two whole numbers of at least 1",
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(COUNT.allows, value)),
)
_DENSE = Kind("one without targets", lambda value: isinstance(value, dict) and not value.get("targets"))
_WHAT = "quantization_config"
_METHOD = {"quant_method": TEXT}
_OF_CALIBRATION = """
    act_group_aware backend batch_size block_name_to_quantize cache_block_outputs damp_auto_increment damp_percent
    dataset disable_exllama exllama_config hf_device_map hyb_act max_input_length meta model_file_base_name
    model_name_or_path model_seqlen module_name_preceding_first_block mse offload_to_disk offload_to_disk_path
    pad_token_id static_groups tokenizer true_sequential use_cuda_fp16 use_exllama v2"""


def online_keys(name: str, **more: Kind) -> FileKeys:
    """Settings of a format that is made while a float checkpoint is read."""
    return FileKeys(f"{_WHAT} of {name!r}", used={**more, "ignored_layers": TEXTS})


INT4 = online_keys("int4", group_size=GROUP_SIZE)
NF4 = online_keys("nf4", block_size=GROUP_SIZE, double_quant=FLAG)

GPTQ = FileKeys(
    _WHAT,
    used={
        **_METHOD, "bits": one_of(4, 8), "group_size": GROUP_SIZE, "desc_act": FLAG, "sym": FLAG,
        "modules_in_block_to_quantize": _NAMES, "checkpoint_format": one_of("gptq", "gptq_v2"),
        "format": one_of("gptq", "gptq_v2"),
    },
    fixed={
        "lm_head": one_of(False), "dynamic": EMPTY, "pack_dtype": one_of("int32"), "is_marlin_format": one_of(False),
        "rotation": NULL, "adapter": EMPTY,
    },
    harmless=frozenset(_OF_CALIBRATION.split()),
    needed=frozenset({"bits", "group_size", "desc_act", "sym"}),
    because={"lm_head": "it is not supported for gptq", "dynamic": "it is not supported for gptq"},
)  # fmt: skip
"""Upstream: upstream/vllm/model_executor/layers/quantization/auto_gptq.py:193 — `AutoGPTQConfig.from_config`."""

AWQ = FileKeys(
    _WHAT,
    used={
        **_METHOD, "bits": COUNT, "w_bit": COUNT, "group_size": GROUP_SIZE, "q_group_size": GROUP_SIZE,
        "zero_point": FLAG, "modules_to_not_convert": TEXTS,
    },
    fixed={"version": one_of("gemm", "GEMM"), "format": one_of("gemm", "GEMM")},
    harmless=frozenset({"backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse"}),
    needed=frozenset({"zero_point"}),
    because={"version": "it is another order of the codes", "format": "it is another order of the codes"},
)  # fmt: skip
"""Upstream: upstream/vllm/model_executor/layers/quantization/awq.py:88 — `AWQConfig.from_config`."""

FP8 = FileKeys(
    _WHAT,
    used={
        **_METHOD, "activation_scheme": one_of("static", "dynamic"), "weight_block_size": _BLOCK,
        "ignored_layers": TEXTS, "modules_to_not_convert": TEXTS,
    },
    fixed={
        "fmt": one_of("e4m3"), "dequantize": one_of(False), "kv_cache_scheme": EMPTY,
        "scale_fmt": one_of("ue8m0", "float32"),
    },
    because={"kv_cache_scheme": "scales of a KV cache are not read"},
)  # fmt: skip
"""Upstream: upstream/vllm/model_executor/layers/quantization/fp8.py:159 — `Fp8Config.from_config`."""

COMPRESSED_TENSORS = FileKeys(
    _WHAT,
    used={**_METHOD, "config_groups": OBJECT, "format": TEXT, "ignore": TEXTS},
    fixed={
        "sparsity_config": EMPTY | _DENSE, "transform_config": EMPTY, "kv_cache_scheme": EMPTY,
        "quantization_status": one_of("compressed", "frozen"),
    },
    harmless=frozenset({"global_compression_ratio", "run_compressed", "version"}),
    needed=frozenset({"config_groups"}),
    because={
        "quantization_status": "what lies there must be the codes",
        "kv_cache_scheme": "scales of a KV cache are not read", "transform_config": "rotated weights are not read",
    },
)  # fmt: skip
CONFIG_GROUP = FileKeys(
    f"{_WHAT}: a group of config_groups",
    used={"targets": TEXTS, "weights": OBJECT, "input_activations": OBJECT, "format": TEXT},
    fixed={"output_activations": EMPTY},
    needed=frozenset({"targets", "weights"}),
)
QUANTIZATION_ARGS = FileKeys(
    f"{_WHAT}: weights or activations of a group",
    used={
        "num_bits": COUNT, "type": one_of("int", "float"), "symmetric": FLAG, "dynamic": FLAG,
        "strategy": one_of("tensor", "channel", "group", "block", "token"), "group_size": GROUP_SIZE,
        "block_structure": _BLOCK, "actorder": one_of(True, False, "group", "weight", "static", "dynamic"),
    },
    fixed={"scale_dtype": NULL, "is_mx": one_of(False)},
    harmless=frozenset({"observer", "observer_kwargs", "zp_dtype"}),
)  # fmt: skip
"""Upstream: upstream/vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py:271 —
`CompressedTensorsConfig._quantization_scheme_map_from_config`."""
