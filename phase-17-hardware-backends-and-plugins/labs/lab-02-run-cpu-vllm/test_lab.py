"""Lab 17-02: arithmetic worked out in the README, small classes, the pinned source, and the captures."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from course.labs import ROOT
from mini_vllm import kv_bytes_per_token

CAPTURED = Path(__file__).resolve().parent / "captured"
PLATFORMS = ROOT / "upstream" / "vllm" / "platforms"
POCKET = ROOT / "models" / "pocket"
QWEN_KV = 12_288
ANSWERED = {  # kinds of questions of the capture that CpuPlatform answers itself
    "check_and_update_config", "device_type", "dispatch_key", "dist_backend", "get_attn_backend_cls", "get_device_name",
    "get_device_total_memory", "import_kernels", "is_pin_memory_available", "manual_seed_all", "opaque_attention_op",
    "support_hybrid_kv_cache", "update_block_size_for_backend",
}  # fmt: skip
BASE = """
class Other:
    _enum: str
    def stray(self): return self._enum

class Platform:
    _enum: str
    device_name: str
    dispatch_key: str = "CPU"
    graphs = False
    first, second = 1, 2
    def get_worker(self):
        inner = 3
        def nested(): return self._enum
        return nested()
    @property
    def dtypes(self): return ["float32"]
    @classmethod
    def memory(cls): raise NotImplementedError
    async def warm(self): return self.dtypes
    class Config:
        size = 4
        def scale(self): return 5
"""
CHIP = """
import a_library_that_nobody_has

def memory(): return 1

class Chip(Platform):
    _enum = "chip"
    device_name: str = "chip"
    dispatch_key: str
    graphs = True
    own = mine = 7
    def get_worker(self):
        dtypes = 8
        return dtypes
    async def warm(self): ...
    def only_here(self): ...
