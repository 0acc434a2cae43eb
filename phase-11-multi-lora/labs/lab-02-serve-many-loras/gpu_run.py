"""The GPU's half of this lab's captures: one command on a machine with an H200 and vLLM 0.22.1 (the GPU wheel).

    python gpu_run.py --model models/pocket --out FOLDER

1. The four arms of `real_run.py` with `--device cuda`, each in a fresh process: FOLDER/h200-ARM.json.
2. A model of the shape of Llama-2-7B with dummy weights (nothing is downloaded): bytes after loading without LoRA and
   with 2, 8 and 32 slots of rank 16; milliseconds of a decode step at batch 32 with none, 1, 8 and 32 different
   adapters; seconds of the first request of an adapter that is on disk, in host memory, in a slot.
   FOLDER/h200-shape.jsonl, one line a measurement.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ARMS = ("alone", "together", "roomy", "cap")
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
    "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
RANK, BATCH, STEPS = 16, 32, 64
SLOTS = (0, 2, 8, 32)


def write_adapter(folder: Path, seed: int) -> str:
    """Rank 16 on q, k, v, o of all layers: 32 MiB in bfloat16."""
    import torch
    from safetensors.torch import save_file

    chance, tensors, wide = torch.Generator().manual_seed(seed), {}, SHAPE["hidden_size"]
    for layer in range(SHAPE["num_hidden_layers"]):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(RANK, wide, generator=chance).bfloat16() / 64
            tensors[f"{key}.lora_B.weight"] = torch.randn(wide, RANK, generator=chance).bfloat16() / 64
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    said = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps({**said, "bias": "none"}))
    return str(folder)


def one_engine(slots: int, folder: Path) -> list[dict]:
    """Measurements with one engine; it runs in a process of its own."""
    import torch
    from vllm import LLM, SamplingParams, __version__
    from vllm.lora.request import LoRARequest

    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(SHAPE))
    lora = {"enable_lora": True, "max_loras": slots, "max_cpu_loras": slots + 2, "max_lora_rank": RANK} if slots else {}
    llm = LLM(
        model=str(folder / "model"), load_format="dummy", skip_tokenizer_init=True, max_model_len=2048, max_num_seqs=64,
        enable_prefix_caching=False, gpu_memory_utilization=0.85, **lora,
    )  # fmt: skip
    config, versions = llm.llm_engine.vllm_config, {"vllm": __version__, "torch": torch.__version__}
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker
    runner = getattr(worker, "worker", worker).model_runner
    rows = [{
        "what": "start", "slots": slots, "model_memory_bytes": int(runner.model_memory_usage),
        "blocks": config.cache_config.num_gpu_blocks, "block_size": config.cache_config.block_size,
        "device": torch.cuda.get_device_name(0), **versions,
    }]  # fmt: skip
    total = max(slots + 3, 1) if slots else 0
    adapters = [LoRARequest(f"a{i}", i, write_adapter(folder / f"a{i}", i)) for i in range(1, total + 1)]

    def run(requests: list, tokens: int, seed: int) -> float:
        prompts = [
            {"prompt_token_ids": [(seed * 7919 + 31 * i + j) % 31000 + 10 for j in range(16)]}
            for i in range(len(requests))
        ]
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        llm.generate(prompts, params, lora_request=requests, use_tqdm=False)
        return time.perf_counter() - start

    for distinct in [each for each in (0, 1, 8, 32) if each <= slots]:
        requests = [adapters[i % distinct] if distinct else None for i in range(BATCH)]
        run(requests, 4, 0)
        found = []
        for repeat in range(5):
            short, long = run(requests, 1, 2 * repeat + 1), run(requests, 1 + STEPS, 2 * repeat + 2)
            found.append(round((long - short) / STEPS * 1e3, 4))
        rows.append({"what": "decode", "slots": slots, "distinct": distinct, "batch": BATCH,
                     "ms_per_step": statistics.median(found), "all": found})  # fmt: skip
    if slots:
        states = {"on disk": adapters[-1], "in host memory": None, "in a slot": adapters[-1]}
        states["in a slot"] = adapters[-1]
        cold = run([states["on disk"]], 1, 99)
        warm = [run([states["in a slot"]], 1, 100 + i) for i in range(5)]
        for other in adapters[:slots]:
            run([other], 1, 120)
        host = run([adapters[-1]], 1, 130)
        rows.append({"what": "first token", "slots": slots, "on_disk_s": cold, "in_host_memory_s": host,
                     "in_a_slot_s": statistics.median(warm)})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder of pocket")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--slots", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for key, value in {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }.items():  # fmt: skip
        os.environ.setdefault(key, value)
    args.out.mkdir(parents=True, exist_ok=True)
    lines = args.out / "h200-shape.jsonl"
    if args.slots is not None:
        with tempfile.TemporaryDirectory() as folder, lines.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in one_engine(args.slots, Path(folder)))
        return
    for arm in ARMS:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(HERE / "real_run.py"), "--model", args.model, "--out", folder]
            subprocess.run([*command, "--arm", arm, "--device", "cuda"], check=True)
            result = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))
        rows = {key: value for key, value in result.items()}
        (args.out / f"h200-{arm}.json").write_text(json.dumps(rows) + "\n", encoding="utf-8")
    for slots in SLOTS:
        subprocess.run(
            [sys.executable, __file__, "--model", args.model, "--out", str(args.out), "--slots", str(slots)], check=True
        )


if __name__ == "__main__":
    main()
