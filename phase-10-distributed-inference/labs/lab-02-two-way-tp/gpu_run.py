"""The GPUs' half of this lab: one command on a machine with two GPUs and vLLM 0.22.1 (the GPU wheel).

    python gpu_run.py --model models/pocket --out FOLDER            # all arms: about eight minutes on two H100
    python gpu_run.py --model models/pocket --out FOLDER --arms opt-1 opt-2 wires

Each arm runs in fresh processes; what it found goes into FOLDER/capture.json at once, so that arms may be run one by
one into the same file. An arm that fails leaves {"failed": the end of its log} and the others go on. Nothing is
downloaded: models of the shape of OPT-1.3B and of Llama-3-8B get dummy weights.

Arms
    pocket-1, pocket-2         real_run.py on the checkpoint of this repository: texts and margins
    opt-1, opt-2               OPT-1.3B in float16: bytes, blocks, milliseconds of a decode step at batch 1 and 64
    tight-1, tight-2           Llama-3-8B's shape in bfloat16, 24 GB of the card: what two cards do for the cache
    llama-1, llama-2           the same shape, most of the card: steps at batch 1 and 64, prefill of 2,048 tokens
    llama-2-nccl               the same with disable_custom_all_reduce
    llama-pp                   the same cut by layers: two stages of a pipeline
    llama-2-debug              llama-2 with NCCL_DEBUG=INFO, for the lines that NCCL writes
    together, replicas         OPT-1.3B, 256 requests on one engine of two workers, and on two engines at once; all of
                               them have a seat in either
    wires                      an all-reduce of 8 KiB to 64 MiB over NCCL, without vLLM
"""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ARMS = (
    "wires", "pocket-1", "pocket-2", "tight-1", "tight-2", "opt-1", "opt-2", "llama-1", "llama-2", "llama-2-nccl",
    "llama-pp", "llama-2-debug", "together", "replicas",
)  # fmt: skip
OPT = {
    "architectures": ["OPTForCausalLM"], "model_type": "opt", "activation_function": "relu", "vocab_size": 50272,
    "hidden_size": 2048, "word_embed_proj_dim": 2048, "ffn_dim": 8192, "num_hidden_layers": 24,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "do_layer_norm_before": True, "bos_token_id": 2,
    "eos_token_id": 2, "pad_token_id": 1, "torch_dtype": "float16",
}  # fmt: skip
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "INFO",
}  # fmt: skip
KEEP = re.compile(
    r"world_size=|in world size|Model loading took|Available KV cache memory|GPU KV cache size|Maximum concurrency"
    r"|all-?reduce|Using FlashAttention|Using .* backend|Graph capturing finished|init engine|NVLink"
    r"|NCCL INFO (?:NCCL version|ncclCommInitRank .*START|Channel 00)"
)
STEPS, REQUESTS, TOKENS, REPEATS = 64, 256, 128, 5
WIRE_BYTES = tuple(1 << shift for shift in range(13, 27))
TIGHT_BYTES = 24e9


def options_of(arm: str) -> dict:
    """Keyword arguments of `LLM` for an arm with an engine; `shape` is the model's configuration."""
    shape = OPT if arm.startswith(("opt", "together", "replica")) else LLAMA
    options = {
        "load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 2048, "max_num_seqs": 64,
        "block_size": 16, "enable_prefix_caching": False, "gpu_memory_utilization": 0.8,
        "distributed_executor_backend": "mp", "tensor_parallel_size": 2 if "-2" in arm or arm == "together" else 1,
        "max_num_batched_tokens": 2048,
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 64]},
    }  # fmt: skip
    if arm.startswith("tight"):
        options |= {"enforce_eager": True, "gpu_memory_utilization": round(TIGHT_BYTES / device_bytes(), 4)}
        del options["compilation_config"]
    if arm.startswith(("together", "replica")):
        seats = options["max_num_seqs"] = requests_of(arm)
        sizes = options["compilation_config"]["cudagraph_capture_sizes"]
        sizes[:] = [1, 2, 4, *range(8, seats + 1, 8)]
    if arm.endswith("pp"):
        options["pipeline_parallel_size"] = 2
    if arm.endswith("nccl"):
        options["disable_custom_all_reduce"] = True
    return {"shape": shape, **options}


