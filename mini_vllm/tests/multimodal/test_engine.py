"""A model with pictures: whoever is served beside others, in chunks, after a preemption or with somebody's blocks gets
the tokens that it gets alone."""

from types import SimpleNamespace

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.core.sched.encoder_inputs import EncoderInputs
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.models import registry
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.tests.multimodal.toy import IMAGE, ToyProcessor, ToyVisionModel

RNG = np.random.default_rng(1)
IMAGES = [RNG.standard_normal(shape) for shape in [(2, 3), (2, 3), (1, 2), (3, 4), (1, 1)]]
EAGLE = SimpleNamespace(has_weights=True, method="eagle")
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def prompt(tokens, *images):
    return {"prompt_token_ids": tokens, "multi_modal_data": {"image": [IMAGES[i] for i in images]}}


PROMPTS = [
    prompt([1, 2, IMAGE, 3, IMAGE, 4], 0, 1),
    prompt([1, 2, IMAGE, 3, IMAGE, 4], 0, 3),
    [1, 2, 3, 4, 5, 6, 7],
    prompt([IMAGE, IMAGE, IMAGE], 3, 2, 0),
    prompt([9, 8, 7, 6, IMAGE], 4),
    prompt([IMAGE, 1, IMAGE, 1, IMAGE, 1, IMAGE], 2, 2, 4, 2),
    prompt([1, 2, IMAGE, 3, IMAGE, 4, 5, 6], 1, 0),
    {"prompt_token_ids": [5, 4, 3]},
]


def make(model=None, **settings):
    settings = {"block_size": 4, "num_blocks": 200, "max_num_seqs": 8, "max_num_batched_tokens": 256, **settings}
    return LLM(model or ToyVisionModel(), enforce_eager=True, **settings)


def tokens_of(llm, prompts):
    return [list(one.outputs[0].token_ids) for one in llm.generate(prompts, GREEDY, use_tqdm=False)]


@pytest.fixture(scope="module")
def alone():
    """Each on its own, with nothing cached and nothing cut."""
    return [tokens_of(make(enable_prefix_caching=False), [one])[0] for one in PROMPTS]


def test_every_picture_counts(alone):
    assert len({tuple(tokens) for tokens in alone}) == len(PROMPTS)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 12},
        {"max_num_batched_tokens": 13, "long_prefill_token_threshold": 3},
        {"max_num_batched_tokens": 16, "disable_chunked_mm_input": True},
        {"async_scheduling": True, "max_num_batched_tokens": 14},
        {"enable_prefix_caching": False, "max_num_batched_tokens": 17},
        {"block_size": 1, "num_blocks": 400},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}},
    ],
    ids=lambda settings: " ".join(map(str, settings)),
)
def test_the_tokens_are_those_of_each_request_alone(settings, alone):
    llm = make(**settings)
    assert tokens_of(llm, PROMPTS) == alone
    assert tokens_of(llm, PROMPTS[::-1]) == alone[::-1]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_request_that_was_preempted_goes_on_with_its_own_pictures(policy, alone):
    settings = {"num_blocks": 12, "max_num_batched_tokens": 12, "scheduler_reserve_full_isl": False}
    llm = make(**settings, scheduling_policy=policy)
    priority = [5, 4, 3, 2, 1, 0, 1, 2] if policy == "priority" else None
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False, priority=priority)
    assert [list(one.outputs[0].token_ids) for one in outputs] == alone
    assert llm.llm_engine.scheduler.num_preemptions > 0


def test_a_prefix_with_a_picture_is_found_and_one_with_another_picture_is_not(alone):
    llm = make()
    tokens_of(llm, PROMPTS[:1])
    same, other = llm.generate([PROMPTS[0], PROMPTS[6]], GREEDY, use_tqdm=False)
    assert same.num_cached_tokens == 16 and other.num_cached_tokens == 0
    assert [list(one.outputs[0].token_ids) for one in (same, other)] == [alone[0], alone[6]]


