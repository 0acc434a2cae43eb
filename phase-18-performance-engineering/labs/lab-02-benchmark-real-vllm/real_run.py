"""Starts the server of real vLLM 0.22.1 and lets its own client, `vllm bench serve`, load it. Nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER --arm base --rates 2,4,6,8

Arms, each with one change:
    base       the server as it is
    threshold  --long-prefill-token-threshold 64
    seats      --max-num-seqs 3
    blocks     --num-gpu-blocks-override 76: a KV cache for not quite three requests

Every rate in `--rates` is one run of the client, in their order and with a seed of its own; the server starts once for
all of them. Of each run
FOLDER/result.json keeps the client's own result file, without its lists, and what the server's `/metrics` counted
meanwhile.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB of KV cache on the CPU backend
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
ARMS = {
    "base": [],
    "threshold": ["--long-prefill-token-threshold", "64"],
    "seats": ["--max-num-seqs", "3"],
    "blocks": ["--num-gpu-blocks-override", "76"],
}
SERVER = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--block-size", "16"]
INPUT, OUTPUT, PROMPTS, WARMUPS = 384, 32, 60, 8
COUNTED = (
    "num_preemptions_total", "prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_sum",
    "time_to_first_token_seconds_count", "request_queue_time_seconds_sum", "request_prefill_time_seconds_sum",
    "request_decode_time_seconds_sum", "request_inference_time_seconds_sum", "e2e_request_latency_seconds_sum",
    "iteration_tokens_total_count", "iteration_tokens_total_sum", "prefix_cache_hits_total",
)  # fmt: skip
VLLM = [sys.executable, "-m", "vllm.entrypoints.cli.main"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(url: str, server: subprocess.Popen, seconds: float = 240.0) -> None:
    """Until the server answers. Raises SystemExit where it ends or does not come."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}")
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).read()
            return
        except OSError:
            time.sleep(0.5)
    raise SystemExit("the server did not come up")


def metrics(url: str) -> dict[str, float]:
    """The counters of `/metrics` that COUNTED names, without their prefix, summed over labels."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=10).read().decode()
    found: dict[str, float] = dict.fromkeys(COUNTED, 0.0)
    for name, value in re.findall(r"^vllm:(\w+)(?:\{[^}]*\})? (\S+)$", text, re.M):
        if name in found:
            found[name] += float(value)
    return found


def bench(url: str, model: str, rate: float, seed: int, folder: Path) -> dict:
    """One run of the client at `rate` requests a second; its result file as a dict, without lists."""
    from vllm.benchmarks.serve import add_cli_args, main  # what `vllm bench serve` calls
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    options = [
        "--backend", "openai", "--base-url", url, "--model", model, "--dataset-name", "random",
        "--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT), "--num-prompts", str(PROMPTS),
        "--request-rate", str(rate), "--num-warmups", str(WARMUPS), "--seed", str(seed),
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99",
        "--goodput", "ttft:400", "tpot:30", "--save-result", "--result-dir", str(folder),
        "--result-filename", "one.json", "--disable-tqdm",
    ]  # fmt: skip
    main(parser.parse_args(options))
    result = json.loads((folder / "one.json").read_text(encoding="utf-8"))
    return {key: value for key, value in result.items() if not isinstance(value, (list, dict))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--arm", choices=list(ARMS), default="base")
    parser.add_argument("--rates", default="2,4,6,8", help="requests a second, comma-separated")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    args.out.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [*VLLM, "serve", args.model, "--host", "127.0.0.1", "--port", str(port), *SERVER, *ARMS[args.arm]]
    server = subprocess.Popen([*command, "--disable-uvicorn-access-log"])
    runs = []
    try:
        wait_for(url, server)
        for number, rate in enumerate(map(float, args.rates.split(","))):
            before, result = metrics(url), bench(url, args.model, rate, args.seed + number, args.out)
            counted = {name: round(value - before[name], 4) for name, value in metrics(url).items()}
            result["model_id"] = result["tokenizer_id"] = Path(args.model).name
            runs.append({"rate": rate, "bench": result, "server": counted})
    finally:
        server.terminate()
        server.wait(60)
    whole = {"arm": args.arm, "options": [*SERVER, *ARMS[args.arm]], "seed": args.seed, "runs": runs}
    (args.out / "result.json").write_text(json.dumps(whole) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