def requests_of(arm: str) -> int:
    """Requests that an engine of the arm is given: all, or its half."""
    return REQUESTS if arm == "together" else REQUESTS // 2


def device_bytes() -> int:
    """Memory of the first GPU as torch counts it, asked in a process of its own (this one must not hold a context)."""
    code = "import torch; print(torch.cuda.mem_get_info(0)[1])"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def prompts_of(count: int, length: int, seed: int) -> list[dict]:
    return [
        {"prompt_token_ids": [(seed * 7919 + 31 * row + place) % 30000 + 10 for place in range(length)]}
        for row in range(count)
    ]


def one_engine(arm: str, folder: Path) -> dict:
    """Start one engine, measure, answer; runs in a process of its own."""
    options = options_of(arm)
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(options["shape"]))
    shape_name = options["shape"]["model_type"]
    del options["shape"]
    memory = device_bytes()
    from real_run import processes
    from vllm import LLM, SamplingParams, __version__

    began = time.perf_counter()
    llm = LLM(model=str(folder / "model"), **options)
    started, config = time.perf_counter() - began, llm.llm_engine.vllm_config
    found = {
        "vllm": __version__, "shape": shape_name, "options": options, "device_bytes": memory,
        "block_size": config.cache_config.block_size, "num_blocks": config.cache_config.num_gpu_blocks,
        "start_s": round(started, 1), "processes": processes(),
    }  # fmt: skip

    def run(count: int, length: int, tokens: int, seed: int) -> float:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        llm.generate(prompts_of(count, length, seed), params, use_tqdm=False)
        return time.perf_counter() - start

    run(4, 16, 4, 0)
    if arm.startswith(("together", "replica")):
        if arm.startswith("replica"):  # both engines begin together
            (folder.parent / f"ready-{arm[-1]}").touch()
            limit = time.monotonic() + 300
            while not all((folder.parent / f"ready-{each}").exists() for each in "01") and time.monotonic() < limit:
                time.sleep(0.01)
        count = requests_of(arm)
        seconds = [round(run(count, 64, TOKENS, 7 + repeat), 3) for repeat in range(REPEATS)]
        found["throughput"] = {"requests": count, "tokens": TOKENS, "seconds": seconds}
    if arm.startswith(("opt", "llama")):
        found["decode_ms"] = {str(batch): steps_of(run, batch) for batch in (1, 64)}
    if arm.startswith("llama"):
        runs = [run(1, 2047, 1, 50 + repeat) for repeat in range(7)]
        found["prefill_2047_ms"] = round(statistics.median(runs) * 1e3, 2)
    return found


def steps_of(run, batch: int) -> dict:
    """Milliseconds of a decode step: the difference of a long and a short run, five times."""
    found = []
    for repeat in range(5):
        short, long = run(batch, 16, 1, 2 * repeat + 1), run(batch, 16, 1 + STEPS, 2 * repeat + 2)
        found.append(round((long - short) / STEPS * 1e3, 4))
    return {"median": statistics.median(found), "all": found}


