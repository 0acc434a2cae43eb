"""What adapters cost: `python -m benchmarks.lora`.

    engine     a decode step of pocket with 8 and 32 rows: without buffers, with buffers and no adapter, with one
               adapter for all rows, with eight; rank 8 on all projections
    products   the delta of one projection by rows and adapters, in four forms: the two of
               `lora/punica_wrapper/punica_cpu.py` (slots one by one, slots together), all slots times all rows with a
               mask, and a copy of the weights for each row, as upstream's wrapper for CPUs has it

Times are CPU time of one thread, the smallest of some repeats, in turns. Writes results/lora.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROOT, machine, save, table
from mini_vllm import LLM, LoRARequest, SamplingParams
from mini_vllm.lora.punica_wrapper import punica_cpu
from mini_vllm.model_loader.random_checkpoint import write_safetensors
from mini_vllm.model_loader.safetensors_reader import Checkpoint

POCKET = ROOT / "models" / "pocket"
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK, SLOTS, STEPS = 8, 8, 17
ARMS = ("no buffers", "no adapter", "1 adapter", "8 adapters", "8 adapters, one by one")


def make_adapter(folder: Path, seed: int) -> LoRARequest:
    """Random factors for every projection of pocket, in PEFT's layout."""
    rng, tensors = np.random.default_rng(seed), {}
    folder.mkdir()
    with Checkpoint(POCKET) as checkpoint:
        for name in sorted(checkpoint.names()):
            module = name.removesuffix(".weight")
            if module.rpartition(".")[2] in TARGETS:
                outputs, inputs = checkpoint.read(name).shape
                for letter, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
                    factor = (rng.standard_normal(shape) * 0.02).astype(np.float32)
                    tensors[f"base_model.model.{module}.lora_{letter}.weight"] = factor
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(TARGETS)}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return LoRARequest(folder.name, seed + 1, str(folder))


def wanted(arm: str, adapters: list[LoRARequest], batch: int) -> list[LoRARequest | None]:
    """The adapter of each row."""
    if arm in ("no buffers", "no adapter"):
        return [None] * batch
    return [adapters[i % (1 if arm == "1 adapter" else SLOTS)] for i in range(batch)]


def least_times(cases: dict[Any, Callable[[], Any]], repeats: int) -> dict[Any, float]:
    """Milliseconds of each case, the least of all turns."""
    least = dict.fromkeys(cases, float("inf"))
    for _ in range(repeats):
        for name, call in cases.items():
            start = time.thread_time()
            call()
            least[name] = min(least[name], (time.thread_time() - start) * 1e3)
    return least


def step_times(adapters: list[LoRARequest], batch: int, repeats: int) -> dict[str, float]:
    """Milliseconds of a decode step, by arm."""
    sizes: dict[str, Any] = {"num_blocks": 512, "max_num_seqs": batch, "enable_prefix_caching": False}
    plain = LLM(str(POCKET), **sizes)
    buffered = LLM(str(POCKET), enable_lora=True, max_loras=SLOTS, max_lora_rank=RANK, **sizes)
    rng = np.random.default_rng(0)
    prompts = [{"prompt_token_ids": rng.integers(8, 4000, 32).tolist()} for _ in range(batch)]

    def run(arm: str, tokens: int) -> None:
        llm = plain if arm == "no buffers" else buffered
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        before = punica_cpu.TOGETHER_ROWS
        punica_cpu.TOGETHER_ROWS = 0 if arm.endswith("one by one") else before
        llm.generate(prompts, params, lora_request=wanted(arm, adapters, batch), use_tqdm=False)
        punica_cpu.TOGETHER_ROWS = before

    cases = {(arm, tokens): lambda a=arm, t=tokens: run(a, t) for arm in ARMS for tokens in (1, STEPS)}
    found = least_times(cases, repeats)
    return {arm: (found[arm, STEPS] - found[arm, 1]) / (STEPS - 1) for arm in ARMS}


def masked(y: Any, x: Any, a: Any, b: Any, slots: Any) -> None:
    """All rows times all slots; what is not a row's own is set to zero."""
    shrunk = x @ a.reshape(-1, a.shape[-1]).T
    shrunk[np.repeat(np.arange(SLOTS), RANK)[None] != slots[:, None]] = 0
    y += shrunk @ b.reshape(-1, b.shape[-1])


def gathered(y: Any, x: Any, a: Any, b: Any, slots: Any) -> None:
    """Each row's own weights, copied (upstream/vllm/lora/ops/torch_ops/lora_ops.py:67 — `bgmv_shrink`)."""
    shrunk = x[:, None] @ a[slots, 0].transpose(0, 2, 1)
    y += (shrunk @ b[slots])[:, 0]


def product_times(rows: int, used: int, repeats: int) -> dict[str, float]:
    """Microseconds of one projection's delta, 256 to 256 in one slice, in four forms; rows are dealt round."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((SLOTS, 1, RANK, 256), (SLOTS, RANK, 256)))
    x, y = (rng.standard_normal((rows, 256)).astype(np.float32) for _ in range(2))
    slots, wrapper, before = np.arange(rows) % used, punica_cpu.PunicaWrapperCPU(SLOTS, RANK), punica_cpu.TOGETHER_ROWS
    found = {}
    for name, most in (("one by one", 0), ("together", rows)):
        punica_cpu.TOGETHER_ROWS = most
        wrapper.update_metadata(slots)
        wrapper.add_lora_linear(y, x, a, [b])
        found[name] = _each(lambda: wrapper.add_lora_linear(y, x, a, [b]), repeats)
    punica_cpu.TOGETHER_ROWS = before
    found |= {form.__name__: _each(lambda f=form: f(y, x, a, b, slots), repeats) for form in (masked, gathered)}  # type: ignore
    return found


def _each(call: Callable[[], Any], repeats: int) -> float:
    """Microseconds of one of fifty calls."""
    return least_times({0: lambda: [call() for _ in range(50)]}, repeats)[0] * 20


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one repeat; writes nothing")
    quick = parser.parse_args().quick
    facts, repeats = machine(), 1 if quick else 15
    with tempfile.TemporaryDirectory() as folder:
        adapters = [make_adapter(Path(folder, f"adapter-{i}"), i) for i in range(SLOTS)]
        steps = {batch: step_times(adapters, batch, repeats) for batch in (8, 32)}
    shapes = [(rows, used) for rows in (8, 32, 64, 256) for used in (2, 8)]
    products = {f"{rows}/{used}": product_times(rows, used, repeats) for rows, used in shapes}
    parts = [
        table(["rows", *ARMS, "8 adapters over none"],
              [[batch, *(row[arm] for arm in ARMS), row["8 adapters"] / row["no buffers"]]
               for batch, row in steps.items()]),
        table(["rows / adapters", "one by one", "together", "masked", "gathered"],
              [[name, *row.values()] for name, row in products.items()]),
    ]  # fmt: skip
    load = ", ".join(f"{value:.1f}" for value in facts["load_average_at_start"])
    note = (
        f"Milliseconds of a decode step of pocket, then microseconds of one delta; CPU time of one thread. "
        f"{facts['processor']}, BLAS {facts['blas']}, Python {facts['python']}, numpy {facts['numpy']}; load {load}."
    )
    text = "# What adapters cost\n\n" + "\n\n".join([note, *parts])
    save("lora", {"machine": facts, "step_ms": steps, "product_us": products}, text, keep=not quick)


if __name__ == "__main__":
    main()
