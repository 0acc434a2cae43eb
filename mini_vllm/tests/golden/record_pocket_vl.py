"""Records what real vLLM 0.22.1 answers about 60 pictures, for `models/pocket-vl` in other engines to compare.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_pocket_vl.py

Pictures are not stored: `models.training.pocket_vl.suites.suite(name, n)[-1]` draws them again from their seeds.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from mini_vllm.tests.golden.packed import write_packed
from models.training.pocket_vl.rows import make_encoder
from models.training.pocket_vl.suites import MAKERS, Case, suite

FILE = Path(__file__).resolve().parent / "pocket-vl.json.xz"
FOLDER = "models/pocket-vl"
COUNT, MAX_TOKENS = 60, 80
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}  # fmt: skip


def chosen() -> list[tuple[str, int]]:
    """Suite and number of each case: the kinds in turn."""
    names = list(MAKERS)
    return [(names[i % len(names)], i // len(names)) for i in range(COUNT)]


def prompt(case: Case) -> list[int]:
    """Ids of the prompt, with one `<image>` for each picture: what an engine is given before it makes 64 of each."""
    encode, special = make_encoder(Path(FOLDER))
    (_, text), *more = case.messages
    assert not more
    ask = encode(f"\n{text}")
    return [
        special["<|bos|>"], special["<|user|>"], *ask, special["<|end|>"], *encode("\n"), special["<|assistant|>"],
        *encode("\n"),
    ]  # fmt: skip


def record() -> list[dict[str, Any]]:
    """Greedy answers in float32, with the log-probability of each token."""
    os.environ.update(ENVIRONMENT)
    import vllm.utils.torch_utils as torch_utils
    from PIL import Image
    from vllm import LLM, SamplingParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    torch_utils.async_tensor_h2d.__defaults__ = (False,)
    llm = LLM(
        FOLDER, dtype="float32", enforce_eager=True, max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=1024,
        limit_mm_per_prompt={"image": 3}, distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip
    cases = [suite(name, number + 1)[-1] for name, number in chosen()]
    given: list[dict[str, Any]] = []
    for case in cases:
        given.append({"prompt_token_ids": prompt(case)})
        if case.pictures:
            images = [Image.fromarray(picture.pixels) for picture in case.pictures]
            given[-1]["multi_modal_data"] = {"image": images}
    outputs = llm.generate(given, SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, logprobs=0), use_tqdm=False)
    found = []
    for (name, number), case, asked, output in zip(chosen(), cases, given, outputs, strict=True):
        answer = output.outputs[0]
        assert len(output.prompt_token_ids) == len(asked["prompt_token_ids"]) + 63 * len(case.pictures)
        steps = zip(answer.logprobs, answer.token_ids, strict=True)
        logprobs = [round(step[token].logprob, 5) for step, token in steps]
        found.append({
            "suite": name, "case": number, "prompt_token_ids": asked["prompt_token_ids"],
            "token_ids": list(answer.token_ids), "text": answer.text, "logprobs": logprobs,
        })  # fmt: skip
    return found


def main() -> None:
    """Write the file."""
    provenance = {
        "vllm": "0.22.1", "device": "CPU", "dtype": "float32", "python": platform.python_version(),
        "command": "mini_vllm/tests/golden/record_pocket_vl.py",
    }  # fmt: skip
    kept = {"provenance": provenance, "answers": record()}
    write_packed(FILE, kept)
    print(f"{FILE.name}: {len(kept['answers'])} answers")


if __name__ == "__main__":
    main()
