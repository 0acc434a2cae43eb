"""Runs real vLLM 0.22.1 on this machine's processors. Given material: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER --what config

Four questions, one a run; the figures go to FOLDER/result.json, what the engine prints to stdout and stderr.

config      What does the platform change in the configuration? Every field of the `VllmConfig`, and every variable of
            the environment, before and after `CpuPlatform.check_and_update_config`.
questions   What does the engine ask the platform? `current_platform` is replaced by an object that notes each
            question, its answer and the file that asked; then the engine starts and answers a prompt, in one process.
rate        How fast is it? Needs no checkpoint: the shape of Qwen2.5-0.5B with weights made on the spot. Milliseconds a
            token for one request and for eight, in `--dtype`; and how fast one core summed up 1 GiB just before.
bandwidth   How fast does one core read memory at best? Sixty products of a matrix of 1 GiB with a vector, a second
            apart, the best of all: other programs only take away. And sixty sums over the same numbers.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "DEBUG",  # who is chosen is said at this level alone
    "TORCHDYNAMO_DISABLE": "1",  # no compiler: its time is another phase's subject
}
QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
    "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "tie_word_embeddings": True, "use_sliding_window": False, "torch_dtype": "bfloat16",
    "bos_token_id": 151643, "eos_token_id": 151645,
}  # fmt: skip
"""The numbers of Qwen2.5-0.5B's config.json."""
QUESTION = "What is a KV block?"


