"""LLaVA in a few thousand weights, drawn here: any tower, any language model, and pictures for it."""

import json

import numpy as np

from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint
from mini_vllm.tests.tokenizers.test_tokenizer import simple_spec

IMAGE, VOCAB, ROWS = 99, 100, 16
"""The marker, the size of the vocabulary, and the embeddings of a picture."""

VISION = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
          "num_attention_heads": 4, "image_size": 24, "patch_size": 6}  # fmt: skip
SIGLIP = {**VISION, "model_type": "siglip_vision_model"}
TEXT = {"model_type": "llama", "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 256}  # fmt: skip
QWEN = {**TEXT, "model_type": "qwen2"}
CONFIG = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "image_token_index": IMAGE,
          "text_config": TEXT, "vision_config": VISION}  # fmt: skip
PROCESSORS = {
    "clip_vision_model": {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}},
    "siglip_vision_model": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 24, "width": 24}},
}
RNG = np.random.default_rng(2)
IMAGES = [RNG.integers(0, 256, (*size, 3), dtype=np.uint8) for size in [(24, 24), (50, 30), (31, 90), (24, 24), (7, 9)]]


def save_tiny_llava(folder, seed=0, **config):
    """A folder with config.json, preprocessor_config.json and weights; the projector's biases are there, and matter."""
    save_random_checkpoint(folder, {**CONFIG, **config}, seed=seed, std=0.3)
    (folder / "preprocessor_config.json").write_text(
        json.dumps(PROCESSORS[{**CONFIG, **config}["vision_config"]["model_type"]])
    )
    return folder


def prompt(tokens, *images):
    return {"prompt_token_ids": tokens, "multi_modal_data": {"image": [IMAGES[i] for i in images]}}


PARTS = (
    "{% for m in messages %}[{{ m.role }}] {% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}"
    "{{ part.text }}{% endif %}{% endfor %}{{ '\\n' }}{% endfor %}"
)
TEXTS = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
"""A chat template that takes the parts of a message, and one that takes its text."""


def save_talking_llava(folder, template=PARTS):
    """The same with a tokenizer of bytes, in which the marker is a token, and with a chat template."""
    folder.mkdir(exist_ok=True)
    save_tiny_llava(folder, image_token_index=256, text_config={**TEXT, "vocab_size": 260, "eos_token_id": 257})
    spec = simple_spec([])
    added = enumerate(("<image>", "</s>"), 256)
    spec["added_tokens"] = [{"id": number, "content": text, "special": True} for number, text in added]
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "</s>"}))
    return folder
