"""Four questions to real vLLM 0.22.1 about structured outputs: writes probe.json beside this file.

.venv-vllm/bin/python phase-12-structured-outputs/captured/probe.py

backends    the first constrained request chooses the backend; the others have a keyword that this backend's check
            at the door refuses: which one compiles them, and are they obeyed?
ignore_eos  a grammar that has ended, and a request that may not end
special     may the text of a role mark stand inside of a string? (the mask at the first place inside of one)
min_tokens  a grammar that leaves nothing but the end, and a request that may not end yet
"""

import json
import os
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip
SCHEMAS = [
    {"type": "integer"},
    {"type": "integer", "minimum": 1, "maximum": 99, "multipleOf": 10},
    {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2, "uniqueItems": True},
    {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2, "contains": {"const": 2}},
    {"type": "object", "propertyNames": {"pattern": "^z"}, "additionalProperties": {"enum": [1]}, "minProperties": 1},
    {"type": "string", "format": "phone", "maxLength": 6},
    {"type": "object", "patternProperties": {"^z$": {"enum": [1]}}, "additionalProperties": False, "minProperties": 1},
]
ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    import torch
    from vllm import LLM, SamplingParams, __version__
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm = LLM(
        str(ROOT / "models" / "pocket"), dtype="float32", enforce_eager=True, max_model_len=256, seed=0,
        distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip
    manager = llm.llm_engine.engine_core.engine_core.scheduler.structured_output_manager

    def ask(max_tokens=20, **form):
        more = {key: form.pop(key) for key in ("ignore_eos", "min_tokens") if key in form}
        wanted = StructuredOutputsParams(**form)
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, structured_outputs=wanted, **more)
        try:
            out = llm.generate(["What is 20 + 3?"], params, use_tqdm=False)[0].outputs[0]
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        row = {"text": out.text, "finish_reason": out.finish_reason, "num_tokens": len(out.token_ids)}
        return {**row, "asked_backend": wanted._backend, "compiled_by": type(manager.backend).__name__}

    found = {"vllm": __version__}
    found["backends"] = [{"schema": schema, **ask(json=schema, max_tokens=40)} for schema in SCHEMAS]
    found["ignore_eos"] = ask(choice=["yes"], ignore_eos=True)
    found["min_tokens"] = ask(choice=["yes"], min_tokens=12)
    grammar = manager.backend.compile_grammar(*_key({"type": "string"}))
    assert grammar.accept_tokens("probe", [llm.get_tokenizer().encode('"', add_special_tokens=False)[0]])
    rows = manager.backend.allocate_token_bitmask(1)
    grammar.fill_bitmask(rows, 0)
    words = rows[0].to(torch.int64)
    tokenizer = llm.get_tokenizer()
    found["special"] = {
        token: bool(words[number // 32] >> (number % 32) & 1)
        for token, number in sorted(tokenizer.get_added_vocab().items(), key=lambda pair: pair[1])
    }
    (Path(__file__).with_name("probe.json")).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def _key(schema):
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    return StructuredOutputOptions.JSON, json.dumps(schema)


if __name__ == "__main__":
    main()
