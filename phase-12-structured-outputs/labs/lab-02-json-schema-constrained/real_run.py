"""Runs real vLLM 0.22.1 on sixty questions, with a schema and without. Given material: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER --arm schema

Arms
    free      no constraint; the question asks for JSON
    schema    the same questions under SCHEMA
    compact   the same, and no whitespace but one blank after each comma and colon

Answers are drawn at temperature 0.8, each with its own seed. After them come single requests of one token, timed: a
free one, and the first and later ones under a schema that the engine has not seen before; and one answer that may have
12 tokens. Figures go to FOLDER/result.json.
"""

import argparse
import json
import os
import time
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB of KV cache on the CPU backend
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
NAMES = ("Alma", "Bruno", "Celia", "Dario", "Edda", "Felix", "Gina", "Harald", "Ines", "Jarek")
CITIES = ("Ghent", "Stockholm", "Brussels", "Porto", "Krakow", "Turin", "Bergen")
JOBS = ("pirate", "astronaut", "barista", "wizard", "plumber")
KINDS = ("fields", "profile", "sentence")
PER_KIND, MAX_TOKENS, SHORT = 20, 64, 12


def questions() -> list[dict]:
    """Kind, question, and the values that the answer should have; None where any will do."""
    rows = []
    for kind in KINDS:
        for i in range(PER_KIND):
            name, city, age = NAMES[i % len(NAMES)], CITIES[i % len(CITIES)], (17 * i + 5) % 90 + 5
            text = {
                "fields": f"Write a JSON object with name {name}, age {age} and city {city}.",
                "profile": f"Write a profile of a fictional {JOBS[i % len(JOBS)]} as JSON with name, age and city.",
                "sentence": f"Please answer in JSON. The name is {name}, who is {age} years old and lives in {city}.",
            }[kind]
            wanted = None if kind == "profile" else {"name": name, "age": age, "city": city}
            rows.append({"kind": kind, "question": text, "wanted": wanted})
    return rows


def large_schema(number: int) -> dict:
    """Forty fields in four objects; each number makes another schema, so that nothing of it was compiled before."""
    part = {f"field{number}_{i}": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"} for i in range(10)}
    whole = {"type": "object", "properties": part, "required": list(part), "additionalProperties": False}
    return {"type": "object", "properties": dict.fromkeys("abcd", whole), "required": [*"abcd"]}


def timed(llm, params) -> float:
    """Milliseconds of one request."""
    start = time.perf_counter()
    llm.generate(["What is a KV block?"], params, use_tqdm=False)
    return round(1e3 * (time.perf_counter() - start), 3)


def measure_compile(llm, make) -> list[dict]:
    """Latency of single requests of one token, in milliseconds: by what was asked, and whether it was new."""
    rows = [{"constraint": "none", "first": False, "ms": timed(llm, make(None))} for _ in range(12)][2:]
    for number in range(5):
        small = {**SCHEMA, "title": f"number {number}"}
        for name, schema in (("small", small), ("large", large_schema(number))):
            for at in range(3):
                rows.append({"constraint": name, "first": at == 0, "ms": timed(llm, make(schema))})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--arm", choices=["free", "schema", "compact"], default="schema")
    args = parser.parse_args()
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    from vllm import LLM, SamplingParams, __version__
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    options = {
        "dtype": "float32", "enforce_eager": True, "max_model_len": 512, "seed": 0, "max_num_seqs": 32,
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": args.arm == "compact"},
    }  # fmt: skip
    llm = LLM(model=args.model, distributed_executor_backend=UniProcExecutor, **options)

    def params(schema, max_tokens, seed=None, temperature=0.8):
        form = None if schema is None else StructuredOutputsParams(json=schema)
        return SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens, structured_outputs=form)

    asked, schema = questions(), None if args.arm == "free" else SCHEMA
    chats = [[{"role": "user", "content": row["question"]}] for row in asked]
    outputs = llm.chat(chats, [params(schema, MAX_TOKENS, i) for i in range(len(asked))], use_tqdm=False)
    answers = [
        {**row, "text": out.outputs[0].text, "finish_reason": out.outputs[0].finish_reason,
         "num_tokens": len(out.outputs[0].token_ids)}
        for row, out in zip(asked, outputs, strict=True)
    ]  # fmt: skip
    latency = measure_compile(llm, lambda wanted: params(wanted, 1, temperature=0.0)) if args.arm == "schema" else []
    short = llm.chat(chats[:1], params(schema, SHORT, 0), use_tqdm=False)[0].outputs[0]
    result = {
        "vllm": __version__, "arm": args.arm, "options": options, "schema": SCHEMA, "answers": answers,
        "short": {"text": short.text, "finish_reason": short.finish_reason},
        "latency": latency,
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