"""


def capture(name: str) -> dict[str, Any]:
    path = CAPTURED / name
    return json.loads(path.read_text(encoding="utf-8"))


def pinned(name: str) -> str:
    if not PLATFORMS.is_dir():
        pytest.skip("needs the pinned source: run `course upstream`")
    return (PLATFORMS / name).read_text(encoding="utf-8")


# ---- bytes ----------------------------------------------------------------------------------------------------------


def test_your_prediction(impl):
    blocks, share = impl.predicted_start()
    assert blocks == capture("rate-float32.json")["num_blocks"], "KV blocks of the captured start in float32"
    rows = capture("questions.json")["questions"]
    real = sum(row["asked"] for row in rows if row["question"] in ANSWERED) / sum(row["asked"] for row in rows)
    nearest = min(("a fiftieth", 0.02), ("a half", 0.5), ("nine tenths", 0.9), key=lambda each: abs(each[1] - real))
    assert share == nearest[0], f"of the questions in captured/questions.json, the CPU's class answers {real:.1%}"


def test_blocks_of_the_captured_start(impl):
    assert impl.cpu_kv_blocks(4, 128, QWEN_KV) == 2730
    log = (CAPTURED / "start.log").read_text(encoding="utf-8")
    tokens = int(re.search(r"KV cache size: ([\d,]+) tokens", log)[1].replace(",", ""))
    assert impl.cpu_kv_blocks(4, 128, QWEN_KV) * 128 == tokens, "the engine's own line in captured/start.log"


def test_blocks_are_whole(impl):
    for space, size, each, wanted in (
        (1, 16, 65_536, 1024),
        (1, 1, 2**30, 1),
        (1, 1, 2**30 + 1, 0),
        (3, 7, 1000, 460_175),
    ):
        found = impl.cpu_kv_blocks(space, size, each)
        assert (found, type(found)) == (wanted, int), f"{space} GiB, {size} tokens of {each} bytes"


def test_blocks_fit_and_one_more_does_not(impl):
    draw = random.Random(0)
    for _ in range(200):
        layers, heads, dim, size = (
            draw.randint(1, 80),
            draw.choice([1, 2, 8]),
            draw.choice([64, 128]),
            draw.choice([16, 128]),
        )
        each, space = kv_bytes_per_token(layers * heads, dim, itemsize=2), draw.randint(1, 64)
        blocks = impl.cpu_kv_blocks(space, size, each)
        assert blocks * size * each <= space << 30 < (blocks + 1) * size * each, f"{space} GiB, {size} tokens of {each}"


def test_bad_sizes(impl):
    for arguments, message in (
        ((0, 128, 5), "space_gib must be at least 1, got 0"), ((4, 0, 5), "block_size must be at least 1, got 0"),
        ((4, 128, -1), "kv_bytes_per_token must be at least 1, got -1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            impl.cpu_kv_blocks(*arguments)


# ---- the ceiling ----------------------------------------------------------------------------------------------------


def test_ceiling_by_hand(impl):
    assert impl.decode_ceiling_tok_s(50, 1.0) == 50.0, "50 GB/s through 1 GB of weights: 50 times a second"
    assert impl.decode_ceiling_tok_s(50, 1.0, batch=8) == 400.0, "the weights are read once for all eight"
    assert impl.decode_ceiling_tok_s(48, 1.0, batch=4, kv_gb_per_request=0.05) == pytest.approx(160.0)
    assert impl.decode_ceiling_tok_s(50, 2.0) == 25.0, "twice the bytes a number, half of the rate"


def test_ceiling_of_many_is_their_own_kv(impl):
    found = impl.decode_ceiling_tok_s(50, 1.0, batch=10**9, kv_gb_per_request=0.01)
    assert found == pytest.approx(5000, rel=1e-6), "no weights are left to share: bandwidth over a request's own bytes"


def test_bad_rates(impl):
    for arguments, message in (
        ((0, 1.0), "bandwidth_gb_s must be positive, got 0"), ((-1, 1.0), "bandwidth_gb_s must be positive, got -1"),
        ((50, 0), "weight_gb must be positive, got 0"), ((50, -2), "weight_gb must be positive, got -2"),
        ((50, 1, 0), "batch must be at least 1, got 0"),
        ((50, 1, 1, -1), "kv_gb_per_request must be at least 0, got -1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            impl.decode_ceiling_tok_s(*arguments)


def test_share_of_ceiling(impl):
    assert impl.share_of_ceiling(9, 50) == 0.18
    assert impl.share_of_ceiling(10, 40) == 0.25
    assert impl.share_of_ceiling(1, 8) == 0.125, "a share is not rounded"
    assert impl.share_of_ceiling(50, 50) == 1.0, "the ceiling itself can be reached"
    with pytest.raises(
        ValueError, match="measured 60 tokens a second above the ceiling of 50: one of the two is wrong"
    ):
        impl.share_of_ceiling(60, 50.0)
    with pytest.raises(ValueError, match=r"measured 50\.5 tokens a second above the ceiling of 50\.25"):
        impl.share_of_ceiling(50.5, 50.25)


def test_the_captured_rates_lie_below(impl):
    speed = max(capture("bandwidth.json")["gb_s"].values())
    for name, itemsize in (("rate-bfloat16.json", 2), ("rate-float32.json", 4)):
        for row in capture(name)["rates"]:
            ceiling = impl.decode_ceiling_tok_s(speed, 494_032_768 * itemsize / 1e9, row["batch"])
            share = impl.share_of_ceiling(row["tokens_a_second"], ceiling)
            assert 0 < share <= 1, f"{name}, {row}, of at most {ceiling:.1f} tokens a second"


def test_a_bandwidth_of_a_bad_moment_is_found_out(impl):
    found = capture("rate-float32.json")
    ceiling = impl.decode_ceiling_tok_s(found["bandwidth_gb_s"], 494_032_768 * 4 / 1e9)
    with pytest.raises(ValueError, match=r"measured 4\.\d+ tokens a second above the ceiling of 2\.\d+"):
        impl.share_of_ceiling(found["rates"][0]["tokens_a_second"], ceiling)


# ---- a class, read --------------------------------------------------------------------------------------------------


def test_overrides_of_a_small_class(impl):
    found = impl.overrides(CHIP, "Chip", BASE, "Platform")
    assert found.answered == {"_enum", "device_name", "graphs", "get_worker", "warm"}, (
        "methods and values that both have; `dispatch_key: str` declares and gives no answer; `memory` of the module "
        "and `dtypes` within a method are no names of the class"
    )
    assert found.added == {"own", "mine", "only_here"}, "names of the class that the base does not have"
    assert found.inherited == {"dispatch_key", "dtypes", "memory"}, "names of the base that are left as they are"


def test_a_class_against_itself(impl):
    found = impl.overrides(BASE, "Platform", BASE, "Platform")
    assert found.answered == {"dispatch_key", "graphs", "get_worker", "dtypes", "memory", "warm"}
    assert found.inherited == {"_enum", "device_name"}, "declared, and answered by nobody"
    assert found.added == set()


def test_no_such_class(impl):
    for call in (
        lambda: impl.overrides(CHIP, "Chop", BASE, "Platform"), lambda: impl.overrides(BASE, "Platform", CHIP, "Chop"),
        lambda: impl.overrides(BASE, "Config", BASE, "Platform"), lambda: impl.asked_by_name(BASE, "Chop"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"no class '(Chop|Config)' in this source"):
            call()


def test_the_cpu_backend(impl):
    found = impl.overrides(pinned("cpu.py"), "CpuPlatform", pinned("interface.py"), "Platform")
    assert {"get_attn_backend_cls", "check_and_update_config", "supported_dtypes", "get_device_total_memory",
            "get_device_communicator_cls", "get_punica_wrapper", "import_kernels"} <= found.answered  # fmt: skip
    assert {"supports_fp8", "support_static_graph_mode", "check_if_supports_dtype"} <= found.inherited
    assert (len(found.answered), len(found.added), len(found.inherited)) == (21, 3, 66)
    assert found.answered & {row["question"] for row in capture("questions.json")["questions"]} == ANSWERED
    mine = " ".join(found.answered | found.added)
    assert not re.search("schedul|sampl|request|prefix|tokeniz", mine), "no word about scheduling or sampling"


def test_a_backend_in_thirty_lines(impl):
    found = impl.overrides(pinned("zen_cpu.py"), "ZenCpuPlatform", pinned("cpu.py"), "CpuPlatform")
    assert found.answered == {"device_name", "device_type", "supported_dtypes"}, (
        "what it says otherwise than its parent"
    )
    assert found.added == {"is_zen_cpu"}


# ---- who is asked ---------------------------------------------------------------------------------------------------


def test_by_name_over_any_number_of_steps(impl):
    source = """
