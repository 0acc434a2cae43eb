"""Encoder outputs that another engine has made: the same tokens, and nothing is encoded twice."""

import numpy as np
import pytest

from mini_vllm import LLMEngine, SamplingParams
from mini_vllm.config.ec_transfer import ECTransferConfig
from mini_vllm.distributed.ec_transfer.ec_connector import ECConnectorFactory
from mini_vllm.tests.multimodal.toy import IMAGE, ToyVisionModel

RNG = np.random.default_rng(3)
PICTURES = [RNG.standard_normal((2, 3)), RNG.standard_normal((3, 2)), RNG.standard_normal((1, 4))]
PROMPTS = [([5, IMAGE, 6, 7], [0]), ([8, IMAGE, 9, IMAGE, 4], [1, 0]), ([IMAGE, 3, 3, 3], [2])]


def engine(role=None, folder=None, **settings):
    model = ToyVisionModel()
    if role is not None:
        extra = {"shared_storage_path": str(folder)}
        settings["ec_transfer_config"] = {
            "ec_connector": "ECExampleConnector", "ec_role": role, "ec_connector_extra_config": extra,
        }  # fmt: skip
    return LLMEngine(model, enforce_eager=True, block_size=4, num_blocks=64, max_num_seqs=4, **settings), model


def answers(engine, max_tokens=6):
    found = {}
    for number, (ids, pictures) in enumerate(PROMPTS):
        prompt = {"prompt_token_ids": ids, "multi_modal_data": {"image": [PICTURES[i] for i in pictures]}}
        engine.add_request(str(number), prompt, SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True))
    while engine.has_unfinished_requests():
        for output in engine.step():
            found[output.request_id] = list(output.outputs[0].token_ids)
    assert engine.scheduler.kv_cache_manager.usage == 0.0
    return found


def test_what_one_encodes_another_loads(tmp_path):
    expected = answers(engine()[0])
    encoder, e_model = engine("ec_producer", tmp_path, max_num_batched_tokens=8)
    assert set(map(tuple, answers(encoder, 1).values())) == {(0,)}
    assert sum(e_model.num_encoded) == len(PICTURES) and len(list(tmp_path.iterdir())) == len(PICTURES)
    reader, model = engine("ec_consumer", tmp_path, max_num_batched_tokens=8)
    assert answers(reader) == expected
    assert model.num_encoded == []


def test_an_engine_of_both_roles_finds_what_it_has_saved(tmp_path):
    first, model = engine("ec_both", tmp_path)
    expected = answers(first)
    assert sum(model.num_encoded) == len(PICTURES)
    again, model = engine("ec_both", tmp_path)
    assert answers(again) == expected and model.num_encoded == []


@pytest.mark.parametrize("fault", ["gone", "cut", "of another size", "not finite"])
def test_what_cannot_be_loaded_is_encoded(fault, tmp_path, monkeypatch):
    expected = answers(engine()[0])
    answers(engine("ec_producer", tmp_path)[0], 1)
    reader, model = engine("ec_consumer", tmp_path)
    half = reader.scheduler.encoder.ec_connector
    spoiled = max(tmp_path.iterdir(), key=lambda path: path.stat().st_size)
    if fault == "gone":
        meta = half.build_connector_meta

        def remove_first(output):
            found = meta(output)
            for path in tmp_path.iterdir():
                path.unlink()
            return found

        monkeypatch.setattr(half, "build_connector_meta", remove_first)
    elif fault == "cut":
        spoiled.write_bytes(spoiled.read_bytes()[:-9])
    else:
        from mini_vllm import write_safetensors

        array = np.ones((3, 8)) if fault == "of another size" else np.full((6, 8), np.nan)
        for path in list(tmp_path.iterdir()):
            write_safetensors(path, {"ec_cache": array})
    assert answers(reader) == expected
    assert 1 <= sum(model.num_encoded) <= 4


def test_a_small_budget_of_the_encoder_is_no_limit_for_loads(tmp_path):
    answers(engine("ec_producer", tmp_path)[0], 1)
    reader, model = engine("ec_consumer", tmp_path)
    plans, schedule = [], reader.scheduler.schedule

    def watched():
        plans.append(schedule())
        return plans[-1]

    reader.scheduler.schedule = watched
    answers(reader)
    assert all(not plan.scheduled_encoder_inputs for plan in plans) and model.num_encoded == []
    assert sum(len(plan.ec_connector_metadata.mm_datas) for plan in plans) == len(PICTURES)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"ec_connector": "ECExampleConnector"}, "ec_role must be given with ec_connector='ECExampleConnector'"),
        ({"ec_connector": "ECExampleConnector", "ec_role": "both"}, "ec_role must be one of"),
        ({"ec_conector": "x"}, "unknown key 'ec_conector'; did you mean 'ec_connector'"),
        ({"ec_connector": "ECExample", "ec_role": "ec_both"}, "Unsupported connector type: ec_connector='ECExample'"),
        (3, "ec_transfer_config must be a dict"),
        ({"ec_port": 0}, "ec_port must be"),
    ],
)
def test_settings_are_checked_by_name(value, said):
    with pytest.raises(ValueError, match=said):
        LLMEngine(ToyVisionModel(), num_blocks=8, ec_transfer_config=value)


def test_a_model_of_text_has_nothing_to_encode():
    config = {"ec_connector": "ECExampleConnector", "ec_role": "ec_both"}
    with pytest.raises(ValueError, match="ec_transfer_config must be None for a model that takes no media"):
        LLMEngine(num_blocks=8, ec_transfer_config=config)


def test_a_class_of_ones_own(tmp_path):
    config = ECTransferConfig(
        "ECExampleConnector", ec_role="ec_both",
        ec_connector_module_path="mini_vllm.distributed.ec_transfer.ec_connector.example_connector",
        ec_connector_extra_config={"shared_storage_path": str(tmp_path)},
    )  # fmt: skip
    assert ECConnectorFactory.get_connector_class(config).__name__ == "ECExampleConnector"
    with pytest.raises(ValueError, match="must name a subclass of ECConnectorBase"):
        ECConnectorFactory.get_connector_class(
            ECTransferConfig("Path", ec_role="ec_both", ec_connector_module_path="pathlib")
        )
