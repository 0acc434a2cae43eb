"""LLaVA beside transformers: the picture's pixels, and greedy tokens for one picture and for several."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.needs_torch
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="4.56")
Image = pytest.importorskip("PIL.Image")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from mini_vllm import LLM, SamplingParams  # noqa: E402  # needs torch
from mini_vllm.multimodal.image import to_rgb  # noqa: E402
from mini_vllm.tests.helpers import MODELS  # noqa: E402
from mini_vllm.transformers_utils.processors.clip import CLIPImageProcessor  # noqa: E402

POCKET_VL = MODELS / "pocket-vl"
MARKER, NUM_TOKENS = 99, 16
TEXT: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 24,
    "patch_size": 6,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"text": ("Qwen2Config", {})},
    "tied": {"text": ("LlamaConfig", {"tie_word_embeddings": True}), "more": {"tie_word_embeddings": True}},
    "last layer": {"more": {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}},
    "siglip": {"vision": "SiglipVisionConfig", "more": {"vision_feature_select_strategy": "full"}},
}
RNG = np.random.default_rng(0)
IMAGES = [RNG.integers(0, 256, (*size, 3), dtype=np.uint8) for size in [(24, 24), (50, 30), (31, 90), (7, 5)]]
PROMPTS = [
    ([1, 5, MARKER, 7, 8], [0]),
    ([1, MARKER, MARKER, 4], [1, 2]),
    ([3, MARKER, 5, MARKER, 6, MARKER], [0, 3, 2]),
]


def image_processor(vision: str, size: Any) -> Any:
    """transformers' own, by Pillow."""
    kind = vision.removesuffix("VisionConfig")
    name = f"{kind}ImageProcessor"
    cls = getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)
    square = {"height": size, "width": size}
    return cls(size={"shortest_edge": size}, crop_size=square) if kind == "CLIP" else cls(size=square)


@pytest.mark.parametrize("case", CASES)
def test_the_tokens_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    given = CASES[case]
    kind, sizes = given.get("text", ("LlamaConfig", {}))
    vision = given.get("vision", "CLIPVisionConfig")
    torch.manual_seed(3)
    config = transformers.LlavaConfig(
        vision_config=getattr(transformers, vision)(**VISION), text_config=getattr(transformers, kind)(**TEXT, **sizes),
        image_token_index=MARKER, **given.get("more", {}),
    )  # fmt: skip
    reference = transformers.LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.normal_(0, 0.2 if parameter.dim() > 1 else 0.5)
    reference.save_pretrained(tmp_path)
    processor = image_processor(vision, 24)
    processor.save_pretrained(tmp_path)
    llm = LLM(str(tmp_path), skip_tokenizer_init=True, num_blocks=100)
    prompts = [
        {"prompt_token_ids": tokens, "multi_modal_data": {"image": [IMAGES[i] for i in images]}}
        for tokens, images in PROMPTS
    ]
    no_marker = {MARKER: -1000.0}  # transformers would want a picture for it
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logit_bias=no_marker)
    outputs = llm.generate(prompts, params)
    for (_, images), output in zip(PROMPTS, outputs, strict=True):
        pixels = [processor(Image.fromarray(IMAGES[i]), return_tensors="pt")["pixel_values"][0] for i in images]
        tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        with torch.no_grad():
            logits = reference(input_ids=torch.tensor([tokens]), pixel_values=torch.stack(pixels)).logits[0]
        said = logits[len(output.prompt_token_ids) - 1 : -1]
        said[:, MARKER] = -np.inf
        best = said.topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > 1e-4, "a choice too close to call: take another seed"
        assert said.argmax(-1).tolist() == list(output.outputs[0].token_ids)


@pytest.mark.parametrize("vision", ["CLIPVisionConfig", "SiglipVisionConfig"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "CMYK", "RGBA", "1"])
def test_the_pixels_are_those_of_transformers(vision: str, mode: str, tmp_path: Path) -> None:
    processor = image_processor(vision, 24)
    processor.save_pretrained(tmp_path)
    ours = CLIPImageProcessor.from_folder(tmp_path, 24, "CLIPImageProcessor")
    for pixels in [*IMAGES, RNG.integers(0, 256, (240, 200, 3), dtype=np.uint8)]:
        side = min(pixels.shape[:2])
        pixels = pixels if vision.startswith("CLIP") else pixels[:side, :side]
        image = Image.fromarray(pixels).convert(mode)
        expected = processor(image, return_tensors="np")["pixel_values"][0]
        assert np.abs(ours(to_rgb(image)) - expected).max() < 1e-3


@pytest.mark.skipif(not (POCKET_VL / "model.safetensors").is_file(), reason="models/pocket-vl is not here")
def test_pocket_vl_says_what_it_says_in_transformers() -> None:
    """Through its own tokenizer, template and processor: one picture, two, pictures of other sizes, two questions."""
    from models.training.pocket_vl.conversations import make_chat

    rng = np.random.default_rng(5)
    reference = transformers.LlavaForConditionalGeneration.from_pretrained(POCKET_VL, dtype=torch.float32).eval()
    processor = image_processor("CLIPVisionConfig", 64)
    llm = LLM(str(POCKET_VL), num_blocks=300)
    asked = []
    for count, size in [(1, None), (2, None), (1, (200, 150)), (3, (97, 131)), (1, None)]:
        chat = make_chat(rng, count)
        pictures = [Image.fromarray(each.pixels) for each in chat.pictures]
        images = [each.resize(size) if size else each for each in pictures]
        parts = [{"type": "image_pil", "image_pil": image} for image in images]
        question = chat.messages[0][1].replace("<image>", "").strip()
        asked.append((images, [{"role": "user", "content": [*parts, {"type": "text", "text": question}]}]))
    params = SamplingParams(temperature=0.0, max_tokens=24)
    outputs = llm.chat([messages for _, messages in asked], params, use_tqdm=False)
    for (images, _), output in zip(asked, outputs, strict=True):
        pixels = torch.cat([processor(image, return_tensors="pt")["pixel_values"] for image in images])
        prompt, answer = output.prompt_token_ids, list(output.outputs[0].token_ids)
        with torch.no_grad():
            logits = reference(input_ids=torch.tensor([[*prompt, *answer]]), pixel_values=pixels).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == answer
        assert output.outputs[0].finish_reason == "stop"