class Platform:
    def is_chip(self): return self._enum == "chip"
    def uses_host(self): return not self.is_chip()
    @classmethod
    def pads(cls): return cls.uses_host(cls) and 3
    @property
    def far(self):
        if self.pads: return 1
    def is_pinned(self): return self.memory > 5
    def other(self, them): return them._enum
    def _loop(self): return self._pool()
    def _pool(self): return self._loop()
    def deep(self):
        def inner(): return self._enum
        return inner()
"""
    assert impl.asked_by_name(source, "Platform") == {"is_chip", "uses_host", "pads", "far", "deep"}, (
        "by name: `_enum` of self or cls, directly or through others; `is_pinned` asks for memory, `other` reads "
        "somebody else's"
    )


def test_by_name_in_any_order(impl):
    """`hub` uses three that use it, before it asks; a walk that comes back to it has not learned that they do not."""
    source = """
class Platform:
    def hub(self): return self.one() or self.two() or self.three() or self.is_chip()
    def one(self): return self.hub()
    def two(self): return self.hub()
    def three(self): return self.hub()
    def early(self): return self.late()
    async def late(self): return self.is_chip()
    def is_chip(self): return self._enum == "chip"
"""
    every = {"hub", "one", "two", "three", "early", "late", "is_chip"}
    found = impl.asked_by_name(source, "Platform")
    assert found == every, (
        f"missing: {sorted(every - found)}. A method may stand before those that it uses, and in a circle with them"
    )


def test_nothing_by_name(impl):
    assert impl.asked_by_name("class Platform:\n    def a(self): return 1\n", "Platform") == frozenset()


def test_by_name_at_the_pin(impl):
    found = impl.asked_by_name(pinned("interface.py"), "Platform")
    assert found == {
        "is_cpu", "is_cuda", "is_cuda_alike", "is_out_of_tree", "is_rocm", "is_sleep_mode_available", "is_tpu",
        "is_unspecified", "is_xpu", "uses_host_device_handling",
    }  # fmt: skip


def test_share_by_name(impl):
    rows = [{"question": "is_cpu", "asked": 7}, {"question": "dtypes", "asked": 2}, {"question": "is_tpu", "asked": 1}]
    assert impl.share_by_name(rows, frozenset({"is_cpu", "is_tpu", "is_xpu"})) == 0.8, "7 and 1 of 10"
    assert impl.share_by_name(rows, frozenset()) == 0.0
    for none in ([], [{"question": "is_cpu", "asked": 0}]):
        with pytest.raises(ValueError, match="no question was asked"):
            impl.share_by_name(none, frozenset({"is_cpu"}))


def test_share_in_the_capture(impl):
    by_name = impl.asked_by_name(pinned("interface.py"), "Platform")
    rows = capture("questions.json")["questions"]
    named = sum(row["asked"] for row in rows if row["question"] in by_name)
    assert impl.share_by_name(rows, by_name) == named / sum(row["asked"] for row in rows)
    assert impl.share_by_name(rows, by_name) > 0.85


# ---- what was changed -----------------------------------------------------------------------------------------------


def test_rewritten_by_part(impl):
    rows = [
        ["cache.block_size", "16", "128"], ["parallel.worker.cls", "'auto'", "'CPUWorker'"], ["cache.dtype", "a", "a"],
        ["cache.bytes", "None", "5"], ["model.seed", "0", "0"],
    ]  # fmt: skip
    before = [list(row) for row in rows]
    found = impl.rewritten(rows)
    assert rows == before, "the rows are the caller's"
    assert found == {
        "cache": {"block_size": ("16", "128"), "bytes": ("None", "5")},
        "parallel": {"worker.cls": ("'auto'", "'CPUWorker'")},
    }, "by part, without rows that say the same twice"
    assert impl.rewritten([]) == {}


def test_rows_that_cannot_be(impl):
    with pytest.raises(ValueError, match="'seed' names no part"):
        impl.rewritten([["seed", "0", "1"]])
    for second in ("a", "b"):
        with pytest.raises(ValueError, match=r"'cache\.dtype' stands there twice"):
            impl.rewritten([["cache.dtype", "a", "a"], ["cache.dtype", "a", second]])


def test_what_the_cpu_backend_rewrites(impl):
    found = impl.rewritten(capture("config.json")["config"])
    assert found["cache_config"] == {"block_size": ("16", "128"), "kv_cache_memory_bytes": ("None", str(4 << 30))}
    assert found["scheduler_config"] == {"async_scheduling": ("True", "False")}
    assert found["parallel_config"]["distributed_executor_backend"] == ("'uni'", "'mp'")
    assert set(found) == {
        "cache_config",
        "scheduler_config",
        "parallel_config",
        "compilation_config",
        "profiler_config",
    }


@pytest.mark.real_vllm
def test_the_configuration_live(impl, real_run):
    """Half a minute: the pinned release's own configuration, made here."""
    _, found = real_run(str(POCKET), "--what", "config")
    assert impl.rewritten(found["config"]).keys() == impl.rewritten(capture("config.json")["config"]).keys()
