"""Which platform an engine has: ours by name, or one from outside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm import EngineConfig
from mini_vllm.platforms import builtin_platforms, default_device, get_platform
from mini_vllm.platforms.cpu.platform import CpuPlatform
from mini_vllm.platforms.interface import Platform
from mini_vllm.tests.plugins.conftest import Installed

CHIPS = """
from mini_vllm.platforms.cpu.platform import CpuPlatform

class Chip(CpuPlatform):
    device_name = "chip"
    kv_cache_in_host_memory = False

class Broken(CpuPlatform):
    device_name = "chip"
    def check_available(self):
        raise ValueError("device='chip' needs its driver")

def here(): return "outsider.Chip"
def absent(): return None
def number(): return 3
def fails(): raise OSError("no driver")
def typo(): return "outsider.Chap"
def bare(): return "Chip"
def no_platform(): return "pathlib.Path"
def driverless(): return "driverless.Chip"
def broken(): return "outsider.Broken"
"""


def test_ours_are_named_and_the_cpu_is_taken_where_nothing_is_said(fresh: None) -> None:
    assert list(builtin_platforms) == ["cpu", "cuda", "torch"]
    assert isinstance(get_platform("cpu"), CpuPlatform) and get_platform("cpu") is get_platform("cpu")
    assert EngineConfig().device == EngineConfig(device=None).device == default_device() == "cpu"
    with pytest.raises(ValueError, match=r"device must be one of cpu, cuda, torch, got 'cdua'; did you mean 'cuda'\?"):
        EngineConfig(device="cdua")
    for odd in (3, ["cpu"]):
        with pytest.raises(ValueError, match="device must be one of cpu, cuda, torch, got "):
            get_platform(odd)  # type: ignore[arg-type]


def test_one_from_outside_is_taken_before_ours_where_its_device_is_there(installed: Installed) -> None:
    installed(CHIPS, platform={"chip": "here"})
    import outsider

    config = EngineConfig()
    assert config.device == "chip" and type(config.platform) is outsider.Chip
    assert EngineConfig(device="cpu").platform is get_platform("cpu")
    with pytest.raises(
        ValueError, match="device must be one of cpu, cuda, torch, chip, got 'chap'; did you mean 'chip'"
    ):
        get_platform("chap")


def test_where_the_device_is_absent_it_can_be_asked_for_only_to_be_refused(installed: Installed) -> None:
    installed(CHIPS, platform={"chip": "absent"})
    assert EngineConfig().device == "cpu"
    with pytest.raises(ValueError, match="device='chip': its platform plugin finds no such device on this machine"):
        get_platform("chip")


def test_the_pool_of_a_device_is_not_the_hosts(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    """`resolve_num_blocks` asks the platform, whatever its name is."""
    installed(CHIPS, platform={"chip": "here"})
    asked: list[int] = []
    monkeypatch.setattr("mini_vllm.config.vllm.require_memory", lambda name, size, advice: asked.append(size))
    for device in ("chip", "cpu"):
        EngineConfig(device=device, kv_cache_memory_bytes=1 << 20).resolve_num_blocks(1024, 64)
    on_chip, on_cpu = asked[1], asked[3]
    assert on_cpu - on_chip == 1024 * 1024


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        ("number", TypeError, "platform plugin 'chip' must return the qualified name of a class, or None .*, got 3"),
        ("typo", ValueError, r"platform plugin 'chip': 'outsider\.Chap' must be package\.module\.Class, and cannot be"),
        ("bare", ValueError, "platform plugin 'chip': 'Chip' must be package.*no module in it"),
        (
            "driverless",
            ValueError,
            r"'driverless\.Chip' cannot be imported: OSError\('no driver'\)",
        ),
        ("no_platform", TypeError, "platform plugin 'chip' must name a subclass of Platform, got 'pathlib.Path'"),
        ("broken", ValueError, "device='chip' needs its driver"),
    ],
)
def test_a_wrong_one_is_refused_by_name(
    installed: Installed,
    function: str,
    error: type[Exception],
    words: str,
) -> None:
    installed(CHIPS, platform={"chip": function})
    installed("raise OSError('no driver')", name="driverless")
    with pytest.raises(error, match=words):
        EngineConfig()
    assert EngineConfig(device="cpu").device == "cpu"


def test_it_has_the_name_of_its_entry_point_and_none_of_ours(installed: Installed) -> None:
    folder = installed(CHIPS, platform={"disk": "here"})
    with pytest.raises(ValueError, match=r"'disk': Chip\.device_name must be 'disk', got 'chip'"):
        EngineConfig()
    from mini_vllm import platforms, plugins

    entry_points = folder / "outsider-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text("[mini_vllm.platform_plugins]\ncpu = outsider:here\n")
    for cached in (plugins._entry_points, platforms.platform_plugins):
        cached.cache_clear()
    with pytest.raises(ValueError, match="platform plugin 'cpu' must have a name of its own, and none of cpu, cuda"):
        EngineConfig()


def test_one_that_raises_is_absent_and_named(installed: Installed, caplog: pytest.LogCaptureFixture) -> None:
    installed(CHIPS, platform={"chip": "fails"})
    assert EngineConfig().device == "cpu"
    assert "Platform plugin chip failed, so its device counts as absent: OSError('no driver')" in caplog.text


def test_two_devices_are_too_many(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    from mini_vllm import platforms

    installed(CHIPS, platform={"chip": "here", "other": "broken", "third": "absent"})
    for device in (None, "chip"):
        with pytest.raises(
            RuntimeError, match=r"Only one platform plugin can be activated, but got: \['chip', 'other'\]"
        ):
            EngineConfig(device=device)
    assert EngineConfig(device="cpu").device == "cpu"
    monkeypatch.setenv("MINI_VLLM_PLUGINS", "chip")
    platforms.platform_plugins.cache_clear()
    assert EngineConfig().device == "chip"


def test_the_base_answers_carefully() -> None:
    base = Platform()
    assert base.get_attn_backend_cls("dense") == "dense" and base.get_attn_backend_cls(None) is None
    assert (
        not base.support_static_graph_mode() and base.kv_cache_in_host_memory and base.compiled_form(object()) is None
    )


NARROW = """
from mini_vllm.platforms.interface import Platform

