"""Scenes of the PagedAttention playground, played on mini_vllm's KV cache manager. One word is one token."""

from __future__ import annotations

from typing import Any

from mini_vllm import KVCacheManager, Request, SamplingParams, get_request_block_hasher

BLOCK_SIZE, NUM_BLOCKS = 4, 13
TEACHER = "You are a kind teacher . Be brief . What is a"
JUDGE = "You are a kind judge . Be brief . What is a"
BIRDS = "Name three birds that can not fly and tell me why ."
LONG = (
    "Long ago a wide river ran past the old mill and nobody in the village knew where it came from until one spring "
    "three children walked upstream for two whole days"
)
ANSWER = ["A", "block", "holds", "four", "tokens", "and", "their", "keys", "and", "values", "."]
# B takes all that is left; A writes on in its last block, which needs no other.
FULL = [
    ["send", "A", f"{TEACHER} block ?"],
    ["send", "B", LONG],
    ["write", "A", "A"],
    ["write", "A", "block"],
    ["end", "A"],
]
SCENES: dict[str, dict[str, Any]] = {
    "blocks": {"before": [], "act": ["send", "A", f"{TEACHER} block ?"]},
    "share": {"before": [["send", "A", f"{TEACHER} block ?"]], "act": ["send", "B", f"{TEACHER} token ?"]},
    "chain": {
        "before": [["send", "A", f"{TEACHER} block ?"], ["send", "B", f"{TEACHER} token ?"]],
        "act": ["send", "C", f"{JUDGE} block ?"],
    },
    "whole": {"before": [["send", "A", BIRDS]], "act": ["send", "B", BIRDS]},
    "free": {
        "before": [["send", "A", f"{TEACHER} block ?"], ["send", "B", f"{TEACHER} token ?"]],
        "act": ["end", "A"],
    },
    "victim": {
        "before": FULL,
        "act": ["send", "C", "Tell me a joke"],
        "options": ["block 1", "block 2", "block 3", "block 4"],
    },
    "return": {
        "before": [*FULL, ["send", "C", "Tell me a joke"], ["send", "D", "Sing me a song"], ["end", "B"]],
        "act": ["send", "A", f"{TEACHER} block ? A block And why ?"],
    },
}


class World:
    """Requests over a pool, as `PagedWorld` of paged.js."""

    def __init__(self) -> None:
        self.manager = KVCacheManager(NUM_BLOCKS, BLOCK_SIZE)
        self.hasher = get_request_block_hasher(BLOCK_SIZE)
        self.requests: dict[str, Request] = {}
        self.ids: dict[str, int] = {}
        self.found, self.fresh = 0, [0]

    def send(self, name: str, text: str) -> None:
        """A request whose whole prompt is scheduled at once."""
        tokens = [self.ids.setdefault(word, len(self.ids)) for word in text.split(" ")]
        request = Request(name, tokens, SamplingParams(max_tokens=64), block_hasher=self.hasher)
        hits, found = self.manager.get_computed_blocks(request)
        fresh = self.manager.allocate_slots(request, len(tokens) - found, found, hits)
        assert fresh is not None, f"{name} does not fit"
        request.num_computed_tokens = request.num_tokens
        self.requests[name] = request
        self.found, self.fresh = len(hits.blocks[0]), fresh.get_block_ids()[0]

    def write(self, name: str, word: str) -> None:
        """One more word of the answer, and its slot."""
        request = self.requests[name]
        request.append_output_token_ids(self.ids.setdefault(word, len(self.ids)))
        assert self.manager.allocate_slots(request, 1) is not None
        request.num_computed_tokens = request.num_tokens

    def end(self, name: str) -> None:
        """The request's blocks go back."""
        self.manager.free(self.requests.pop(name))

    def state(self) -> dict[str, Any]:
        """Tables, reference counts, the free queue in its order, blocks that can be found."""
        pool = self.manager.block_pool
        free, block = [], pool.free_block_queue.fake_free_list_head.next_free_block
        while block is not None and block.block_id >= 0:
            free.append(block.block_id)
            block = block.next_free_block
        return {
            "tables": {name: self.manager.get_block_ids(name)[0] for name in self.requests},
            "ref_cnt": [block.ref_cnt for block in pool.blocks[1:]],
            "free": free,
            "findable": [block.block_id for block in pool.blocks[1:] if block.block_hash is not None],
        }


def play(ops: list[list[str]]) -> tuple[World, list[dict[str, Any]]]:
    """The world after some acts, and its state after each."""
    world, states = World(), []
    for what, *given in ops:
        getattr(world, what)(*given)
        states.append(world.state())
    return world, states


def truth(name: str, world: World, before: World) -> Any:
    """What the question asks for."""
    if name == "blocks":
        return len(world.state()["tables"]["A"])
    if name == "free":
        return len(world.state()["free"]) - len(before.state()["free"])
    return f"block {world.fresh[0]}" if name == "victim" else world.found


def record() -> dict[str, Any]:
    """Scenes, the state after each of their acts, the answers, and what free play offers."""
    states, answers = {}, {}
    for name, scene in SCENES.items():
        world, states[name] = play([*scene["before"], scene["act"]])
        answers[name] = truth(name, world, play(scene["before"])[0])
    prompts = [f"{TEACHER} block ?", f"{TEACHER} token ?", f"{JUDGE} block ?", BIRDS, "Tell me a joke"]
    return {"scenes": SCENES, "states": states, "answers": answers, "prompts": prompts, "answer": ANSWER}
