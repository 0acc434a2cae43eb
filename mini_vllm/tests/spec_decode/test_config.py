"""`speculative_config`: upstream's keys and defaults, and a sentence for what cannot be."""

import json

import pytest

from mini_vllm import LLM
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.tests.helpers import MODELS, POCKET

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


def test_methods_are_found_as_upstream_finds_them():
    assert SpeculativeConfig.of(None) is None
    config = SpeculativeConfig.of(NGRAM)
    assert (config.method, config.prompt_lookup_min, config.prompt_lookup_max) == ("ngram", 5, 5)
    assert SpeculativeConfig.of({**NGRAM, "prompt_lookup_max": 3}).prompt_lookup_min == 3
    assert SpeculativeConfig.of({**NGRAM, "prompt_lookup_min": 2}).prompt_lookup_max == 2
    for model, method in (("ngram", "ngram"), ("org/model", "draft_model"), ("my_module.Proposer", "custom_class")):
        assert SpeculativeConfig.of({"model": model, "num_speculative_tokens": 1}).method == method
    drafting = SpeculativeConfig.of({"model": "org/model", "num_speculative_tokens": 4})
    assert (drafting.num_lookahead_tokens, drafting.max_num_new_slots_for_drafting) == (4, 1)
    assert (config.num_lookahead_tokens, config.max_num_new_slots_for_drafting) == (0, 0)


BAD = [
    (
        {"method": "nrgam", "num_speculative_tokens": 3},
        r"method must be one of \('ngram', 'draft_model', 'eagle'",
    ),
    ({**NGRAM, "num_speculative_tokens": 0}, "num_speculative_tokens must be at least 1, got 0"),
    ({**NGRAM, "num_speculative_tokens": 2.5}, "num_speculative_tokens must be a whole number, got 2.5"),
    ({**NGRAM, "num_speculative_tokens": 129}, "at most 128, got 129"),
    ({"method": "ngram"}, "num_speculative_tokens must be given"),
    ({"num_speculative_tokens": 2}, "method must be one of"),
    (
        {**NGRAM, "prompt_lookup_min": 5, "prompt_lookup_max": 2},
        "prompt_lookup_min=5 must be at most prompt_lookup_ma",
    ),
    (
        {**NGRAM, "prompt_lookup_max": 0},
        "prompt_lookup_m(in|ax) must be at least 1, got 0",
    ),
    ({**NGRAM, "promt_lookup_max": 3}, "unknown key 'promt_lookup_max'; did you mean 'prompt_lookup_max'"),
    ({**NGRAM, "tensor_parallel_size": 2}, "pass 'draft_tensor_parallel_size' instead"),
    ({"method": "draft_model", "num_speculative_tokens": 2}, "'draft_model' needs model"),
    ({"method": "custom_class", "num_speculative_tokens": 2}, "'custom_class' needs model"),
    ({"model": "a/b", "num_speculative_tokens": 2, "prompt_lookup_max": 3}, "are of 'ngram', not of 'draft_model'"),
    ({**NGRAM, "rejection_sample_method": "strict"}, "rejection_sample_method must be one of"),
    ({**NGRAM, "rejection_sample_method": "synthetic"}, "give synthetic_acceptance_rates or"),
    ({**NGRAM, "synthetic_acceptance_length": 2.0}, "needs rejection_sample_method='synthetic'"),
    (
        {**NGRAM, "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.9, 0.1]},
        "must be 3 numbers from 1 down to 0",
    ),
    ({**NGRAM, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 5}, "must be from 1 to 4, got 5"),
    ("ngram", "must be a dict or a SpeculativeConfig"),
    *(
        ({"method": name, "model": "a/b", "num_speculative_tokens": 2}, f"method '{name}' is not here: ")
        for name in ("eagle3", "mtp", "suffix", "dflash", "ngram_gpu", "mlp_speculator")
    ),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=[json.dumps(given)[:60] for given, _ in BAD])
def test_what_cannot_be_is_refused_by_name(given, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig.from_args(speculative_config=given)


def test_a_length_becomes_rates():
    config = {**NGRAM, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.25}
    assert SpeculativeConfig.of(config).synthetic_acceptance_rates == [1.0, 0.25, 0.0]


def test_running_ahead_is_for_the_draft_model():
    with pytest.raises(ValueError, match="async_scheduling must be False with speculative_config method 'ngram'"):
        EngineConfig.from_args(speculative_config=NGRAM, async_scheduling=True)
    drafting = {"model": "org/model", "num_speculative_tokens": 2}
    assert EngineConfig.from_args(speculative_config=drafting, async_scheduling=True).async_scheduling
    with pytest.raises(ValueError, match="draft_tensor_parallel_size must be tensor_parallel_size=1, got 2"):
        EngineConfig.from_args(speculative_config={**drafting, "draft_tensor_parallel_size": 2})


def test_the_draft_model_has_the_targets_vocabulary(tmp_path):
    if not POCKET.is_dir():
        pytest.skip("models/pocket is not here")
    draft = json.loads((MODELS / "pocket-draft" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**draft, "vocab_size": 5000}))
    given = {"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 2}
    with pytest.raises(ValueError, match="a vocabulary of 5000 tokens, the target one of 4096"):
        LLM(str(POCKET), speculative_config=given, num_blocks=40, max_model_len=128)
    with pytest.raises(FileNotFoundError):
        LLM(str(POCKET), speculative_config={**given, "model": str(tmp_path / "none")}, num_blocks=40)


def test_a_drafting_pass_needs_room():
    given = {"method": "draft_model", "model": str(MODELS / "pocket-draft"), "num_speculative_tokens": 2}
    if not POCKET.is_dir():
        pytest.skip("models/pocket is not here")
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 8, "num_blocks": 40, "max_model_len": 128}
    with pytest.raises(ValueError, match="max_num_batched_tokens=8 must be more than max_num_seqs=8"):
        LLM(str(POCKET), speculative_config=given, **limits)


class Nothing:
    """A proposer that has no idea."""

    def __init__(self, vllm_config):
        self.k = vllm_config.speculative_config.num_speculative_tokens

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        return [[] for _ in sampled_token_ids]


class Silent:
    """No proposer."""

    def __init__(self, vllm_config):
        pass


class Broken(Silent):
    """Cannot be made."""

    def __init__(self):
        pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module.Proposer", "module 'no_such_module' cannot be imported"),
        ("json.Proposer", "module 'json' has no 'Proposer'"),
        (f"{__name__}.Silent", "has no method 'propose'"),
        (f"{__name__}.Broken", "cannot be made with the engine's settings: TypeError"),
    ],
)
def test_a_class_that_cannot_propose_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        LLM(speculative_config={"method": "custom_class", "model": name, "num_speculative_tokens": 2})


def test_a_class_of_ones_own_serves():
    llm = LLM(
        speculative_config={"method": "custom_class", "model": f"{__name__}.Nothing", "num_speculative_tokens": 2}
    )
    assert llm.llm_engine.engine_core.model_runner.drafts.drafter.k == 2
