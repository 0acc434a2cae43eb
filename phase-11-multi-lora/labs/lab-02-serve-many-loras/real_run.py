"""Runs real vLLM 0.22.1 with three adapters made up on the spot. Given material: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER --arm together

Arms
    alone      each question with each adapter and with none, one request at a time: what every answer should be
    together   sixteen requests at once, three slots, and all three adapters in them
    roomy      the same requests, four slots, of which the last stays empty
    cap        two slots for three adapters: who runs in which step, and who has which slot

The adapters are random and strong, so that each of them says something else. Figures go to FOLDER/result.json.
`--device cuda` runs the same on a GPU.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
ADAPTERS = ("amber", "basil", "coral")  # numbers 1, 2, 3
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
RANK, ALPHA, MAX_TOKENS = 8, 16, 24
QUESTIONS = ("What is a KV block?", "Tell me a story about a fox.", "What is 20 + 3?", "Tell me a joke.")
SLOTS = {"alone": 4, "together": 3, "roomy": 4, "cap": 2}


def write_adapter(folder: Path, model: str, seed: int) -> Path:
    """An adapter in PEFT's layout for all projections of attention: random, and strong enough to be heard."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((Path(model) / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    wide, narrow = heads * head, config.get("num_key_value_heads", heads) * head
    shapes = {
        "q_proj": (wide, hidden),
        "k_proj": (narrow, hidden),
        "v_proj": (narrow, hidden),
        "o_proj": (hidden, wide),
    }
    chance, tensors = torch.Generator().manual_seed(seed), {}
    for layer in range(config["num_hidden_layers"]):
        for name, (outputs, inputs) in shapes.items():
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            a, b = (torch.randn(*shape, generator=chance) for shape in ((RANK, inputs), (outputs, RANK)))
            tensors[f"{key}.lora_A.weight"], tensors[f"{key}.lora_B.weight"] = a / inputs**0.5, b * STRENGTH
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": list(TARGETS), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return folder


STRENGTH = 0.15


def workload(arm: str) -> list[dict]:
    """Rows of question and adapter; None: the base."""
    if arm != "cap":
        return [{"question": q, "adapter": a} for q in QUESTIONS for a in (None, *ADAPTERS)]
    lengths = {"amber": (6, 14), "basil": (10, 18), "coral": (5, 5), None: (8, 8)}
    order = ("amber", "basil", "coral", None, "amber", "coral", "basil", None)
    seen: dict = {}
    rows = []
    for name in order:
        at = seen[name] = seen.get(name, -1) + 1
        rows.append({"question": QUESTIONS[at], "adapter": name, "max_tokens": lengths[name][at]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--arm", choices=[*SLOTS], default="together")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    for key, value in {**SETTINGS, **(ON_CPU if args.device == "cpu" else {})}.items():
        os.environ.setdefault(key, value)
    with tempfile.TemporaryDirectory() as folder:
        result = run(args, Path(folder))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


def run(args: argparse.Namespace, folder: Path) -> dict:
    """One arm."""
    from vllm import LLM, __version__
    from vllm.lora.request import LoRARequest

    options = {
        "dtype": "float32", "enforce_eager": True, "max_model_len": 256, "seed": 0, "max_num_seqs": 32,
        "enable_prefix_caching": False, "enable_lora": True, "max_loras": SLOTS[args.arm], "max_cpu_loras": 4,
        "max_lora_rank": RANK,
    }  # fmt: skip
    more: dict = {}
    if args.device == "cpu":
        import vllm.utils.torch_utils as utils
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        utils.async_tensor_h2d.__defaults__ = (False,)  # memory cannot be pinned where there is no driver
        more = {"distributed_executor_backend": UniProcExecutor}
    llm = LLM(model=args.model, **options, **more)
    adapters = {
        name: LoRARequest(name, number, str(write_adapter(folder / name, args.model, number)))
        for number, name in enumerate(ADAPTERS, 1)
    }
    rows, steps = workload(args.arm), watch(llm)
    if args.arm == "alone":
        answers = [ask(llm, [row], adapters)[0] for row in rows]
    else:
        ask(llm, [{"question": QUESTIONS[0], "adapter": name} for name in ADAPTERS[: SLOTS[args.arm]]], adapters)
        steps.clear()  # that was to fill the slots
        answers = ask(llm, rows, adapters)
    return {
        "vllm": __version__, "arm": args.arm, "device": args.device, "options": options, "slot_bytes": slot_bytes(llm),
        "slots": [each or 0 for each in manager_of(llm).lora_index_to_id],
        "answers": answers, "steps": steps if args.arm == "cap" else [],
    }  # fmt: skip


def ask(llm, rows: list[dict], adapters: dict) -> list[dict]:
    """The rows with their answers: ids, and at each place by how much the likeliest token led the second."""
    from vllm import SamplingParams

    chats = [[{"role": "user", "content": row["question"]}] for row in rows]
    params = [
        SamplingParams(temperature=0.0, max_tokens=row.get("max_tokens", MAX_TOKENS), ignore_eos=True, logprobs=2)
        for row in rows
    ]
    wanted = [adapters.get(row["adapter"]) for row in rows]
    found = []
    for row, out in zip(rows, llm.chat(chats, params, lora_request=wanted, use_tqdm=False), strict=True):
        best = [sorted((each.logprob for each in place.values()), reverse=True) for place in out.outputs[0].logprobs]
        found.append({
            "request": out.request_id, **row, "token_ids": list(out.outputs[0].token_ids),
            "margins": [round(place[0] - place[1], 5) for place in best], "text": out.outputs[0].text,
        })  # fmt: skip
    return found


def watch(llm) -> list[dict]:
    """A list that grows by one entry a step: who runs, who waits, and which adapter is in which slot."""
    core = llm.llm_engine.engine_core.engine_core
    schedule, steps, manager = core.scheduler.schedule, [], manager_of(llm)

    def noted(*args, **kwargs):
        output = schedule(*args, **kwargs)
        waiting = [*core.scheduler.skipped_waiting, *core.scheduler.waiting]
        steps.append({
            "running": list(output.num_scheduled_tokens), "waiting": [each.request_id for each in waiting],
            "slots_before": [each or 0 for each in manager.lora_index_to_id],
        })  # fmt: skip
        return output

    core.scheduler.schedule = noted
    return steps


def manager_of(llm):
    """The worker's `LRUCacheLoRAModelManager`."""
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker
    return getattr(worker, "worker", worker).model_runner.lora_manager._adapter_manager


def slot_bytes(llm) -> int:
    """What the buffers of all slots hold together."""
    total = 0
    for module in manager_of(llm).modules.values():
        for name in ("lora_a_stacked", "lora_b_stacked"):
            stacked = getattr(module, name, ())
            total += sum(each.nbytes for each in (stacked if isinstance(stacked, (tuple, list)) else (stacked,)))
    return total


if __name__ == "__main__":
    main()
