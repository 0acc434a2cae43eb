"""The bugs of vLLM 0.22.1 that we know in what its scheduler does for media: as `upstream_patches.py`."""

from __future__ import annotations

from typing import Any

from mini_vllm.tests.golden.upstream_patches import Patch

MEDIA_PATCHES = {
    patch.name: patch
    for patch in (
        Patch(
            "a-victim-has-encoded-nothing",
            "A request that is preempted in the very step that was to encode an item for it leaves the item in the "
            "cache as if it had been encoded. Whoever needs it next, or counts on it in the same step, asks the runner "
            "for embeddings that nobody has computed. And the budget that it gives back is overwritten where the "
            "request that it gives way to has items itself.",
            """\
                            if preempted_encoder_inputs:
                                # Restore encoder compute budget if the preempted
                                # request had encoder inputs scheduled in this step.
                                num_embeds_to_restore = sum(
                                    preempted_req.get_num_encoder_embeds(i)
                                    for i in preempted_encoder_inputs
                                )
                                encoder_compute_budget += num_embeds_to_restore
""",
            """\
                            for _i in preempted_encoder_inputs or ():
                                _key = preempted_req.mm_features[_i].identifier
                                _num = preempted_req.get_num_encoder_embeds(_i)
                                if not self.is_encoder_decoder:
                                    _cache = self.encoder_cache_manager
                                    _users = _cache.cached[_key]
                                    _heirs = [r for r in scheduled_running_reqs if r.request_id in _users]
                                    _heir = (_heirs or [request])[0]
                                    _names = [f.identifier for f in _heir.mm_features]
                                    if _heirs:
                                        scheduled_encoder_inputs.setdefault(_heir.request_id, []).append(
                                            _names.index(_key)
                                        )
                                        continue
                                    del _cache.cached[_key]
                                    _cache.num_free_slots += _num
                                    _cache.num_freeable_slots += _num
                                    if request is not preempted_req and request.request_id in _users:
                                        encoder_inputs_to_schedule.append(_names.index(_key))
                                        new_encoder_compute_budget -= _num
                                encoder_compute_budget += _num
                                new_encoder_compute_budget += _num
""",
        ),
        Patch(
            "what-the-head-sees-is-encoded",
            "With an EAGLE head an item is needed one token earlier. Where a chunk ends right before an item, the item "
            "is found to be needed, and is then left out, because the embeddings are looked for in the chunk without "
            "that token. The runner misses them when the head runs.",
            """\
                num_encoder_tokens, num_computed_tokens + num_new_tokens - start_pos
""",
            """\
                num_encoder_tokens,
                num_computed_tokens + num_new_tokens + shift_computed_tokens - start_pos,
""",
            "_try_schedule_encoder_inputs",
        ),
        Patch(
            "one-token-before-an-item-is-no-end",
            "With an EAGLE head a request stands one token before an item for which there is no room, while the cache "
            "is full of the item that this very token belongs to: it waits for itself, for ever.",
            """\
                    num_new_tokens = 0
                break
""",
            """\
                    num_new_tokens = max(0, start_pos - num_computed_tokens)
                break
""",
            "_try_schedule_encoder_inputs",
        ),
        Patch(
            "an-item-that-fits-no-step-is-cut",
            "With `disable_chunked_mm_input` an item that is longer than the rest of a step is cut once the request "
            "has come to it. With an EAGLE head the request never comes to it: it is sent back to one token before it.",
            """\
                and num_computed_tokens < start_pos
                and (num_computed_tokens + num_new_tokens)
""",
            """\
                and num_computed_tokens + shift_computed_tokens < start_pos
                and (num_computed_tokens + num_new_tokens)
""",
            "_try_schedule_encoder_inputs",
        ),
        Patch(
            "who-goes-back-lets-go",
            "A request whose load failed goes back to an earlier token and keeps the item it had come to. Where the "
            "cache has no room for an earlier item beside it, the request waits for itself, for ever.",
            """\
        stopped_running_reqs: set[Request] = set()
""",
            """\
        for each in num_scheduled_tokens if self.recompute_kv_load_failures else ():
            if each in (failed_kv_load_req_ids or ()):
                self.encoder_cache_manager.free(self.requests[each])
        stopped_running_reqs: set[Request] = set()
""",
            "update_from_output",
        ),
    )
}

HASH_PATCHES = {
    patch.name: patch
    for patch in (
        Patch(
            "a-block-knows-all-its-items",
            "Where a block is filled with generated tokens, the last item of the request is looked at alone. Two items "
            "may end in it; then a request with another first item finds the block.",
            """\
        assert -start_mm_idx <= len(mm_features)
        start_mm_idx = len(mm_features) + start_mm_idx
""",
            """\
        start_mm_idx = 0
""",
            "_gen_mm_extra_hash_keys",
        ),
    )
}


class HeldInputs:
    """Patches of `EncoderDecoderCacheManager`: it gives room back at every step of a request, and to requests that have
    never taken any, so that there is more of it than there is. Here each input gives back what it took."""

    @staticmethod
    def applied_to(manager: Any) -> Any:
        """The same manager, which counts."""
        held: dict[tuple[str, int], int] = {}
        allocate, reset = manager.allocate, manager.reset

        def count(request: Any, input_id: int) -> None:
            allocate(request, input_id)
            held[request.request_id, input_id] = request.get_num_encoder_embeds(input_id)

        def free(request: Any, input_id: int) -> None:
            manager.num_free_slots += held.pop((request.request_id, input_id), 0)

        def forget() -> None:
            reset()
            held.clear()

        manager.allocate, manager.free_encoder_input, manager.reset = count, free, forget
        return manager
