"""A model that takes pictures, with a processor of its own, from outside: it is known wherever pictures are read and
wherever embeddings are computed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM
from mini_vllm.distributed import shared_memory
from mini_vllm.tests.multimodal.test_llava import GREEDY
from mini_vllm.tests.multimodal.tiny_llava import IMAGE, IMAGES, save_tiny_llava
from mini_vllm.tests.plugins.conftest import Installed
from mini_vllm.tests.plugins.packages import GROUPS, ROOT, install

MIRROR = """
def register():
    from mini_vllm.models.registry import register_model
    register_model("MirrorForConditionalGeneration", "mirror_model:Mirror", media="mirror_model.MirrorConfig")
"""
MODEL = """
from mini_vllm.models.llava import LlavaForConditionalGeneration
from mini_vllm.multimodal.processing.llava import LlavaMultiModalProcessor, LlavaProcessingInfo
from mini_vllm.multimodal.registry import MULTIMODAL_REGISTRY
from mini_vllm.transformers_utils.configs.llava import LlavaConfig

class MirrorConfig(LlavaConfig):
    pass

class MirrorProcessor(LlavaMultiModalProcessor):
    def _process_item(self, modality, item, mm_kwargs):
        return super()._process_item(modality, item[:, ::-1], mm_kwargs)

@MULTIMODAL_REGISTRY.register_processor(MirrorProcessor, info=LlavaProcessingInfo)
class Mirror(LlavaForConditionalGeneration):
    pass
"""
SETTINGS: dict[str, Any] = {"block_size": 4, "num_blocks": 200, "dtype": "float64", "skip_tokenizer_init": True}


def save(folder: Path, architecture: str) -> str:
    """A tiny LLaVA that asks for a model of that name."""
    config = save_tiny_llava(folder) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": [architecture]}))
    return str(folder)


def tokens(folder: str, mirrored: bool = False, **settings: Any) -> list[list[int]]:
    """Greedy tokens of two prompts with pictures."""
    llm = LLM(folder, **SETTINGS, **settings)
    pictures = [np.ascontiguousarray(IMAGES[i][:, ::-1]) if mirrored else IMAGES[i] for i in (0, 3)]
    prompts = [{"prompt_token_ids": [1, 5, IMAGE, 7], "multi_modal_data": {"image": [each]}} for each in pictures]
    try:
        return [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
    finally:
        llm.llm_engine.core_client.shutdown()


def test_its_processor_reads_the_pictures(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = installed(MIRROR, general={"mirror": "register"})
    (folder / "mirror_model.py").write_text(MODEL, encoding="utf-8")
    of_llava = save(tmp_path / "llava", "LlavaForConditionalGeneration")
    plain, mirrored = tokens(of_llava), tokens(of_llava, mirrored=True)
    assert plain != mirrored
    assert tokens(save(tmp_path / "mirror", "MirrorForConditionalGeneration")) == mirrored


PLACES = """
import json, sys
from mini_vllm.tests.plugins.test_media_plugin import tokens
if __name__ == "__main__":
    print(json.dumps([tokens(sys.argv[1]), tokens(sys.argv[1], tensor_parallel_size=2),
                      tokens(sys.argv[1], enable_multiprocessing=True)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank: Linux on x86-64")
def test_it_is_known_in_ranks_and_in_a_core_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    files = {"mirror.py": MIRROR, "mirror_model.py": MODEL, "places.py": PLACES}
    site = install(tmp_path / "site", "mirror", files, {GROUPS["general"]: {"mirror": "mirror:register"}})
    folder = save(tmp_path / "mirror", "MirrorForConditionalGeneration")
    path = os.pathsep.join([str(site), str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, str(site / "places.py"), folder], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    here, ranks, core = json.loads(done.stdout)
    assert here == ranks == core
