"""`kv_transfer_config` and the connectors' names: what is taken, and what is refused with its name."""

import pytest

from mini_vllm.config.kv_transfer import KVTransferConfig
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.distributed.kv_transfer.kv_connector import KVConnectorBase_V1, KVConnectorFactory, supports_hma
from mini_vllm.distributed.kv_transfer.kv_connector.example_connector import ExampleConnector
from mini_vllm.outputs import KVConnectorOutput

GIVEN = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kv_role": None}, r"kv_role must be given with kv_connector='ExampleConnector'"),
        ({"kv_role": "both"}, r"kv_role must be one of .*got 'both'"),
        ({"kv_conector": "x"}, r"unknown key 'kv_conector'; did you mean 'kv_connector'"),
        (
            {"kv_load_failure_policy": "retry"},
            r"kv_load_failure_policy must be one of \('recompute', 'fail'\), got 'retry'",
        ),
        ({"kv_connector": ""}, r"kv_connector must be text that is not empty, got ''"),
        ({"kv_connector_extra_config": 3}, r"kv_connector_extra_config must be a dict, got 3"),
        ({"kv_port": "x"}, r"kv_port must be a whole number, got 'x'"),
        ({"kv_rank": -1}, r"kv_rank must be at least 0, got -1"),
        ({"kv_buffer_size": 0}, r"kv_buffer_size must be a number of bytes above 0, got 0"),
        ({"kv_parallel_size": 0}, r"kv_parallel_size must be at least 1, got 0"),
        ({"enable_permute_local_kv": 1}, r"enable_permute_local_kv must be True or False, got 1"),
        ({"kv_connector": "ExampelConnector"}, r"kv_connector='ExampelConnector'; did you mean 'ExampleConnector'"),
        ({"kv_connector": "EngineConfig", "kv_connector_module_path": "mini_vllm.config.vllm"}, "KVConnectorBase_V1"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(more, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(kv_transfer_config={**GIVEN, **more})


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size must be 1 with kv_connector='ExampleConnector', got 2"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype must be 'auto'"),
        ({"runner": "pooling"}, "runner must be"),
        ({"cudagraph_mode": "FULL"}, "cudagraph_mode must be 'NONE'"),
        ({"kv_oracle": True}, "kv_oracle must be"),
        ({"speculative_config": {"model": "x", "num_speculative_tokens": 2}}, "speculative_config's method must be"),
    ],
)
def test_what_is_not_served_beside_a_connector_is_refused(argument, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(kv_transfer_config=GIVEN, **argument)


def test_none_and_an_object_are_taken():
    assert EngineConfig().kv_transfer_config is None and EngineConfig(kv_transfer_config={}).kv_transfer_config is None
    config = KVTransferConfig(**GIVEN, kv_connector_extra_config={"a": 1})
    assert EngineConfig(kv_transfer_config=config).kv_transfer_config is config
    assert config.get_from_extra_config("a", 2) == 1 and config.get_from_extra_config("b", 2) == 2
    assert config.is_kv_transfer_instance and config.is_kv_producer and config.is_kv_consumer
    assert not KVTransferConfig("x", kv_role="kv_producer").is_kv_consumer
    assert KVTransferConfig(**GIVEN).engine_id != KVTransferConfig(**GIVEN).engine_id
    with pytest.raises(ValueError, match="must be a dict or a KVTransferConfig, got 3"):
        EngineConfig(kv_transfer_config=3)


def test_names_of_connectors(monkeypatch):
    monkeypatch.setattr(KVConnectorFactory, "_registry", dict(KVConnectorFactory._registry))
    assert KVConnectorFactory.get_connector_class(KVTransferConfig(**GIVEN)) is ExampleConnector
    assert KVConnectorFactory.get_connector_class_by_name("ExampleConnector") is ExampleConnector
    assert not supports_hma(ExampleConnector)
    with pytest.raises(ValueError, match="'ExampleConnector' is already registered"):
        KVConnectorFactory.register_connector("ExampleConnector", "a", "b")
    KVConnectorFactory.register_connector("Mine", ExampleConnector.__module__, "ExampleConnector")
    assert KVConnectorFactory.get_connector_class_by_name("Mine") is ExampleConnector
    with pytest.raises(ValueError, match="'Yours' is not registered"):
        KVConnectorFactory.get_connector_class_by_name("Yours")
    path = ExampleConnector.__module__
    mine = KVTransferConfig("ExampleConnector", kv_role="kv_both", kv_connector_module_path=path)
    assert issubclass(KVConnectorFactory.get_connector_class(mine), KVConnectorBase_V1)
    with pytest.raises(AttributeError, match=f"Class Nobody not found in {path}"):
        KVConnectorFactory.get_connector_class(
            KVTransferConfig("Nobody", kv_role="kv_both", kv_connector_module_path=path)
        )


def test_a_report_is_empty_until_something_is_said():
    assert KVConnectorOutput().is_empty() and KVConnectorOutput(set(), set()).is_empty()
    assert not KVConnectorOutput(invalid_block_ids={1}).is_empty()
    assert not KVConnectorOutput(finished_recving={"a"}).is_empty()
