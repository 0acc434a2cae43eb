"""Records what transformers and real vLLM 0.22.1 say of the tiny checkpoints of `models/decoder_checkpoints.py`.

Run from the repository root, in either environment; each adds its own part to `decoders.json.xz`:

    python mini_vllm/tests/golden/record_decoders.py transformers
    .venv-vllm/bin/python mini_vllm/tests/golden/record_decoders.py vllm      # one engine a process, for each

Sequences go through transformers padded to 128 tokens on the right, so that rules that look at the length of a sequence
(longrope, dynamic) see one length. Real vLLM is asked where its CPU build computes the architecture in float32.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.tests.golden.packed import read_packed, write_packed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FILE = HERE / "decoders.json.xz"
sys.path.insert(0, str(ROOT))

from mini_vllm.tests.models.decoder_checkpoints import DECODERS, save_decoder  # noqa: E402  # after the path
from mini_vllm.tests.models.tiny_checkpoints import digest  # noqa: E402

LENGTH, NEW = 128, 64
BY_VLLM = ("gemma2", "gemma3", "phi3", "granite", "olmo2", "qwen3-yarn")
"""Not MLA and not attention sinks, which have no CPU backend there; and "dynamic" it does not stretch."""


def prompts() -> list[list[int]]:
    """Six, of 3 to 59 tokens."""
    rng = np.random.default_rng(5)
    return [rng.integers(3, 160, n).tolist() for n in (3, 59, 17, 24, 25, 40)]


def by_transformers(name: str, folder: Path) -> dict[str, Any]:
    """64 greedy tokens of each prompt, and the logits after the second."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    sequences = [list(prompt) for prompt in prompts()]
    logits = torch.zeros(0)
    for step in range(NEW):
        ids = torch.zeros((len(sequences), LENGTH), dtype=torch.long)
        for row, tokens in enumerate(sequences):
            ids[row, : len(tokens)] = torch.tensor(tokens)
        with torch.no_grad():
            logits = model(ids).logits
        if step == 0:
            first = logits[1, len(sequences[1]) - 1].tolist()
        for row, tokens in enumerate(sequences):
            tokens.append(int(logits[row, len(tokens) - 1].argmax()))
    tokens = [found[len(prompt) :] for found, prompt in zip(sequences, prompts(), strict=True)]
    return {"version": transformers.__version__, "tokens": tokens, "logits": [round(x, 6) for x in first]}


def by_vllm(name: str, folder: Path) -> dict[str, Any]:
    """64 greedy tokens of each prompt, and their log-probabilities."""
    import vllm

    llm = vllm.LLM(str(folder), dtype="float32", max_model_len=256, skip_tokenizer_init=True, seed=0,
                   enforce_eager=True, max_num_seqs=8)  # fmt: skip
    params = vllm.SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True, logprobs=2, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts()], params, use_tqdm=False)
    completions = [output.outputs[0] for output in outputs]
    logprobs = [
        [round(step[t].logprob, 5) for t, step in zip(c.token_ids, c.logprobs, strict=True)] for c in completions
    ]
    return {"version": vllm.__version__, "tokens": [list(c.token_ids) for c in completions], "logprobs": logprobs}


def main() -> None:
    """See the top of this file."""
    judge, names = sys.argv[1], sys.argv[2:]
    os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
                       "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                       "TORCHDYNAMO_DISABLE": "1", "VLLM_LOGGING_LEVEL": "WARNING"})  # fmt: skip
    if judge == "vllm" and not names:
        for name in BY_VLLM:
            subprocess.run([sys.executable, __file__, judge, name], check=True, cwd=ROOT)
        return
    golden = read_packed(FILE) if FILE.is_file() else {}
    for name in names or DECODERS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = save_decoder(name, Path(temporary) / name)
            entry = golden.setdefault(name, {})
            entry["checkpoint_sha256"] = digest(folder)
            entry[judge] = (by_transformers if judge == "transformers" else by_vllm)(name, folder)
    write_packed(FILE, golden, sort_keys=True)


if __name__ == "__main__":
    main()