def flat(prefix: str, value: Any, into: dict[str, str]) -> dict[str, str]:
    """Name with dots -> what `repr` says, for each field of a dataclass and of those in it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            flat(f"{prefix}.{field.name}".lstrip("."), getattr(value, field.name, "unset"), into)
    else:
        into[prefix] = repr(value)[:160]
    return into


def changed(before: dict[str, str], after: dict[str, str]) -> list[list[str]]:
    """[name, before, after] of what is not as it was."""
    names = sorted(before.keys() | after.keys())
    pairs = [[name, before.get(name, "unset"), after.get(name, "unset")] for name in names]
    return [each for each in pairs if each[1] != each[2]]


def config(model: str, options: dict[str, Any]) -> dict[str, Any]:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms.cpu import CpuPlatform

    update, seen = CpuPlatform.check_and_update_config.__func__, {}

    def watched(cls: type, vllm_config: Any) -> None:
        before, env = flat("", vllm_config, {}), dict(os.environ)
        update(cls, vllm_config)
        seen["config"] = changed(before, flat("", vllm_config, {}))
        seen["fields"] = len(before)
        seen["environment"] = [[name, old, short(new)] for name, old, new in changed(env, dict(os.environ))]

    CpuPlatform.check_and_update_config = classmethod(watched)
    made = EngineArgs(model=model, distributed_executor_backend="uni", **options).create_engine_config()
    return {**seen, "cudagraph_mode": str(made.compilation_config.cudagraph_mode)}


def short(value: str) -> str:
    """A path without the folders above it."""
    return ":".join(Path(each).name for each in value.split(":")) if "/" in value else value


class Watch:
    """Stands before the platform and notes who asks what."""

    def __init__(self, platform: Any) -> None:
        self.__dict__.update(_platform=platform, _asked=Counter(), _from=Counter(), _answers={})

    def __getattr__(self, name: str) -> Any:
        answer = getattr(self._platform, name)
        if name.startswith("__"):
            return answer
        caller = sys._getframe(1).f_code.co_filename.split("/vllm/")[-1]
        self._asked[name] += 1
        self._from[name, caller] += 1
        if not callable(answer):
            self._answers[name] = repr(answer)
            return answer

        def noted(*args: Any, **kwargs: Any) -> Any:
            self._answers[name] = repr(found := answer(*args, **kwargs))[:120]
            return found

        return noted

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._platform, name, value)


def questions(model: str, options: dict[str, Any]) -> dict[str, Any]:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_LOGGING_LEVEL"] = "INFO"
    import vllm.platforms as platforms

    watch = Watch(platforms.current_platform)
    platforms._current_platform = watch  # before anybody else has read it
    from vllm import LLM, SamplingParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor  # its name would be rewritten, the class is not

    llm = LLM(model=model, distributed_executor_backend=UniProcExecutor, **options)
    started = Counter(watch._asked)
    params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
    out = llm.chat([{"role": "user", "content": QUESTION}], params, use_tqdm=False)[0]
    rows = [
        {
            "question": name, "asked": watch._asked[name], "of_these_at_work": watch._asked[name] - started[name],
            "answer": watch._answers.get(name, "never called"), "most": most_from(watch._from, name),
        }
        for name in sorted(watch._asked, key=lambda name: (-watch._asked[name], name))
    ]  # fmt: skip
    missing = watch._platform.supports_fp_8  # nobody has such an attribute
    files = len({file for _, file in watch._from})
    return {"text": out.outputs[0].text, "files": files, "a_misspelt_question": repr(missing), "questions": rows}


def most_from(asked: Counter[tuple[str, str]], name: str) -> str:
    """The file that asks this most often, and how often."""
    count, file = max((count, file) for (question, file), count in asked.items() if question == name)
    return f"{file}: {count}"


def bandwidth_gb_s(times: int = 8, pause_s: float = 0.0) -> dict[str, float]:
    """GB/s of 1 GiB of numbers, summed up and multiplied with a vector: the best of so many times, by one thread."""
    import torch

    torch.set_num_threads(1)
    numbers = torch.zeros(1 << 28)
    matrix, vector = numbers.view(1 << 14, 1 << 14), torch.ones(1 << 14)
    best = {"sum": float("inf"), "product": float("inf")}
    for _ in range(times):
        for name, read in (("sum", numbers.sum), ("product", lambda: matrix @ vector)):
            begun = time.perf_counter()
            read()
            best[name] = min(best[name], time.perf_counter() - begun)
        time.sleep(pause_s)
    return {name: round(numbers.nbytes / seconds / 1e9, 2) for name, seconds in best.items()}


def rate(model: str, options: dict[str, Any], dtype: str) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    speed = bandwidth_gb_s()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(QWEN), encoding="utf-8")
        options |= {"dtype": dtype, "max_num_batched_tokens": 128, "max_num_seqs": 8}  # its warm-up has as many tokens
        llm = LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, enable_prefix_caching=False, **options)

    def seconds(batch: int, tokens: int) -> float:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": [100 + row, 7, 9, 11]} for row in range(batch)]
        begun = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - begun

    seconds(1, 4)
    rows = []
    for batch in (1, 8):
        each = min(seconds(batch, 9) - seconds(batch, 1) for _ in range(3)) / 8
        rows.append({"batch": batch, "ms_a_step": round(each * 1e3, 2), "tokens_a_second": round(batch / each, 2)})
    cache = llm.llm_engine.vllm_config.cache_config
    return {
        "dtype": dtype, "bandwidth_gb_s": speed["sum"], "block_size": cache.block_size,
        "num_blocks": cache.num_gpu_blocks, "rates": rows,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--what", choices=("config", "questions", "rate", "bandwidth"), required=True)
    parser.add_argument("--dtype", default="bfloat16", help="of `rate`")
    parser.add_argument("--space", default="4", help="GiB for keys and values: VLLM_CPU_KVCACHE_SPACE")
    args = parser.parse_args()
    for key, value in {**SETTINGS, "VLLM_CPU_KVCACHE_SPACE": args.space}.items():
        os.environ.setdefault(key, value)
    options: dict[str, Any] = {"max_model_len": 1024, "enforce_eager": True, "seed": 0}
    if args.what == "config":
        result = config(args.model, {"max_model_len": 1024, "seed": 0})
    elif args.what == "questions":
        result = questions(args.model, {**options, "dtype": "float32"})
    elif args.what == "bandwidth":
        result = {"gb_s": bandwidth_gb_s(60, 1.0)}
    else:
        result = rate(args.model, options, args.dtype)
    import vllm

    args.out.mkdir(parents=True, exist_ok=True)
    found = {"vllm": vllm.__version__, "what": args.what, "space_gib": int(args.space), **result}
    (args.out / "result.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":  # vLLM starts processes of its own, which import this file again
    main()
