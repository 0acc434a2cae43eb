"""Measures a prefill engine and a decode engine of real vLLM against engines that do both, on two GPUs of one host.

    python gpu_run.py --out FOLDER [--seconds 12] [--limit 400]

Needs vLLM 0.22.1 on two GPUs that reach each other through NCCL. Nothing is downloaded: the model has the shape of
Llama-3-8B, and random weights that every engine makes from the same seeds. Engines are `AsyncLLM`s in processes of
their own (`bench.py`). What an arm found goes into FOLDER/capture.json at once, all its times into
FOLDER/raw-ARM.json. An arm that fails leaves {"failed": why}, and the others go on.

Rounds, each with two engines, one a GPU:
    pair         P prefills, D decodes, keys and values go over P2pNcclConnector
    whole        two engines that do both, 8,192 tokens a step: arms `one` (the first of them alone) and `two`
    chunked      the same with 512 tokens a step: `one-512` and `two-512`
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench import NUMBERS, PORTS, Answer, Capture, Engine, Load, ask, engines, measure, serve, to_plain

SCRIPT = Path(__file__).resolve()
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "INFO", "VLLM_HOST_IP": "127.0.0.1", "PYTHONUNBUFFERED": "1",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1", "VLLM_USE_V2_MODEL_RUNNER": "0",
}  # fmt: skip
KV_PORTS = {"P": 21001, "D": 22001}
LAYERS = LLAMA["num_hidden_layers"]
LOAD = Load(16, 64, 400, 2031, 32, 2, 0.5, LLAMA["vocab_size"])


# ---- one engine, in a process of its own ----------------------------------------------------------------------------


def patch_vllm() -> None:
    """What the measurement changes in vLLM: dummy weights with which keys and values matter, and times of transfers.

    vLLM's dummy weights lie within 0.001 of 0, the same for all layers: attention then adds nothing that anybody would
    miss. Here each has the scale that keeps the size of its input, and a seed of its own; norms are 1.
    """
    try:
        import msgpack  # noqa: F401  (P2pNcclEngine wants it)
    except ImportError:
        import types

        import msgspec

        shim = types.ModuleType("msgpack")
        shim.dumps = lambda data: msgspec.msgpack.encode(data, enc_hook=list)
        shim.loads = msgspec.msgpack.decode
        sys.modules["msgpack"] = shim
    import torch
    from vllm.model_executor.model_loader import weight_utils

    number = [0]

    @torch.no_grad()
    def scaled(param, low=-1e-3, high=1e-3, seed=1234):
        if not torch.is_floating_point(param):
            return
        number[0] += 1
        if param.ndim < 2:
            param.fill_(1.0)
            return
        generator = torch.Generator(device=param.device)
        generator.manual_seed(seed + number[0])
        bound = (3.0 / param.shape[-1]) ** 0.5
        param.uniform_(-bound, bound, generator=generator)

    weight_utils.initialize_single_dummy_weight = scaled
    if os.environ["PD_ROLE"] in ("P", "D"):
        time_transfers(Path(os.environ["PD_TRACE"]))


def time_transfers(path: Path) -> None:
    """Write a line for each request whose keys and values were sent, and for each step that waited for some."""
    from vllm.distributed.kv_transfer.kv_connector.v1.p2p import p2p_nccl_connector, p2p_nccl_engine

    sent: dict[str, list] = {}
    send, load = p2p_nccl_engine.P2pNcclEngine.send_sync, p2p_nccl_connector.P2pNcclConnector.start_load_kv

    def note(**row) -> None:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def timed_send(self, item):
        began = time.perf_counter()
        done = send(self, item)
        row = sent.setdefault(item.tensor_id.split("#")[0], [0, 0, began, 0.0])
        row[0] += 1
        row[1] += item.tensor.numel() * item.tensor.element_size()
        row[3] += time.perf_counter() - began
        if row[0] == LAYERS:
            request = item.tensor_id.split("#")[0]
            tensors, size, first, busy = sent.pop(request)
            whole = time.perf_counter() - first
            note(what="sent", id=request[-12:], tensors=tensors, bytes=size, busy_s=busy, first_to_last_s=whole)
        return done

    def timed_load(self, forward_context, **kwargs):
        began = time.perf_counter()
        load(self, forward_context, **kwargs)
        if not self.is_producer and self._get_connector_metadata().requests:
            requests = [(one.request_id[-12:], one.num_tokens) for one in self._get_connector_metadata().requests]
            note(what="loaded", requests=requests, host_s=time.perf_counter() - began)

    p2p_nccl_engine.P2pNcclEngine.send_sync = timed_send
    p2p_nccl_connector.P2pNcclConnector.start_load_kv = timed_load


if os.environ.get("PD_ROLE"):  # in the engine's processes, whether forked or spawned
    patch_vllm()


def options_of(role: str, budget: int) -> dict:
    """Keyword arguments of the engine."""
    options = {
        "load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 4096, "max_num_seqs": 64,
        "block_size": 16, "enable_prefix_caching": False, "gpu_memory_utilization": 0.6, "dtype": "bfloat16",
        "max_num_batched_tokens": budget, "seed": 0, "disable_log_stats": False,
        "compilation_config": {
            "mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, *range(8, 65, 8)],
        },
    }  # fmt: skip
    if role in "PD":
        from vllm.config import KVTransferConfig

        options["kv_transfer_config"] = KVTransferConfig(
            kv_connector="P2pNcclConnector", kv_role="kv_producer" if role == "P" else "kv_consumer",
            kv_port=KV_PORTS[role], kv_buffer_size=1e8 if role == "P" else 8e9,
            kv_connector_extra_config={"send_type": "PUT_ASYNC", "nccl_num_channels": "16", "mem_pool_size_gb": 1},
        )  # fmt: skip
    return options


async def engine_main(role: str, port: int, model: Path, budget: int) -> None:
    """One engine of vLLM behind a socket; every two seconds a line of statistics."""
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(LLAMA))
    began = time.perf_counter()
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(model), **options_of(role, budget)))
    config = engine.vllm_config
    facts = {
        "start_s": round(time.perf_counter() - began, 1), "num_blocks": config.cache_config.num_gpu_blocks,
        "block_size": config.cache_config.block_size, "async_scheduling": config.scheduler_config.async_scheduling,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
    }  # fmt: skip

    async def generate(question: dict) -> AsyncIterator[dict]:
        params = SamplingParams(
            temperature=0.0, max_tokens=question["max_tokens"], ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        async for output in engine.generate({"prompt_token_ids": question["prompt"]}, params, question["id"]):
            yield {"t": list(output.outputs[0].token_ids), "end": output.finished}

    async def log() -> None:
        while True:
            await asyncio.sleep(2)
            await engine.do_log_stats()

    await asyncio.gather(serve(port, lambda: facts, generate), log())


def pair_id(number: int) -> str:
    """P2pNcclConnector finds the other side in the request's name."""
    p, d = (f"127.0.0.1:{KV_PORTS[role]}" for role in "PD")
    return f"___prefill_addr_{p}___decode_addr_{d}_{number:06d}"


