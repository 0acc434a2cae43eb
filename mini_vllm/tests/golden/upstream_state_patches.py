"""The bugs of vLLM 0.22.1's managers of states that we know, each as a small wrapper with its explanation.

`applied_to_states` puts them around the real classes while it runs; the pinned files are not touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.utils.math_utils import cdiv
from vllm.v1.core.encoder_cache_manager import EncoderDecoderCacheManager
from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
from vllm.v1.core.single_type_kv_cache_manager import MambaManager
from vllm.v1.kv_cache_interface import MambaSpec


def states_drop_no_block(original: Any) -> Any:
    """With an EAGLE head attention leaves the last block of a hit out, and so that it still has it, is asked for one
    more. A group of states is asked for one more too, and leaves nothing out: its hit, and with it that of the model,
    may be a block longer than what attention has, and that block of keys and values is never computed.
    """

    def verify_and_split_kv_cache_groups(self: Any) -> None:
        original(self)
        groups = enumerate(self.attention_groups)
        self.eagle_attn_group_indices -= {i for i, (spec, _, _) in groups if isinstance(spec, MambaSpec)}

    return verify_and_split_kv_cache_groups


def fewer_drafts_need_no_block(original: Any) -> Any:
    """In "align" a step with fewer drafts than the one before, of which the most were rejected, can end in a block
    before that one's: the table is longer than it has to be, and an assertion fails.
    """

    def allocate_new_blocks(self: Any, request_id: str, num_tokens: int, num_tokens_main_model: int) -> Any:
        required = cdiv(num_tokens_main_model, self.block_size) + self.num_speculative_blocks
        if self.mamba_cache_mode == "align" and required <= len(self.req_to_blocks[request_id]):
            return []
        return original(self, request_id, num_tokens, num_tokens_main_model)

    return allocate_new_blocks


def room_is_given_back_once(original: Any) -> Any:
    """The room of an encoder's input is given back in every step of its request, and once more when that ends, so that
    soon there is more than there ever was.
    """

    def free_encoder_input(self: Any, request: Any, input_id: int) -> None:
        held = self.__dict__.setdefault("held", set())
        if (request.request_id, input_id) in held:
            held.remove((request.request_id, input_id))
            original(self, request, input_id)

    return free_encoder_input


def room_is_noted(original: Any) -> Any:
    """For the one before: who holds room."""

    def allocate(self: Any, request: Any, input_id: int) -> None:
        self.__dict__.setdefault("held", set()).add((request.request_id, input_id))
        original(self, request, input_id)

    return allocate


STATE_PATCHES = {
    "states-drop-no-block": (HybridKVCacheCoordinator, "verify_and_split_kv_cache_groups", states_drop_no_block),
    "fewer-drafts-need-no-block": (MambaManager, "allocate_new_blocks", fewer_drafts_need_no_block),
    "room-is-given-back-once": (EncoderDecoderCacheManager, "free_encoder_input", room_is_given_back_once),
    "room-is-noted": (EncoderDecoderCacheManager, "allocate", room_is_noted),
}


def why() -> dict[str, str]:
    """Each patch's explanation."""
    return {name: " ".join((make.__doc__ or "").split()) for name, (_, _, make) in STATE_PATCHES.items()}


@contextmanager
def applied_to_states() -> Iterator[None]:
    """While inside, the real classes have these patches."""
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in STATE_PATCHES.values()]
    try:
        for owner, name, make in STATE_PATCHES.values():
            setattr(owner, name, make(getattr(owner, name)))
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
