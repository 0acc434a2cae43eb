"""`refacc MODEL PROMPT`: an answer, and what the device did for it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mini_vllm import LLM, SamplingParams


def main(argv: Sequence[str] | None = None) -> None:
    """Continue a prompt greedily on the device."""
    parser = argparse.ArgumentParser(prog="refacc", description="Continue a prompt, and count.")
    parser.add_argument("model", help="folder of a Llama checkpoint")
    parser.add_argument("prompt")
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--kv-memory", type=int, default=64 << 20, help="bytes of the KV cache (64 MiB)")
    args = parser.parse_args(argv)
    llm = LLM(args.model, device="refacc", kv_cache_memory_bytes=args.kv_memory)
    params = SamplingParams(temperature=0.0, max_tokens=args.max_tokens)
    print(llm.generate(args.prompt, params, use_tqdm=False)[0].outputs[0].text.strip())
    print()
    print(*llm.llm_engine.collective_rpc("get_report"), sep="\n\n")


if __name__ == "__main__":
    main()