class Bare(Platform):
    device_name = "chip"

class Double(Bare):
    supported_dtypes = ("float64",)
    def get_worker_cls(self): return dict

class Single(Double):
    supported_dtypes = ("float32",)

class Half(Double):
    supported_dtypes = ("bfloat16",)

class Large(Double):
    def get_device_total_memory(self, device_id=0): return (device_id + 1) * 1000
    def get_current_memory_usage(self, device_id=0): return 300

class Needy(Double):
    def __init__(self, driver): pass

def bare(): return "outsider.Bare"
def double(): return "outsider.Double"
def single(): return "outsider.Single"
def half(): return "outsider.Half"
def large(): return "outsider.Large"
def needy(): return "outsider.Needy"
"""


def test_the_class_needs_a_name_and_a_worker(installed: Installed, caplog: pytest.LogCaptureFixture) -> None:
    from mini_vllm import platforms

    installed(NARROW, platform={"chip": "bare"})
    with pytest.raises(TypeError, match="platform plugin 'chip': Bare must have get_worker_cls of its own"):
        EngineConfig()
    assert platforms.REQUIRED == ("device_name", "get_worker_cls")


def test_a_class_that_cannot_be_made_is_named(installed: Installed, caplog: pytest.LogCaptureFixture) -> None:
    installed(NARROW, platform={"chip": "needy"})
    with pytest.raises(TypeError, match="driver"):
        EngineConfig()
    assert "Plugin chip failed: TypeError" in caplog.text


def test_a_dtype_that_the_device_has_not(installed: Installed, caplog: pytest.LogCaptureFixture) -> None:
    """What nobody asked for falls back, what somebody asked for is refused."""
    from mini_vllm.logger import warning_once

    installed(NARROW, platform={"chip": "double"})
    for asked in (None, "auto", "float32"):
        warning_once.cache_clear()
        caplog.clear()
        assert EngineConfig(dtype=asked).dtype == "float64"
        lacking = asked or "float32"
        assert f"Your device 'chip' doesn't support {lacking}. Falling back to float64 for compatib" in caplog.text
    caplog.clear()
    assert EngineConfig(dtype="float64").dtype == "float64" and not caplog.text
    with pytest.raises(ValueError, match="dtype must be one of float64 with device='chip', got 'bfloat16'"):
        EngineConfig(dtype="bfloat16")
    assert EngineConfig(dtype="bfloat16", device="cpu").dtype == "float32"


def test_a_device_of_float32_alone_computes_what_has_16_bits_and_no_more(installed: Installed) -> None:
    installed(NARROW, platform={"chip": "single"})
    assert EngineConfig().dtype == EngineConfig(dtype="bfloat16").dtype == EngineConfig(dtype="auto").dtype == "float32"
    with pytest.raises(ValueError, match="dtype must be one of float32 with device='chip', got 'float64'"):
        EngineConfig(dtype="float64")


def test_a_device_of_other_numbers_says_in_which_weights_are_read(installed: Installed) -> None:
    installed(NARROW, platform={"chip": "half"})
    with pytest.raises(NotImplementedError, match=r"Half\.supported_dtypes has none of float32, float64: "):
        EngineConfig()


def test_a_share_of_the_devices_memory(installed: Installed) -> None:
    """Of the smallest of them, since every rank has as many blocks."""
    installed(NARROW, platform={"chip": "large"})
    config = EngineConfig()

    def workers(function: Any, args: tuple[Any, ...]) -> list[int]:
        return [function(SimpleNamespace(config=config, rank=rank), *args) for rank in range(2)]

    assert config.platform.memory_for_kv_cache(0.5, workers) == 2 * (500 - 300)
    with pytest.raises(ValueError, match=r"gpu_memory_utilization=0\.3 is 0\.00 GiB less than device='chip' holds bef"):
        config.platform.memory_for_kv_cache(0.3, workers)


def test_a_share_of_nobody_knows_what(installed: Installed) -> None:
    installed(NARROW, platform={"chip": "double"})
    config = EngineConfig()
    rank = SimpleNamespace(config=config, rank=0)
    with pytest.raises(ValueError, match=r"gpu_memory_utilization=0\.5 is not there with device='chip', whose platf"):
        config.platform.memory_for_kv_cache(0.5, lambda function, args: [function(rank, *args)])
