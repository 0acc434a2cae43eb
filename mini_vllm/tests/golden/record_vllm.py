"""Records what real vLLM 0.22.1 answers, for `test_golden_vllm.py` to replay.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    .venv-vllm/bin/python mini_vllm/tests/golden/record_vllm.py            # the tiny checkpoints
    .venv-vllm/bin/python mini_vllm/tests/golden/record_vllm.py pocket     # a committed one (or pocket-moe)

One engine a process: each checkpoint is recorded in a child.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mini_vllm.tests.golden.packed import write_packed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def _module(path: Path) -> Any:
    """Import one file; the package itself is not needed in vLLM's environment."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _answers(llm: Any, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from vllm import SamplingParams

    prompts = []
    for item in items:
        if "messages" in item:
            tokenizer = llm.get_tokenizer()
            text = tokenizer.apply_chat_template(item["messages"], tokenize=False, add_generation_prompt=True)
            item["prompt_token_ids"] = tokenizer.encode(text, add_special_tokens=False)
        prompts.append({"prompt_token_ids": item["prompt_token_ids"]})
    outputs = llm.generate(prompts, [SamplingParams(**item["params"]) for item in items], use_tqdm=False)
    answers = []
    for item, output in zip(items, outputs, strict=True):
        [completion] = output.outputs
        answers.append(
            {
                **item,
                "token_ids": list(completion.token_ids),
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "stop_reason": completion.stop_reason,
                "logprobs": [
                    {str(t): [round(lp.logprob, 6), lp.rank] for t, lp in step.items()} for step in completion.logprobs
                ],
            }
        )
    return answers


def _let_experts_compute_in_float32() -> str:
    """On processors with AMX the pinned release takes a path for float32 experts that fails: it makes the activation
    anew in each call, where no config is set. The function behind it is put there instead; the arithmetic is the same.

    Upstream: upstream/vllm/model_executor/layers/fused_moe/cpu_fused_moe.py:52 — "_CPU_MOE_ACT_FN".
    """
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    cpu_fused_moe._CPU_MOE_ACT_FN[MoEActivation.SILU] = SiluAndMul.forward_native
    return "_CPU_MOE_ACT_FN[SILU] is SiluAndMul.forward_native"


def record(name: str) -> None:
    """Record one checkpoint into `vllm-NAME.json.xz`."""
    import torch
    import transformers
    import vllm
    from vllm import LLM
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    workload, tiny = _module(HERE / "workload.py"), _module(HERE.parent / "models" / "tiny_checkpoints.py")
    with tempfile.TemporaryDirectory() as scratch:
        pocket = name in ("pocket", "pocket-moe")
        folder = ROOT / "models" / name if pocket else tiny.save_tiny(name, Path(scratch) / name)
        patch = _let_experts_compute_in_float32() if name in ("mixtral", "qwen3-moe", "pocket-moe") else None
        extra = {} if pocket else {"skip_tokenizer_init": True}
        max_model_len = 512 if pocket else tiny.FAMILIES[name]["max_position_embeddings"]
        llm = LLM(
            str(folder),
            dtype="float32",
            enforce_eager=True,
            max_model_len=max_model_len,
            seed=0,
            distributed_executor_backend=UniProcExecutor,
            **workload.ENGINE_ARGS,
            **extra,
        )
        items = workload.text_workload() if pocket else workload.token_workload(tiny.VOCAB)
        if not pocket:
            for item in items:
                item["params"]["detokenize"] = False
        document = {
            "provenance": {
                "vllm": vllm.__version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "python": platform.python_version(),
                "machine": f"{platform.machine()}, CPU, float32, eager",
                "command": f"record_vllm.py {name}",
                "checkpoint_sha256": tiny.digest(folder),
                **({"patch": patch} if patch else {}),
            },
            "engine_args": {**workload.ENGINE_ARGS, "max_model_len": max_model_len},
            "answers": _answers(llm, items),
        }
    target = HERE / f"vllm-{name}.json.xz"
    size = write_packed(target, document)
    reasons = [answer["finish_reason"] for answer in document["answers"]]
    print(f"{target.name}: {len(reasons)} answers, { ({r: reasons.count(r) for r in set(reasons)}) }, {size} bytes")


def main() -> None:
    names = sys.argv[1:] or list(_module(HERE.parent / "models" / "tiny_checkpoints.py").FAMILIES)
    if len(names) == 1:
        os.environ.update(ENVIRONMENT)
        record(names[0])
        return
    for name in names:
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