def test_a_picture_is_encoded_once_for_all_and_forgotten_when_the_room_is_needed(alone):
    model = ToyVisionModel()
    llm = make(model, max_num_batched_tokens=12, enable_prefix_caching=False)
    assert tokens_of(llm, [PROMPTS[0], PROMPTS[0]]) == [alone[0]] * 2
    assert sum(model.num_encoded) == 2
    assert tokens_of(llm, [PROMPTS[3]]) == [alone[3]]
    encoder, manager = llm.llm_engine.engine_core.model_runner.encoder, llm.llm_engine.scheduler.encoder_cache_manager
    tokens_of(llm, [PROMPTS[2]])  # what was freed last is told with the next step
    assert set(encoder.encoder_cache) == set(manager.cached)
    assert sum(map(len, encoder.encoder_cache.values())) <= 12
    assert list(encoder.mm_features) == list(encoder.rope.positions) == ["3"]  # of those that ended before, nothing


def test_after_a_reset_everything_is_encoded_again(alone):
    model = ToyVisionModel()
    llm = make(model, enable_prefix_caching=False)
    tokens_of(llm, [PROMPTS[0]])
    llm.llm_engine.engine_core.reset_encoder_cache()
    assert tokens_of(llm, [PROMPTS[0]]) == [alone[0]] and sum(model.num_encoded) == 4


def test_a_step_that_failed_has_encoded_nothing(alone):
    model = ToyVisionModel()
    llm, embed = make(model), model.embed_multimodal
    model.embed_multimodal = lambda **kwargs: [one[:1] for one in embed(**kwargs)]
    with pytest.raises(ValueError, match=r"embed_multimodal of ToyVisionModel must give \[6, 6\] embeddings"):
        tokens_of(llm, PROMPTS[:1])
    model.embed_multimodal = embed
    assert tokens_of(llm, PROMPTS[:2]) == alone[:2]


@pytest.mark.parametrize("images", [(0, 3), (3, 0)])
def test_another_request_may_not_use_an_identifier_for_a_picture_of_another_size(images, alone):
    """The smaller one's places would be filled from the larger one's rows, and nobody would see it."""
    llm, given = make(), []
    for pixels in (IMAGES[i] for i in images):
        tokens, [one] = ToyProcessor().apply([1, IMAGE, 2], {"image": [pixels]})
        one.identifier = "x"
        given.append({"prompt_token_ids": tokens, "mm_features": [one]})
    tokens_of(llm, given[:1])
    first, second = (IMAGES[i].size for i in images)
    words = f"identifier 'x' belongs to an item of {first} embeddings, but request '1' has {second} places for it"
    with pytest.raises(ValueError, match=words):
        tokens_of(llm, given[1:])
    assert tokens_of(llm, PROMPTS[:2]) == alone[:2]
    manager = llm.llm_engine.scheduler.encoder_cache_manager
    assert manager.num_free_slots + sum(manager.freeable.values()) == manager.num_freeable_slots == manager.cache_size


def test_a_core_in_a_process_of_its_own_gets_the_features_whole(alone):
    from mini_vllm.engine import EngineCoreRequest
    from mini_vllm.serial_utils import MsgpackDecoder, MsgpackEncoder

    pytest.importorskip("msgspec")
    tokens, features = ToyProcessor().apply([1, IMAGE, 2], {"image": IMAGES[:1]})
    request = EngineCoreRequest("r", tokens, GREEDY, mm_features=features)
    got = MsgpackDecoder().decode(MsgpackEncoder().encode(request))
    assert got.mm_features[0].identifier == features[0].identifier
    assert got.mm_features[0].mm_position.get_num_embeds() == 6
    assert np.array_equal(got.mm_features[0].data["pixels"], IMAGES[0])


def test_features_may_be_given_as_they_are(alone):
    tokens, features = ToyProcessor().apply(PROMPTS[0]["prompt_token_ids"], PROMPTS[0]["multi_modal_data"])
    assert tokens_of(make(), [{"prompt_token_ids": tokens, "mm_features": features}]) == alone[:1]


def feature(offset=1, length=2, modality="image", identifier="x", data=None):
    data = {"pixels": np.ones((1, length))} if data is None else data
    return MultiModalFeatureSpec(data, modality, identifier, PlaceholderRange(offset, length))


