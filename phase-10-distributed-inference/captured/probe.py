"""What two cores buy, used in four ways, and what a slow link takes away: on pocket and on a wider model of random
weights. Writes probe.json beside this file.

    python phase-10-distributed-inference/captured/probe.py

Ways: *one core*; *two threads* (one engine, BLAS on both cores); *TP 2* (two ranks, a core each); *two replicas* (two
engines, a core each, the requests dealt out in turn; with one request the second has nothing to do). Each way has fresh
processes. Wall time, since what is shared is the clock: the best of `ROUNDS` rounds, as neighbours on a machine only
add. Prefix caching is off.

Links: TP 2 again, where rank 0 is late at every meeting of the ranks by so many microseconds, as if the wire took them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

POCKET = ROOT / "models" / "pocket"
WIDE = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 4}
BATCHES, TOKENS, PROMPT, ROUNDS = (1, 32), 32, 1024, 4
DELAYS_US = (0, 50, 500)
WAYS = {
    "one core": [([0], 1, 1)],  # of each process: cores, BLAS threads, ranks
    "two threads": [([0, 1], 2, 1)],
    "TP 2": [([0, 1], 1, 2)],
    "two replicas": [([0], 1, 1), ([1], 1, 1)],
}


def main() -> None:
    found: dict = {"models": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, model in (("pocket", POCKET), ("wide", make_wide(Path(folder) / "wide"))):
            found["models"][name] = {way: run_way(model, processes) for way, processes in WAYS.items()}
        found["links"] = one_process(POCKET, [0, 1], 1, 2)
    found |= {"batches": BATCHES, "tokens": TOKENS, "prompt": PROMPT, "delays_us": DELAYS_US, "wide": WIDE}
    (HERE / "probe.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def make_wide(folder: Path) -> Path:
    """Pocket's tokenizer and a wider Llama without weights."""
    folder.mkdir()
    for path in POCKET.glob("*.json"):
        shutil.copy(path, folder)
    config = json.loads((POCKET / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | WIDE), encoding="utf-8")
    return folder


def run_way(model: Path, processes: list) -> dict:
    """Tokens a second by batch, and milliseconds of a prompt; all processes of the way together."""
    started = [start(model, cores, threads, ranks, i, len(processes)) for i, (cores, threads, ranks) in
               enumerate(processes)]  # fmt: skip
    answers: list[dict] = []
    for batch in (*BATCHES, "prompt"):  # every process is told to begin a round, and tells when it has ended
        best = float("inf")
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            for process in started:
                process.stdin.write(f"{batch}\n")
                process.stdin.flush()
            for process in started:
                assert process.stdout.readline().strip() == "done"
            best = min(best, time.perf_counter() - begun)
        answers.append({"batch": batch, "seconds": best})
    for process in started:
        process.stdin.close()
        process.wait()
    result: dict = {str(a["batch"]): round(a["batch"] * TOKENS / a["seconds"], 1) for a in answers[:-1]}
    return result | {"prompt_ms": round(1e3 * answers[-1]["seconds"], 2)}


def start(model: Path, cores: list, threads: int, ranks: int, number: int, of: int) -> subprocess.Popen:
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    work = [str(model), json.dumps(cores), str(ranks), str(number), str(of)]
    process = subprocess.Popen(
        [sys.executable, __file__, "serve", *work], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert process.stdout is not None and process.stdout.readline().strip() == "ready"
    return process


def one_process(model: Path, cores: list, threads: int, ranks: int) -> dict:
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, __file__, "links", str(model), json.dumps(cores), str(ranks), "0", "1"],
        capture_output=True, text=True, env=env, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def make(model: Path, ranks: int):
    from mini_vllm import LLM

    dummy = {} if model == POCKET else {"load_format": "dummy"}
    return LLM(str(model), tensor_parallel_size=ranks, enable_prefix_caching=False, num_blocks=512, **dummy)


def generate(llm, count: int, prompt: int = 8, tokens: int = TOKENS) -> None:
    from mini_vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    prompts = [{"prompt_token_ids": [5 + i] * prompt} for i in range(count)]
    if count:
        llm.generate(prompts, params, use_tqdm=False)


def serve(model: Path, ranks: int, number: int, of: int) -> None:
    """One engine: for every line a round."""
    llm = make(model, ranks)
    generate(llm, 2)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "prompt":
            generate(llm, number == 0, PROMPT, 1)
        else:
            generate(llm, len(range(number, int(line), of)))
        print("done", flush=True)


def measure_links(model: Path, ranks: int) -> None:
    """By delay: tokens a second of one request, meetings a step, and the share of the time that rank 0 waits."""
    llm = make(model, ranks)
    group = llm.llm_engine.engine_core.model_executor.group
    barrier, told = group.barrier, {"meetings": 0, "waited": 0.0, "delay": 0.0}

    def late() -> None:
        begun = time.perf_counter()
        while time.perf_counter() < begun + told["delay"]:
            pass
        barrier()
        told["meetings"] += 1
        told["waited"] += time.perf_counter() - begun

    group.barrier = late
    generate(llm, 1)
    found = {}
    for delay in DELAYS_US:
        told["delay"] = delay * 1e-6
        rows = []
        for _ in range(ROUNDS):
            told |= {"meetings": 0, "waited": 0.0}
            begun = time.perf_counter()
            generate(llm, 1)
            seconds = time.perf_counter() - begun
            rows.append((seconds, told["meetings"], told["waited"]))
        seconds, meetings, waited = min(rows)
        found[str(delay)] = {
            "tokens_per_s": round(TOKENS / seconds, 1), "meetings_per_step": round(meetings / TOKENS, 2),
            "waiting": round(waited / seconds, 3),
        }  # fmt: skip
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        what, model, cores, ranks, number, of = sys.argv[1:]
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, json.loads(cores))
        if what == "serve":
            serve(Path(model), int(ranks), int(number), int(of))
        else:
            measure_links(Path(model), int(ranks))
