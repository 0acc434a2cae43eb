"""Steps of an 8-billion-parameter model with and without drafts, on real vLLM 0.22.1 and one GPU. Given: nothing to
edit here.

    python measure.py --out FOLDER [--only ARM ...]        ten minutes; a line a figure in FOLDER/gpu.jsonl

The weights are random and the shapes are true: Llama-3.1-8B, and the EAGLE-3 head that belongs to it. Random weights
say nothing, so acceptance is given instead (`rejection_sample_method="synthetic"`): a step costs the same whatever it
says. The rates are set between rows, in the sampler's own tensor, so that an engine starts once for each arm.

Arms
    none        no drafts
    none-sync   the same without async scheduling, as engines run whose drafts are made on the CPU
    eagle3-k3   three drafts from the head, one after the other
    eagle3-k5   five
    free-k3     three drafts that cost nothing (`Parrot`): what judging costs, without making

A row: all requests of a batch decode; some steps pass, then three times STEPS steps are timed. Each arm has a process
of its own. `--tiny` runs the same logic with small shapes on a CPU, where this release refuses synthetic acceptance.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: its steps can be counted
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
PUBLISHED = [0.7296, 0.5208, 0.3545]
"""On MT-Bench: upstream/tests/v1/spec_decode/test_acceptance_length.py:53 — "lengths_per_pos=[0.7296, 0.5208"."""
BATCHES, STEPS, WARM, VOCAB = (1, 8, 32, 128, 256), 30, 10, 128256
GRAPHS = [
    1,
    2,
    4,
    6,
    8,
    16,
    24,
    32,
    48,
    64,
    128,
    192,
    256,
    384,
    512,
]  # a third of the default ones: all that BATCHES need
ARMS = ("none", "eagle3-k3", "free-k3", "none-sync", "eagle3-k5")
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "vocab_size": VOCAB, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 128000,
    "eos_token_id": 128009,
}  # fmt: skip
HEAD = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32000}
TINY = {
    "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32,
    "vocab_size": 512, "max_position_embeddings": 2048, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


class Parrot:
    """A proposer that costs nothing: the last token, k times. `method="custom_class"` finds it by its path."""

    def __init__(self, vllm_config: Any) -> None:
        self.k = vllm_config.speculative_config.num_speculative_tokens

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        return [ids[-1:] * self.k for ids in sampled_token_ids]

    def load_model(self, target: Any) -> None:
        """Nothing to load; the CPU's runner asks all the same."""


def folders(where: Path, tiny: bool) -> tuple[str, str]:
    """Two checkpoints without weights: the target's, and the head's."""
    made = []
    for name, config in (("target", LLAMA), ("head", HEAD)):
        config = dict(config)
        if tiny:
            config |= TINY | ({"num_hidden_layers": 8} if name == "target" else {"draft_vocab_size": 256})
        (where / name).mkdir(parents=True, exist_ok=True)
        (where / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        made.append(str(where / name))
    return made[0], made[1]


def speculative(arm: str, head: str, tiny: bool) -> dict[str, Any] | None:
    """`speculative_config` of an arm."""
    if arm.startswith("none"):
        return None
    k = int(arm[-1])
    config: dict[str, Any] = {"method": "eagle3", "model": head, "num_speculative_tokens": k}
    if arm.startswith("free"):
        config |= {"method": "custom_class", "model": "measure.Parrot"}
    if not tiny:
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.0] * k}
    return config


def start(arm: str, where: Path, tiny: bool) -> Any:
    target, head = folders(where, tiny)
    from vllm import LLM

    options: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": 256, "gpu_memory_utilization": 0.85,
                               "compilation_config": {"cudagraph_capture_sizes": GRAPHS}}  # fmt: skip
    if arm in ("none-sync",):
        options["async_scheduling"] = False
    if tiny:
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        options = {"max_model_len": 512, "enforce_eager": True, "distributed_executor_backend": UniProcExecutor}
    return LLM(
        model=target, load_format="dummy", skip_tokenizer_init=True, seed=0, disable_log_stats=False,
        enable_prefix_caching=False, speculative_config=speculative(arm, head, tiny), **options,
    )  # fmt: skip


def counters(llm: Any) -> dict[str, Any]:
    """What vLLM counts: `vllm:spec_decode_…`, under shorter names."""
    short = {"num_drafts": "drafts", "num_draft_tokens": "draft_tokens", "num_accepted_tokens": "accepted",
             "num_accepted_tokens_per_pos": "accepted_per_pos"}  # fmt: skip
    found = {}
    for metric in llm.get_metrics():
        name = short.get(metric.name.removeprefix("vllm:spec_decode_"))
        if name:
            found[name] = list(metric.values) if hasattr(metric, "values") else metric.value
    return found