def one_wire(rank: int, rendezvous: str, out: str) -> None:
    """A rank of the arm `wires`: the median time of an all-reduce for each size, in microseconds."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    rows = []
    for size in WIRE_BYTES:
        x = torch.ones(size // 2, dtype=torch.bfloat16, device="cuda")
        for _ in range(20):
            dist.all_reduce(x)
            x.fill_(1)
        times = []
        for _ in range(50):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            for _ in range(10):
                dist.all_reduce(x)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 100)
            x.fill_(1)
        rows.append({"bytes": size, "us": round(statistics.median(times), 2)})
    if rank == 0:
        Path(out).write_text(json.dumps(rows))
    dist.destroy_process_group()


def child(log: Path, *arguments: str, **environment: str) -> subprocess.Popen:
    """This script again, in a process of its own whose output goes to `log`."""
    with log.open("w") as file:
        command = [sys.executable, str(Path(__file__).resolve()), "--model", "none", "--out", "none", *arguments]
        return subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **environment}, cwd=HERE)


def run_arm(arm: str, model: str, folder: Path) -> dict:
    """What one arm found, with the lines of its log that the lab reads. Raises where it failed."""
    if arm.startswith("pocket"):
        log, path = folder / "log", folder / "result.json"
        command = [sys.executable, str(HERE / "real_run.py"), "--model", model, "--out", str(folder), "--tp", arm[-1]]
        with log.open("w") as file:
            jobs = [subprocess.Popen([*command, "--device", "cuda"], stdout=file, stderr=file)]
        logs, results = [log], [path]
    elif arm == "wires":
        jobs = [
            child(folder / f"log{r}", "--wire", str(r), str(folder / "meet"), str(folder / "result.json"))
            for r in (0, 1)
        ]
        logs, results = [folder / "log0"], [folder / "result.json"]
    else:
        names = ["replica0", "replica1"] if arm == "replicas" else [arm]
        debug = {"NCCL_DEBUG": "INFO"} if arm.endswith("debug") else {}
        gpus = ["0", "1"] if arm == "replicas" else [os.environ.get("CUDA_VISIBLE_DEVICES", "0,1")]
        jobs = [
            child(folder / f"{n}.log", "--engine", n, str(folder / n), CUDA_VISIBLE_DEVICES=gpu, **debug)
            for n, gpu in zip(names, gpus, strict=True)
        ]
        logs, results = [folder / f"{n}.log" for n in names], [folder / n / "result.json" for n in names]
    try:
        codes = [job.wait(timeout=300) for job in jobs]
    except subprocess.TimeoutExpired:
        for job in jobs:
            job.kill()
            job.wait()
        codes = ["over 300 s"]
    text = "".join(log.read_text(errors="replace") for log in logs)
    if any(codes):
        raise RuntimeError(f"exit {codes}:\n{text[-2500:]}")
    lines = [re.sub(r"/\S*/(?:model|pocket)\b", "MODEL", line)[:220] for line in text.splitlines() if KEEP.search(line)]
    found = [json.loads(path.read_text()) for path in results]
    return {"found": found if arm == "replicas" else found[0], "log": lines}


def about() -> dict:
    """Machine and versions, for the provenance."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    code = "import vllm, torch, transformers as t, platform as p;"
    code += "print(vllm.__version__, torch.__version__, t.__version__, p.python_version())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip().split("\n")[-1]
    topology = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True).stdout.splitlines()
    return {
        "machine": subprocess.run(query, capture_output=True, text=True).stdout.strip().splitlines(),
        "topology": [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in topology[:4]],
        "cores": os.cpu_count(), "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": dict(zip(("vllm", "torch", "transformers", "python"), said.split(), strict=False)),
        "command": "gpu_run.py --model models/pocket --out FOLDER", "environment": ENVIRONMENT,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder of pocket")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--engine", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--wire", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    if args.wire:
        return one_wire(int(args.wire[0]), args.wire[1], args.wire[2])
    if args.engine:
        folder = Path(args.engine[1])
        found = one_engine(args.engine[0], folder)
        (folder / "result.json").write_text(json.dumps(found))
        return None
    args.out.mkdir(parents=True, exist_ok=True)
    path, model = args.out / "capture.json", str(Path(args.model).resolve())
    capture = json.loads(path.read_text()) if path.is_file() else {"about": about(), "arms": {}}
    for arm in args.arms:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                capture["arms"][arm] = run_arm(arm, model, Path(folder))
            except Exception as error:
                capture["arms"][arm] = {"failed": str(error)}
        print(f"{arm}: {time.perf_counter() - began:.0f} s", *capture["arms"][arm], flush=True)
        rows = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in capture["arms"].items())
        path.write_text(f'{{\n "about": {json.dumps(capture["about"])},\n "arms": {{\n  {rows}\n }}\n}}\n')
    return None


if __name__ == "__main__":  # vLLM starts processes of its own, which import this file again
    main()
