"""What serving eight adapters in one batch buys, on pocket: processor time and bytes. Writes probe.json beside it.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python phase-11-multi-lora/captured/probe.py

32 requests, four for each of eight adapters of rank 8 on all projections, 49 tokens each. *together*: one engine, one
batch. *in turns*: the eight adapters one after the other, four requests at a time, as eight engines on one machine
would. *base*: the 32 requests without an adapter, in the same engine. Medians of three rounds of processor time.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from mini_vllm import LLM, SamplingParams  # noqa: E402
from mini_vllm.lora.request import LoRARequest  # noqa: E402
from mini_vllm.tests.lora.adapters import save_adapter  # noqa: E402

POCKET = ROOT / "models" / "pocket"
ADAPTERS, EACH, TOKENS, RANK = 8, 4, 49, 8


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        loras = [
            LoRARequest(f"a{i}", i, str(save_adapter(Path(folder) / str(i), POCKET, seed=i, rank=RANK, alpha=RANK)))
            for i in range(1, ADAPTERS + 1)
        ]
        settings = {"enable_lora": True, "max_loras": ADAPTERS, "max_lora_rank": RANK, "enable_prefix_caching": False}
        llm = LLM(str(POCKET), max_num_seqs=32, **settings)
        result = measure(llm, loras)
    (HERE / "probe.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def measure(llm: LLM, loras: list[LoRARequest]) -> dict:
    """Milliseconds of processor time a token, and bytes."""
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)

    def run(wanted: list) -> float:
        start = time.process_time()
        llm.generate(["What is a KV block?"] * len(wanted), params, lora_request=wanted, use_tqdm=False)
        return time.process_time() - start

    mixed = [lora for _ in range(EACH) for lora in loras]
    arms = {
        "base": lambda: run([None] * len(mixed)),
        "together": lambda: run(mixed),
        "in turns": lambda: sum(run([lora] * EACH) for lora in loras),
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for arm in arms.values():
        arm()
    for _ in range(3):
        for name, arm in arms.items():
            seconds[name].append(arm())
    tokens = len(mixed) * TOKENS
    manager = llm.llm_engine.engine_core.model_runner.lora_manager.adapter_manager
    weights = sum(each.stat().st_size for each in POCKET.glob("*.safetensors")) * 2  # float16 on disk, float32 served
    return {
        "ms_per_token": {name: round(1e3 * statistics.median(each) / tokens, 4) for name, each in seconds.items()},
        "base_bytes": weights,
        "slot_bytes": manager.nbytes // ADAPTERS,
        "adapters": ADAPTERS, "requests": len(mixed), "rank": RANK,
    }  # fmt: skip


if __name__ == "__main__":
    main()