def difference(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [a - b for a, b in zip(value, before[name], strict=True)]
        if isinstance(value, list)
        else value - before[name]
        for name, value in after.items()
    }


def set_rates(llm: Any, rates: list[float]) -> None:
    """Unconditional rates by position, as `synthetic_acceptance_rates`, into the running sampler."""
    import torch
    from vllm.v1.spec_decode.utils import unconditional_to_conditional_rates

    core = llm.llm_engine.engine_core.engine_core
    sampler = core.model_executor.driver_worker.worker.model_runner.rejection_sampler
    held = sampler.synthetic_conditional_rates
    held.copy_(torch.tensor(unconditional_to_conditional_rates(rates), dtype=held.dtype))


def measure(llm: Any, batch: int, steps: int) -> dict[str, Any]:
    """Milliseconds a step, tokens a step, and the counters, for a batch of requests that decode."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine, rng = llm.llm_engine, random.Random(batch)
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=engine.model_config.max_model_len - 40,
                            detokenize=False, output_kind=RequestOutputKind.DELTA)  # fmt: skip
    names = [f"{batch}-{i}-{time.monotonic_ns()}" for i in range(batch)]
    for name in names:
        engine.add_request(name, {"prompt_token_ids": [rng.randrange(10, 400) for _ in range(16)]}, params)
    begun: set[str] = set()
    while len(begun) < batch:
        begun.update(out.request_id for out in engine.step())
    for _ in range(WARM):
        engine.step()
    before, parts, tokens = counters(llm), [], 0
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(steps):
            tokens += sum(len(out.outputs[0].token_ids) for out in engine.step())
        parts.append(round(1e3 * (time.perf_counter() - began) / steps, 4))
    counted = difference(counters(llm), before)
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    for _ in range(2):
        engine.step()
    return {"batch": batch, "steps": 3 * steps, "ms_per_step": parts, "tokens": tokens, **counted}


def run_arm(arm: str, out: Path, tiny: bool) -> None:
    began = time.perf_counter()
    llm = start(arm, out / "shapes", tiny)
    config = llm.llm_engine.vllm_config
    write(out, {"arm": arm, "what": "start", "seconds": round(time.perf_counter() - began, 1),
                "async_scheduling": config.scheduler_config.async_scheduling,
                "v2_runner": config.use_v2_model_runner,
                "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
                "largest_graph": config.compilation_config.max_cudagraph_capture_size})  # fmt: skip
    k = int(arm[-1]) if arm[-1].isdigit() else 0
    accept: dict[str, list[float]] = {"none": [0.0] * k, "published": PUBLISHED, "all": [1.0] * k}
    for batch in (1, 4) if tiny else BATCHES:
        for name, rates in accept.items():
            if (k == 0 and name != "none") or len(rates) != k or (name == "all" and batch > 1):
                continue
            if k and not tiny:
                set_rates(llm, rates)
            row = measure(llm, batch, 5 if tiny else STEPS)
            write(out, {"arm": arm, "k": k, "accept": name, "rates": rates, **row})


def write(out: Path, row: dict[str, Any]) -> None:
    with (out / "gpu.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def versions() -> dict[str, Any]:
    import platform

    import torch
    import triton
    import vllm

    there = torch.cuda.is_available()
    return {"what": "versions", "vllm": vllm.__version__, "torch": torch.__version__, "triton": triton.__version__,
            "python": platform.python_version(), "cuda": torch.version.cuda,
            "device": torch.cuda.get_device_name() if there else "cpu"}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--only", nargs="*", default=list(ARMS), choices=ARMS)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=1e9, help="no arm is begun after so many seconds")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    if args.child == "versions":
        write(args.out, versions())
    elif args.child:
        run_arm(args.child, args.out, args.tiny)
    else:
        began = time.monotonic()
        for arm in ("versions", *args.only):
            if time.monotonic() - began > args.seconds:
                print("no time left for", arm, flush=True)
                continue
            command = [
                sys.executable,
                __file__,
                "--out",
                str(args.out),
                "--child",
                arm,
                *(["--tiny"] if args.tiny else []),
            ]
            done = subprocess.run(command, check=False)
            print(arm, "ended with", done.returncode, f"after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
