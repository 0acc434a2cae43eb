"""What the benchmarks share: shapes, machine facts, arms as subprocesses, results as JSON and as a table."""

from __future__ import annotations

import json
import lzma
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
LONG = 30_000
"""Bytes of a result from which on it is packed."""
if str(ROOT) not in sys.path:  # runnable without installation
    sys.path.insert(0, str(ROOT))

_POCKET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4096, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "pocket": _POCKET,
    "pocket-704": {**_POCKET, "intermediate_size": 704},
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896,
        "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
        "tie_word_embeddings": True, "use_sliding_window": False, "torch_dtype": "float32", "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
}  # fmt: skip


def limit_threads(count: int, environment: dict[str, str]) -> dict[str, str]:
    """The variables that hold BLAS and torch to `count` threads; set before numpy is imported."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**environment, **dict.fromkeys(names, str(count))}


def checkpoint(shape: str, workdir: Path) -> tuple[Path, str]:
    """Folder for a shape and the origin of its weights: the committed pocket, or random ones made in `workdir`."""
    committed = ROOT / "models" / "pocket"
    if shape == "pocket" and (committed / "model.safetensors").is_file():
        return committed, "committed checkpoint"
    from mini_vllm import save_random_checkpoint

    folder = workdir / shape
    if not (folder / "done").is_file():
        save_random_checkpoint(folder, SHAPES[shape], std=0.03)
        (folder / "done").touch()
    return folder, "random weights"


def make_prompts(batch: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Random token ids: no two prompts share a prefix, so prefix caching has nothing to find."""
    import random

    source = random.Random(seed)
    return [[source.randrange(3, vocab_size) for _ in range(length)] for _ in range(batch)]


def median_time(call: Callable[[], Any], repeats: int, warmups: int = 1) -> float:
    """Median wall time of a call, in seconds."""
    for _ in range(warmups):
        call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def run_arm(script: str, job: dict[str, Any], threads: int, python: str = sys.executable, timeout: int = 1800) -> Any:
    """Run `benchmarks/script` with the job as its argument; its last line of output is its result in JSON.

    Returns:
        The result; a string with the reason where it could not run.
    """
    command = [python, str(ROOT / "benchmarks" / script), json.dumps(job)]
    environment = limit_threads(threads, dict(os.environ))
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        return f"exit status {done.returncode}: {last[:200]}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def installed(*packages: str) -> bool:
    """True if all these packages are installed for this Python."""
    try:
        return all(metadata.version(package) for package in packages)
    except metadata.PackageNotFoundError:
        return False


def machine() -> dict[str, Any]:
    """Processor, cores, memory, and versions: what a reader needs to judge a number."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = {p: metadata.version(p) for p in ("numpy", "torch", "transformers") if installed(p)}
    forced = {name: os.environ[name] for name in ("OPENBLAS_CORETYPE", "MKL_DEBUG_CPU_TYPE") if name in os.environ}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else None
    niceness = {"niceness": os.nice(0)} if hasattr(os, "nice") and os.nice(0) else {}
    return {
        "processor": model, "cores": cores, "memory_gib": round(memory, 1) if memory else None,
        "system": platform.system(), "python": platform.python_version(), **versions, "blas": blas_kernels(), **forced,
        "date": time.strftime("%Y-%m-%d", time.gmtime()), "load_average_at_start": list(os.getloadavg()),
        **niceness,
    }  # fmt: skip


def blas_kernels() -> str:
    """Which BLAS multiplies for numpy here, and for which processor its kernels are made: "openblas 0.3.31 Haswell"."""
    import numpy  # noqa: F401  # loads it
    from threadpoolctl import threadpool_info

    found = [i for i in threadpool_info() if i["user_api"] == "blas"]
    return ", ".join(f"{i['internal_api']} {i['version']} {i.get('architecture', '')}".strip() for i in found)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A markdown table; numbers are rounded by their size."""

    def text(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
        return "—" if value is None else str(value)

    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(text, row)) + " |" for row in rows]
    return "\n".join(lines)


def save(name: str, result: dict[str, Any], markdown: str, keep: bool = True) -> None:
    """Print the tables, and write `results/NAME.json` (long: `.json.xz`) and `.md` unless it was only a quick run."""
    if not keep:
        print(markdown)
        return
    RESULTS.mkdir(exist_ok=True)
    text = (json.dumps(result, indent=2) + "\n").encode()
    file, other = RESULTS / f"{name}.json", RESULTS / f"{name}.json.xz"
    if len(text) > LONG:
        file, other, text = other, file, lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
    other.unlink(missing_ok=True)
    file.write_bytes(text)
    (RESULTS / f"{name}.md").write_text(markdown.rstrip() + "\n", encoding="utf-8")
    print(markdown)
    print(f"\nwritten: {file} and {name}.md")
