"""Over groups of states, of chunked local attention and of cross attention the scheduler decides as the real one of
vLLM 0.22.1: every table, the whole free queue, every KV cache event, in every `mamba_cache_mode`, with drafts, with
preemption under both policies, and one step ahead."""

import pytest

from mini_vllm.core.chunked_local_attention_manager import ChunkedLocalAttentionManager
from mini_vllm.core.mamba_manager import MambaManager
from mini_vllm.core.sched.encoder_inputs import EncoderStep
from mini_vllm.core.sched.mamba_split import MambaBlockAlignedSplit
from mini_vllm.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from mini_vllm.tests.golden.replay_compare import assert_no_difference, first_parting, in_parts, notices, recording
from mini_vllm.tests.golden.replay_states import StateReplay
from mini_vllm.tests.golden.state_workload import make_state_workload
from mini_vllm.tests.helpers import GOLDEN

TRACES = GOLDEN / "scheduler-states.json.xz"
PARTS = 24
pytestmark = pytest.mark.usefixtures("same_start_of_all_hashes")


def golden():
    return recording(TRACES.name)


def first_difference(seed):
    """None, or the first step at which the two schedulers part, and a description of it."""
    return first_parting(StateReplay(make_state_workload(seed)), golden()["traces"][seed]["steps"])


@in_parts(PARTS)
def test_every_decision_equals_real_vllm(part):
    assert_no_difference(first_difference, range(part, len(golden()["traces"]), PARTS))


def test_the_recording_is_wide_enough():
    provenance = golden()["provenance"]
    counts = provenance["workloads_by_feature"]
    assert provenance["vllm"].startswith("0.22.1")
    assert provenance["workloads"] >= 60 and provenance["steps"] >= 6_000
    assert provenance["steps_with_preemption"] >= 300 and min(provenance["events"].values()) >= 50
    for mode in ("none", "align", "all"):
        assert counts[f"mamba_cache_mode={mode}"] >= 8
    for feature in ("kind=chunked", "kind=cross", "kind=mamba", "drafts=eagle", "drafts=ngram", "policy=priority"):
        assert counts[feature] >= 5
    assert TRACES.stat().st_size <= 150_000


MUTATIONS = {
    "a state of this step can be gone on from": (MambaManager, "new_step_starts", lambda self: None, 1),
    "states before the last are kept": (
        MambaManager,
        "remove_skipped_blocks",
        lambda self, request_id, computed: None,
        1,
    ),
    "where a request was is not forgotten": (MambaManager, "free", SingleTypeKVCacheManager.free, 0),
    "a state is asked for a block more than attention": (MambaManager, "drops_last_block", True, 11),
    "steps end anywhere": (MambaBlockAlignedSplit, "__call__", lambda self, request, computed, new: new, 1),
    "the encoder's tokens need no slot": (EncoderStep, "num_encoder_tokens", lambda self, request: 0, 24),
    "chunks before this one are kept": (ChunkedLocalAttentionManager, "get_num_skipped_tokens", lambda self, n: 0, 26),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_replay_would_notice(mutation, monkeypatch):
    owner, name, replacement, seed = MUTATIONS[mutation]
    monkeypatch.setattr(owner, name, replacement)
    assert notices(first_difference, [seed])
