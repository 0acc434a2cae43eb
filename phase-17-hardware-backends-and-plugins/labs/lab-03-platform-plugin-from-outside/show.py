"""Your wheel on the path, and pocket served on what it brings; or with LAB_IMPL=solution the reference's. Given
material."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402

given = load(HERE / "given.py")


def show(lab: ModuleType, prompt: str = "What is a KV block?", max_tokens: int = 12) -> str:
    """What came from where, the text, and the bytes that crossed for it."""
    from mini_vllm import LLM, SamplingParams

    given.forget()
    allowed = mock.patch.dict(os.environ, {"MINI_VLLM_PLUGINS": "ref64"})
    with allowed, tempfile.TemporaryDirectory() as folder, given.on_the_path(Path(folder)):
        given.install_lab(Path(folder), lab)
        llm = LLM(given.POCKET, gpu_memory_utilization=0.5)
        core = llm.llm_engine.engine_core
        if core.config.device != "ref64":
            return f"platform {core.config.device}: the wheel's register named no class; the warning says why"
        device: Any = core.config.platform.device
        lines = [f"platform {core.config.device} (from a wheel, outside)"]
        lines.append(f"weights          {device.h2d:12,} bytes to the device")
        blocks = core.kv_cache_manager.block_pool.num_gpu_blocks
        lines.append(f"keys and values  {core.model_runner.kv_cache.nbytes:12,} bytes of the device, {blocks} blocks")
        before = device.h2d
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        output = llm.generate(prompt, params, use_tqdm=False)[0]
        lines.append(f"{len(output.prompt_token_ids)} tokens in, {max_tokens} out: {output.outputs[0].text!r}")
        lines.append(f"steps            {device.h2d - before:12,} bytes to the device, {device.d2h:,} back")
        lines.append(
            f"a token          {device.d2h // max_tokens:12,} bytes back: {core.model_runner.model.vocab_size} logits"
        )
        llm.llm_engine.shutdown()
        lines.append(f"after shutdown   {device.live:12,} bytes on the device, {device.peak:,} at most")
    given.forget()
    return "\n".join(lines)


if __name__ == "__main__":
    print(show(load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")))
