"""What real vLLM 0.22.1 pooled on the same tiny weights and prompts (`golden/record_pooling.py`)."""

from pathlib import Path

import numpy as np
import pytest

from mini_vllm import LLM, PoolingParams
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.models.pooling_checkpoints import FAMILIES, engine_args, prompts, save_family

GOLDEN = read_packed(Path(__file__).parents[1] / "golden" / "pooling.json.xz")


@pytest.mark.parametrize("family", GOLDEN["families"])
def test_equal_to_vllm(family, tmp_path):
    recorded = GOLDEN["families"][family]
    llm = LLM(str(save_family(family, tmp_path)), **engine_args(family))
    if "modernbert" in family:  # the pinned release's CPU backend passes over the window of an encoder
        attention = llm.llm_engine.engine_core.model_runner.attention
        attention.sliding_windows = [None] * len(attention.sliding_windows)
    params = PoolingParams(step_tag_id=7) if "process" in family else None
    outputs = llm.encode(prompts(), params, pooling_task=recorded["task"], use_tqdm=False)
    assert len(outputs) == len(recorded["data"])
    for output, want in zip(outputs, recorded["data"], strict=True):
        # upstream keeps ModernBERT's angles in float16: models/modernbert.py, "dtype=torch.float16"
        np.testing.assert_allclose(output.outputs.data, want, atol=5e-4 if "modernbert" in family else 2e-5)


def test_every_family_was_tried():
    assert set(GOLDEN["families"]) | set(GOLDEN["failed"]) == set(FAMILIES)