async def to_pair(place: int, prompt: list[int], max_tokens: int, note: Answer) -> Answer:
    """To P for one token, then to D for all of them. Both get the same name."""
    name = pair_id(next(NUMBERS))
    first = await ask(PORTS["P"], name, prompt, 1)
    note |= {"p_done": time.perf_counter(), "p_token": first["tokens"][:1]}
    if first["error"]:
        return {**first, "error": f"P: {first['error']}"}
    return await ask(PORTS["D"], name, prompt, max_tokens, note.setdefault("times", []))


def two(folder: Path, name: str, roles: str, budget: int) -> list[Engine]:
    """Two engines, one a GPU."""
    cards = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    return [
        Engine(
            SCRIPT, f"{name}-{index}", index, role, folder / "logs", {"budget": budget},
            {**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": cards[index]},
        )
        for index, role in enumerate(roles)
    ]  # fmt: skip


async def run_all(folder: Path, seconds: float, limit: float) -> None:
    capture = Capture(folder, limit, LOAD, command="gpu_run.py --out FOLDER", environment=ENVIRONMENT, shape=LLAMA)
    rounds = (
        ("pair", "PD", 8192, (("pair", to_pair),)),
        ("whole", "AB", 8192, (("one", to_plain(1)), ("two", to_plain(2)))),
        ("chunked", "AB", 512, (("one-512", to_plain(1)), ("two-512", to_plain(2)))),
    )
    for name, roles, budget, arms in rounds:
        try:
            async with engines(capture, name, two(folder, name, roles, budget)):
                for arm, route in arms:
                    await capture.arm(arm, lambda route=route: measure(route, LOAD, seconds), 150)
        except Exception as error:
            capture.data["arms"][f"start-{name}"] = {"failed": f"{type(error).__name__}: {error}"[:3000]}
            capture.save()
            print(f"start-{name}: {error}"[:1500], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=12.0, help="of load in each arm")
    parser.add_argument("--limit", type=float, default=400.0, help="no arm begins after so many seconds")
    parser.add_argument("--engine", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        role, port, given = args.engine
        asyncio.run(engine_main(role, int(port), args.out.parent / "model", **json.loads(given)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the engines are ended, too
    asyncio.run(run_all(args.out.resolve(), args.seconds, args.limit))


if __name__ == "__main__":  # vLLM starts processes of its own, which import this file again
    main()
