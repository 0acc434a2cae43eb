"""What replicas that share experts cannot do is refused by name, before anything is started."""

import pytest

from mini_vllm import EngineArgs
from mini_vllm.config.expert_parallel import replicas_share_experts
from mini_vllm.config.parallel import ALL2ALL_BACKENDS
from mini_vllm.distributed import shared_memory
from mini_vllm.distributed.device_communicators import all2all
from mini_vllm.tests.models.decoder_checkpoints import DECODERS
from mini_vllm.tests.models.tiny_checkpoints import FAMILIES
from mini_vllm.transformers_utils.config import HFConfig

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")


def share(family="mixtral", size=2, **args):
    table = FAMILIES if family in FAMILIES else DECODERS
    config = EngineArgs(**{"enable_expert_parallel": True, **args}).create_engine_config()
    return replicas_share_experts(config, HFConfig.from_dict(table[family]), size)


def test_mixtures_share_experts_where_it_is_asked_for():
    assert share() and share(tensor_parallel_size=2, size=4)
    assert not share("llama") and not share(size=1) and not share(enable_expert_parallel=False)


@pytest.mark.parametrize(
    "args, name",
    [
        ({"enable_lora": True}, "enable_lora=True"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2"),
        ({"cudagraph_mode": "PIECEWISE"}, "cudagraph_mode="),
    ],
)
def test_the_rest_is_refused_by_name(args, name):
    with pytest.raises(ValueError, match=rf"^{name}.* is not served where replicas share experts.*got 2$"):
        share(**args)


@pytest.mark.needs_torch
def test_devices_are_refused_by_name():
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"^device='torch' is not served where replicas share experts"):
        share(device="torch")


def test_too_few_experts_and_experts_of_another_kind():
    with pytest.raises(ValueError, match="an expert for each of 10 ranks, got 8"):
        share(size=5, tensor_parallel_size=2)
    with pytest.raises(ValueError, match="enable_expert_parallel is not supported for the experts of GptOss"):
        share("gpt-oss")


@pytest.mark.parametrize("name", ["deepep_low_latency", "flashinfer_nvlink_one_sided", "mori", "nixl_ep", "xyz", 3])
def test_other_backends_are_refused_by_name(name):
    with pytest.raises((ValueError, TypeError), match="all2all_backend must be"):
        EngineArgs(all2all_backend=name).create_engine_config()


def test_a_removed_backend_becomes_the_default_with_a_warning(caplog):
    assert EngineArgs(all2all_backend="pplx").create_engine_config().all2all_backend == "allgather_reducescatter"
    assert "pplx" in caplog.text


def test_a_strategy_is_one_of_two():
    with pytest.raises(ValueError, match="expert_placement_strategy must be one of linear, round_robin, got 'random'"):
        EngineArgs(expert_placement_strategy="random").create_engine_config()


def test_every_backend_has_a_manager():
    assert tuple(all2all._MANAGERS) == ALL2ALL_BACKENDS
