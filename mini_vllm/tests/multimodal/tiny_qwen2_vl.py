"""Qwen2-VL in a few thousand weights, drawn here, and pictures for it."""

import numpy as np

from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint

IMAGE, VIDEO, VOCAB = 97, 98, 100
"""The markers, and the size of the vocabulary."""

VISION = {"depth": 2, "embed_dim": 32, "hidden_size": 48, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14,
          "spatial_merge_size": 2, "temporal_patch_size": 2, "hidden_act": "quick_gelu"}  # fmt: skip
TEXT = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 2, 3], "rope_theta": 10000.0}}  # fmt: skip
OF_WHOLE = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": 95, "vision_end_token_id": 96}
CONFIG = {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "text_config": TEXT,
          "vision_config": VISION, **OF_WHOLE}  # fmt: skip
AS_ON_THE_HUB = {
    **{key: value for key, value in CONFIG.items() if key != "text_config"},
    **{key: value for key, value in TEXT.items() if key != "rope_parameters"}, "rope_theta": 10000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 3]},
}  # fmt: skip
"""The same in one object."""
RNG = np.random.default_rng(2)
IMAGES = [RNG.integers(0, 256, (*size, 3), dtype=np.uint8) for size in [(56, 56), (100, 50), (31, 140), (7, 9)]]


def save_tiny_qwen2_vl(folder, seed=0, config=CONFIG, **changed):
    """A folder with config.json and weights; what is made of pictures is the family's default."""
    save_random_checkpoint(folder, {**config, **changed}, seed=seed, std=0.3)
    return folder


def prompt(tokens, *images):
    return {"prompt_token_ids": tokens, "multi_modal_data": {"image": [IMAGES[i] for i in images]}}
