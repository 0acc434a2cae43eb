"""Qwen2-VL in a few thousand weights, drawn here, and pictures and films for it."""

import json

import numpy as np

from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint
from mini_vllm.tests.tokenizers.test_tokenizer import simple_spec

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
FILMS = [
    (RNG.integers(0, 90, (*size, 3)) + 40 * np.arange(size[0])[:, None, None, None]).astype(np.uint8)
    for size in [(5, 56, 84), (2, 30, 60), (1, 56, 56)]
]
"""Brighter from frame to frame."""
OF_FILMS = {"video_processor_type": "Qwen2VLVideoProcessor", "size": {"shortest_edge": 784, "longest_edge": 784 * 4}}


def save_tiny_qwen2_vl(folder, seed=0, config=CONFIG, **changed):
    """A folder with config.json and weights; what is made of pictures is the family's default, films are smaller."""
    save_random_checkpoint(folder, {**config, **changed}, seed=seed, std=0.3)
    (folder / "video_preprocessor_config.json").write_text(json.dumps(OF_FILMS))
    return folder


TALKS = (
    "{% for m in messages %}[{{ m.role }}] {% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% else %}<|vision_start|><|{{ part.type }}_pad|><|vision_end|>{% endif %}{% endfor %}{{ '\n' }}{% endfor %}"
)


def save_talking_qwen2_vl(folder):
    """The same with a tokenizer of bytes, in which the markers are tokens, and with a chat template."""
    added = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "</s>"]
    ids = {name: 256 + index for index, name in enumerate(added)}
    text = {**TEXT, "vocab_size": 264, "eos_token_id": ids["</s>"], "max_position_embeddings": 512}
    markers = {"image_token_id": 256, "video_token_id": 257, "vision_start_token_id": 258, "vision_end_token_id": 259}
    save_tiny_qwen2_vl(folder, text_config=text, **markers)
    spec = simple_spec([])
    spec["added_tokens"] = [{"id": number, "content": name, "special": True} for name, number in ids.items()]
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TALKS, "eos_token": "</s>"}))
    return folder


def prompt(tokens, *images, films=()):
    data = {"image": [IMAGES[i] for i in images], "video": [FILMS[i] for i in films]}
    return {"prompt_token_ids": tokens, "multi_modal_data": {name: items for name, items in data.items() if items}}
