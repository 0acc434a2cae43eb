"""Records structured outputs of the real vLLM v0.22.1 on models/pocket, and masks of xgrammar.

Run where the real release is installed (`course vllm`), from the root of the repository:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_structured_outputs.py

structured-outputs.json.xz: greedy tokens for every request and prompt of `structured_output_cases.py`.
structured-output-masks.json.xz: for every schema, regex and grammar there, random legal paths of tokens; at each step
how many tokens xgrammar allows, a hash of its mask, and where ours differed when this was recorded: the differing ids.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import random
from pathlib import Path

import numpy as np

from mini_vllm.tests.golden.packed import write_packed

SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def record_answers():
    """The real engine's greedy tokens."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    from mini_vllm.tests.golden.structured_output_cases import MAX_TOKENS, PROMPTS, REQUESTS

    llm = LLM(
        str(ROOT / "models/pocket"), dtype="float32", enforce_eager=True, max_model_len=512, block_size=16,
        max_num_seqs=32, max_num_batched_tokens=512, seed=0,
    )  # fmt: skip
    answers = []
    for request in REQUESTS:
        params = SamplingParams(
            temperature=0.0, max_tokens=MAX_TOKENS, logprobs=2, structured_outputs=StructuredOutputsParams(**request)
        )
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        answers.append([_answer(output.outputs[0]) for output in outputs])
    return answers


def _answer(completion):
    gaps = []
    for entry in completion.logprobs:
        first, second = [*sorted((e.logprob for e in entry.values()), reverse=True), -1e9][:2]
        gaps.append(round(min(first - second, 99.0), 6))
    return {
        "token_ids": list(completion.token_ids), "text": completion.text, "finish_reason": completion.finish_reason,
        "gaps": gaps,
    }  # fmt: skip


def record_masks(paths=3, steps=40):
    """xgrammar's masks along random paths that it allows itself."""
    from mini_vllm.config.structured_outputs import StructuredOutputsConfig
    from mini_vllm.structured_output.backend_mini import MiniBackend
    from mini_vllm.structured_output.backend_types import StructuredOutputOptions
    from mini_vllm.structured_output.backend_xgrammar import XgrammarBackend
    from mini_vllm.tests.golden.structured_output_cases import MASKS
    from mini_vllm.tests.structured_output.drive import pocket_vocabulary

    vocabulary, config = pocket_vocabulary(), StructuredOutputsConfig()
    theirs, ours = XgrammarBackend(config, vocabulary), MiniBackend(config, vocabulary)
    recorded = []
    for number, (kind, spec) in enumerate(MASKS):
        text = spec if isinstance(spec, str) else json.dumps(spec)
        pair = [b.compile_grammar(StructuredOutputOptions[kind], text) for b in (theirs, ours)]
        rng = random.Random(number)
        recorded.append([walk(pair, theirs, rng, steps) for _ in range(paths)])
    return recorded


def walk(pair, backend, rng, steps):
    """[token, how many xgrammar allows, hash, ids that it alone allows, ids that ours alone allows], step by step."""
    theirs, ours = pair
    theirs.reset()
    ours.reset()
    found = []
    for step in range(steps):
        masks = [bits(grammar, backend) for grammar in pair]
        legal = np.flatnonzero(masks[0] & masks[1])
        stop = backend.vocabulary.stop_token_ids[0]
        token = stop if step > steps // 2 and masks[0][stop] else int(rng.choice(legal.tolist()))
        differ = [np.flatnonzero(masks[0] & ~masks[1]).tolist(), np.flatnonzero(masks[1] & ~masks[0]).tolist()]
        found.append([token, int(masks[0].sum()), digest(masks[0]), *differ])
        assert theirs.accept_tokens("", [token]) and ours.accept_tokens("", [token])
        if token == stop:
            break
    return found


def bits(grammar, backend):
    """bool[vocab]."""
    rows = backend.allocate_token_bitmask(1)
    grammar.fill_bitmask(rows, 0)
    size = backend.vocabulary.vocab_size
    return np.unpackbits(rows[0].view(np.uint8), count=size, bitorder="little").astype(bool)


def digest(mask):
    """The first 12 hexadecimal digits of SHA-256."""
    return hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()[:12]


def main():
    os.environ.update(SETTINGS)
    names = ("vllm", "xgrammar", "torch", "numpy")
    provenance = {
        "recorder": "mini_vllm/tests/golden/record_structured_outputs.py",
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}, CPU",
        **{name: importlib.metadata.version(name) for name in names},
    }
    masks = {"provenance": provenance, "masks": record_masks()}
    write_packed(HERE / "structured-output-masks.json.xz", masks)
    answers = {"provenance": provenance, "answers": record_answers()}
    write_packed(HERE / "structured-outputs.json.xz", answers)


if __name__ == "__main__":
    main()
