"""The sizes of pocket-vl, the names and shapes of its tensors, and the JSON files of its folder (numpy only).

Names are those of llava-hf/llava-1.5-7b-hf on the hub (`language_model.model.…`, `vision_tower.vision_model.…`), which
transformers and the real vLLM map to their own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from models.training.chat_format import BOS, END, PAD
from models.training.chat_format import SPECIAL_TOKENS as CHAT_TOKENS

IMAGE = "<image>"
SPECIAL_TOKENS = [*CHAT_TOKENS, IMAGE]
TOKEN_NAMES = {"bos_token": BOS, "eos_token": END, "pad_token": PAD}
TOKEN_IDS = {f"{name}_id": SPECIAL_TOKENS.index(token) for name, token in TOKEN_NAMES.items()}
IMAGE_ID = SPECIAL_TOKENS.index(IMAGE)
VOCAB_SIZE = 640
MAX_LENGTH = 1024
IMAGE_SIZE, PATCH = 64, 8
NUM_PATCHES = (IMAGE_SIZE // PATCH) ** 2
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's
DTYPE = "float16"  # more digits for values near 1 than bfloat16

VISION: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_channels": 3,
    "image_size": IMAGE_SIZE,
    "patch_size": PATCH,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "projection_dim": 128,
}
TEXT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "max_position_embeddings": MAX_LENGTH,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    **TOKEN_IDS,
}

# A content is a text, or parts of which each stands on a line: `<image>` for a picture, else its text.
CHAT_TEMPLATE = (
    "{{- '<|bos|>' }}"
    "{%- for message in messages %}"
    "{{- '<|' + message.role + '|>\\n' }}"
    "{%- if message.content is string %}{{- message.content | trim }}"
    "{%- else %}"
    "{%- for content in message.content %}"
    "{%- if not loop.first %}{{- '\\n' }}{%- endif %}"
    "{%- if content.type == 'image' %}{{- '<image>' }}"
    "{%- elif content.type == 'text' %}{{- content.text | trim }}{%- endif %}"
    "{%- endfor %}"
    "{%- endif %}"
    "{{- '<|end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)


def config() -> dict[str, Any]:
    """`config.json`: features of the layer before the last, class token dropped, two-layer projector."""
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_token_index": IMAGE_ID,
        "image_seq_length": NUM_PATCHES,
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": True,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "vision_config": VISION,
        "text_config": {**TEXT, "dtype": DTYPE},
        "tie_word_embeddings": True,
        **TOKEN_IDS,
        "dtype": DTYPE,
        "torch_dtype": DTYPE,
    }


def preprocessor_config() -> dict[str, Any]:
    """CLIP's image processor: shorter side to 64, centre cut out, 0..1, mean and deviation of each colour."""
    return {
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "LlavaProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": IMAGE_SIZE},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(MEAN),
        "image_std": list(STD),
    }


def processor_config() -> dict[str, Any]:
    """What `LlavaProcessor` needs to write as many `<image>` as the tower gives vectors: patches, +1, -1."""
    return {
        "processor_class": "LlavaProcessor",
        "patch_size": PATCH,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
        "image_token": IMAGE,
    }


def tokenizer_config() -> dict[str, Any]:
    """`tokenizer_config.json`; the template has a file of its own, where a processor looks for it."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": "LlavaProcessor",
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        **TOKEN_NAMES,
        "image_token": IMAGE,
    }


def write_settings(folder: Path) -> None:
    """Every file of the folder but the weights, `tokenizer.json` and the card."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": config(),
        "generation_config.json": {**TOKEN_IDS, "do_sample": False},
        "preprocessor_config.json": preprocessor_config(),
        "processor_config.json": processor_config(),
        "tokenizer_config.json": tokenizer_config(),
        "special_tokens_map.json": TOKEN_NAMES,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint by name, 1,918,464 numbers in all."""
    return {**_vision_shapes(), **_projector_shapes(), **_text_shapes()}


def _vision_shapes() -> dict[str, tuple[int, ...]]:
    width, inner, prefix = VISION["hidden_size"], VISION["intermediate_size"], "vision_tower.vision_model."
    found: dict[str, tuple[int, ...]] = {
        "embeddings.class_embedding": (width,),
        "embeddings.patch_embedding.weight": (width, VISION["num_channels"], PATCH, PATCH),
        "embeddings.position_embedding.weight": (NUM_PATCHES + 1, width),
        **_affine("pre_layrnorm", (width,)),
        **_affine("post_layernorm", (width,)),
    }
    for i in range(VISION["num_hidden_layers"]):
        layer = f"encoder.layers.{i}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            found |= _affine(f"{layer}self_attn.{name}", (width, width))
        found |= _affine(f"{layer}layer_norm1", (width,)) | _affine(f"{layer}layer_norm2", (width,))
        found |= _affine(f"{layer}mlp.fc1", (inner, width)) | _affine(f"{layer}mlp.fc2", (width, inner))
    return {prefix + name: shape for name, shape in found.items()}


def _projector_shapes() -> dict[str, tuple[int, ...]]:
    width, text = VISION["hidden_size"], TEXT["hidden_size"]
    first = _affine("multi_modal_projector.linear_1", (text, width))
    return first | _affine("multi_modal_projector.linear_2", (text, text))


def _text_shapes() -> dict[str, tuple[int, ...]]:
    width, inner, prefix = TEXT["hidden_size"], TEXT["intermediate_size"], "language_model.model."
    queries = TEXT["num_attention_heads"] * TEXT["head_dim"]
    keys = TEXT["num_key_value_heads"] * TEXT["head_dim"]
    found: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (VOCAB_SIZE, width), "norm.weight": (width,)}
    for i in range(TEXT["num_hidden_layers"]):
        found |= {
            f"layers.{i}.{name}.weight": shape
            for name, shape in {
                "self_attn.q_proj": (queries, width),
                "self_attn.k_proj": (keys, width),
                "self_attn.v_proj": (keys, width),
                "self_attn.o_proj": (width, queries),
                "mlp.gate_proj": (inner, width),
                "mlp.up_proj": (inner, width),
                "mlp.down_proj": (width, inner),
                "input_layernorm": (width,),
                "post_attention_layernorm": (width,),
            }.items()
        }
    return {prefix + name: shape for name, shape in found.items()}


def _affine(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
