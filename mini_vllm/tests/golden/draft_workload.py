"""Random workloads for the scheduler with drafts, from a seed: how many each request is offered, and how many of them
the model accepts.

Used under real vLLM and under mini_vllm; it imports neither.
"""

from __future__ import annotations

import json
import random
import zlib
from typing import Any

from mini_vllm.tests.golden.group_workload import make_group_workload
from mini_vllm.tests.golden.scheduler_workload import VOCAB, Workload, make_pressed_workload, sampled_token

EAGLE = range(200, 260)


def make_draft_workload(seed: int) -> Workload:
    """The workload of this seed: as `make_group_workload`, every fourth as `make_pressed_workload`, with drafts.

    `config["drafts"]`: "k", drafts of a request in a step, and "method": a draft model needs lookahead slots and lets
    scheduling run ahead; for ngram neither holds. In those of `EAGLE`, and in every third behind them, an EAGLE head
    drafts, with slots of its own and hits that leave their last block out.
    """
    rng = random.Random(f"drafts/{seed}")
    workload = make_pressed_workload(seed) if seed % 4 == 3 else make_group_workload(seed)
    config = workload.config
    config.setdefault("groups", [(None, config["block_size"])])
    k = rng.choice([1, 2, 3, 5, 8])
    config["drafts"] = {"k": k, "method": rng.choice(["ngram", "ngram", "draft_model"])}
    if rng.random() < 0.1:
        config["async"] = True
    if config["async"]:  # as the release allows it; a reset with a step in flight drops too many results there
        config["drafts"]["method"] = "draft_model"
        workload.resets = [None] * len(workload.resets)
    if seed in EAGLE or (seed >= EAGLE.stop and seed % 3 == 0):
        config["drafts"]["method"] = "eagle"
    if config["drafts"]["method"] == "draft_model":
        config["max_num_batched_tokens"] += config["max_num_seqs"]
    # Lookahead, and a window beside a larger budget: what one request holds at most is more.
    more = k + (config["max_num_seqs"] if len(config["groups"]) > 1 or config["groups"][0][0] else 0)
    config["num_blocks"] += sum(more // block + 1 for _, block in config["groups"])
    return workload


def proposed(seed: int, request_id: str, index: int, k: int) -> list[int]:
    """Stand-in for the drafter: what it offers when a request has `index` output tokens."""
    rng = random.Random(f"{seed}/{request_id}/{index}/drafts")
    return [rng.randrange(VOCAB) for _ in range(k if rng.random() < 0.6 else rng.randint(0, k))]


def verified(seed: int, request_id: str, index: int, drafts: list[int]) -> list[int]:
    """Stand-in for the model: the drafts that it accepts, any number being as likely, and a token of its own. -1 stands
    for a draft that nobody has told us."""
    rng = random.Random(f"{seed}/{request_id}/{index}/accepted")
    accepted = drafts[: rng.randint(0, len(drafts))]
    known = [sampled_token(seed, request_id, index + i) if token < 0 else token for i, token in enumerate(accepted)]
    return [*known, sampled_token(seed, request_id, index + len(known))]


def short(record: dict[str, Any], drafts: dict[str, list[int]], state: dict[str, Any]) -> dict[str, Any]:
    """A step's record in few bytes: who gets how many tokens, with which drafts, who is preempted; a checksum over all
    the rest and over what the scheduler knows of each request afterwards."""
    kept = {"tokens": record["tokens"], "drafts": drafts, "preempted": record["preempted"]}
    rest = {key: value for key, value in record.items() if key not in kept}
    text = json.dumps([rest, sorted(state.items())], default=list)
    return {**kept, "rest": zlib.crc32(text.encode())}