@pytest.fixture(scope="module")
def engine():
    return LLMEngine(ToyVisionModel(), enforce_eager=True, block_size=4, num_blocks=32, max_num_batched_tokens=12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mm_features": 3}, "mm_features must be a list"),
        ({"mm_features": [3]}, r"mm_features\[0\] must be a MultiModalFeatureSpec, got 3"),
        ({"mm_features": [feature(modality="audio")]}, r"one of \['image'\], got 'audio'"),
        ({"mm_features": [feature(identifier="")]}, r"identifier of mm_features\[0\]"),
        ({"mm_features": [feature(data=3)]}, r"data of mm_features\[0\] must be a dict"),
        (
            {"mm_features": [MultiModalFeatureSpec({"pixels": np.ones((1, 2))}, "image", "x", (1, 2))]},
            r"mm_position of mm_features\[0\] must be a PlaceholderRange, got \(1, 2\)",
        ),
        ({"mm_features": [feature(offset=19)]}, r"within the prompt of 20 tokens, got 19 to 21"),
        ({"mm_features": [feature(), feature(2)]}, r"mm_position of mm_features\[1\] .*from 3 on.*got 2 to 4"),
        ({"mm_features": [feature(), feature(4, 3)]}, "'x', belongs to an item of another size"),
        ({"mm_features": [feature(length=13)]}, "13 embeddings, more than the encoder cache has room for .12."),
        ({"multi_modal_data": 3}, "multi_modal_data must be a dict by modality, got 3"),
        ({"multi_modal_data": {"audio": []}}, r"multi_modal_data may have \['image'\], got 'audio'"),
        ({"multi_modal_data": {}, "mm_features": []}, "not both"),
        ({"multi_modal_uuids": {"a": "1"}}, "multi_modal_uuids must go with multi_modal_data, got {'a': '1'} alone"),
        ({"mm_processor_kwargs": 1}, "mm_processor_kwargs must be a dict, got 1"),
        ({"multi_modal_uuids": 3, "multi_modal_data": {}}, "multi_modal_uuids must be a dict, got 3"),
    ],
)
def test_media_that_cannot_be_served_are_refused_at_the_door(engine, given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        engine.add_request("r", {"prompt_token_ids": list(range(20)), **given}, GREEDY)
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("key", ["multi_modal_data", "mm_features"])
def test_a_model_of_text_alone_refuses_media_by_name(key):
    with pytest.raises(ValueError, match=f"{key} must be None, got"):
        LLMEngine(num_blocks=8).add_request("r", {"prompt_token_ids": [1], key: {"image": []}})


def test_an_item_that_may_not_be_cut_has_to_fit_a_step():
    with pytest.raises(ValueError, match="max_num_batched_tokens must be at least 12, the embeddings"):
        make(disable_chunked_mm_input=True, max_num_batched_tokens=11)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"runner_type": "pooling"}, "runner must be 'generate' for a model that takes media, got 'pooling'"),
        ({"speculative_config": EAGLE}, "method of speculative_config must be 'ngram' for .*, got 'eagle'"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size must be 1 for a model that takes media, got 2"),
        ({"device": "torch"}, "device must be 'cpu' for a model that takes media, got 'torch'"),
    ],
)
def test_settings_that_do_not_go_with_media_are_refused(given, message):
    plain = {"runner_type": "generate", "speculative_config": None, "pipeline_parallel_size": 1, "device": "cpu"}
    plain |= {"ec_transfer_config": None}
    config = SimpleNamespace(**{**plain, **given})
    with pytest.raises(ValueError, match=message):
        EncoderInputs.of(config, ResolvedModel.of(ToyVisionModel()))


def test_completions_of_one_prompt_share_its_pictures():
    model = ToyVisionModel()
    params = SamplingParams(n=3, temperature=1.0, seed=0, max_tokens=4)
    (output,) = make(model, max_num_batched_tokens=64).generate(PROMPTS[:1], params, use_tqdm=False)
    assert len(output.outputs) == 3 and sum(model.num_encoded) == 2


def test_the_class_of_a_checkpoint_makes_its_processor_before_any_weight_is_read(monkeypatch):
    class FromFolder(ToyVisionModel):
        @classmethod
        def make_mm_processor(cls, model):
            return ToyProcessor(model.hf_config.largest)

    monkeypatch.setitem(registry._MODELS, "FromFolder", FromFolder)
    config = SimpleNamespace(architecture="FromFolder", largest=7)
    found = ResolvedModel("folder", 128, 60, [], hf_config=config).make_mm_processor()
    assert found.get_mm_max_tokens_per_item() == {"image": 7}
    config.architecture = "LlamaForCausalLM"
    assert ResolvedModel("folder", 128, 60, [], hf_config=config).make_mm_processor() is None
