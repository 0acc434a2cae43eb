"""The KV kernel of the pinned release, run in Triton's interpreter: int8 codes are cut off, not rounded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mini_vllm.kernels.interpreter import triton_or_skip

SOURCE = Path(__file__).parents[1] / "upstream/vllm/v1/attention/ops/triton_reshape_and_cache_flash.py"
TOKENS, HEADS, DIM, BLOCK = 32, 2, 64, 16


def load_kernel(folder: Path) -> ModuleType:
    """`_reshape_cache_per_token_head` alone, cut out of its file, which imports all of vLLM."""
    text = SOURCE.read_text(encoding="utf-8")
    first = text.index("@triton.jit\ndef _reshape_cache_per_token_head(")
    last = text.index("# Mapping from cache torch dtype", first)
    path = folder / "pinned_kernel.py"
    path.write_text(f"import triton\nimport triton.language as tl\n\n\n{text[first:last]}", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("pinned_kernel", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.needs_torch
def test_int8_codes_are_cut_off(tmp_path: Path) -> None:
    triton_or_skip()
    if not SOURCE.is_file():
        pytest.skip("needs the pinned source: run `course upstream`")
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    kernel = load_kernel(tmp_path)._reshape_cache_per_token_head
    key = torch.randn(TOKENS, HEADS, DIM, generator=torch.Generator().manual_seed(0)).to(device)
    cache = [torch.zeros(4, BLOCK, HEADS, DIM, dtype=torch.int8, device=device) for _ in "kv"]
    scale_cache = [torch.zeros(4, BLOCK, HEADS, device=device) for _ in "kv"]
    strides = [*key.stride()[:2]] * 2 + [s for t in (*cache, *scale_cache) for s in t.stride()[:3]]
    slots = torch.arange(TOKENS, device=device)
    kernel[(TOKENS, HEADS)](
        key, key, *cache, *scale_cache, slots, *strides,
        block_size=BLOCK, head_size=DIM, head_size_v=DIM, HEAD_SIZE_PADDED=DIM,
    )  # fmt: skip
    codes = cache[0].view(-1, HEADS, DIM)[:TOKENS].float()
    scales = scale_cache[0].view(-1, HEADS)[:TOKENS, :, None]
    scaled = key * (1.0 / scales)
    assert torch.equal(codes, scaled.trunc()) and not torch.equal(codes, scaled.round())

    def error(each: torch.Tensor) -> float:
        return float((each * scales - key).norm() / key.norm())

    assert 1.8 < error(codes) / error(scaled.round()) < 2.2
    assert 0.98 < float((codes * scales).abs().sum() / key.abs().sum()) < 0.99, "towards zero, by 1.3 percent"
