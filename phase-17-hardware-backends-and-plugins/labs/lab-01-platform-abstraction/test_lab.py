"""Lab 17-01: platforms that nobody has heard of, machines of every kind, and what real vLLM decides on them."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
MACHINES: dict[str, dict[str, Any]] = load(HERE / "given.py").MACHINES
REAL = json.loads((HERE / "captured" / "resolve.json").read_text(encoding="utf-8"))["verdicts"]
GIB = 1 << 30
PARAMETERS, KV_NUMBERS = 494_032_768, 24 * 2 * 2 * 64  # Qwen2.5-0.5B


def qwen(impl, dtype="bfloat16"):
    return impl.Model(PARAMETERS, KV_NUMBERS, dtype)


def mytpu(impl, **changes):
    """An accelerator of somebody else."""
    fields = {
        "name": "mytpu", "device_type": "tpu", "attention_backends": ("pallas",), "supported_dtypes": ("bfloat16",),
        "supports_graphs": True, "memory_bytes": 32 * GIB, "block_size": 64, "out_of_tree": True,
    }  # fmt: skip
    return impl.Platform(**{**fields, **changes})


def registry(impl, *platforms):
    known = impl.make_default_platforms()
    for platform in platforms:
        impl.register_platform(known, platform)
    return known


def resolved(impl, known, detected, override=None):
    """The name of what is taken, or the error."""
    try:
        return impl.resolve_platform(known, detected, override).name
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


# ---- predictions ----------------------------------------------------------------------------------------------------


def test_your_predictions(impl):
    found = impl.predicted_verdicts()
    assert set(found) == set(MACHINES), "one verdict for each machine of given.MACHINES"
    wrong = {name: f"you say {found[name]}, vLLM {REAL[name]['verdict']}" for name in MACHINES
             if found[name] != REAL[name]["verdict"]}  # fmt: skip
    assert not wrong, "these machines surprise; ask of each which rule it shows, and correct the prediction"


# ---- which platform -------------------------------------------------------------------------------------------------


def test_resolution_prefers_the_accelerator(impl):
    found = impl.resolve_platform(registry(impl), ["cuda"])
    assert (found.name, found.attention_backends[0], found.supports_graphs) == ("cuda", "flash_attn", True), (
        "a card is here: it comes before the processors"
    )


def test_cpu_is_the_floor(impl):
    for detected in ([], ["cpu"], ["npu"]):
        found = impl.resolve_platform(registry(impl), detected)
        assert (found.name, found.supports_graphs) == ("cpu", False), f"detected {detected}: nobody else can be taken"


def test_order_of_registration_is_no_rule(impl):
    names = ["cpu", "cuda", "mytpu"]
    for order in (names, names[::-1], ["cuda", "mytpu", "cpu"]):
        by_name = registry(impl, mytpu(impl))
        known = {name: by_name[name] for name in order}
        found = [resolved(impl, known, detected) for detected in (["cuda"], ["tpu"], ["cuda", "tpu"], [])]
        assert found == ["cuda", "mytpu", "mytpu", "cpu"], f"registered in the order {order}"


def test_override_wins_and_unknown_is_loud(impl):
    known = registry(impl)
    assert impl.resolve_platform(known, ["cuda"], override="cpu").name == "cpu", "the user's word comes first"
    with pytest.raises(ValueError, match=re.escape("override must be one of cpu, cuda, got 'cdua'")):
        impl.resolve_platform(known, ["cuda"], override="cdua")
    with pytest.raises(ValueError, match=re.escape("override must be one of cpu, cuda, got ''")):
        impl.resolve_platform(known, ["cuda"], override="")


def test_override_makes_no_hardware(impl):
    known = registry(impl, mytpu(impl))
    with pytest.raises(ValueError, match="override 'cuda': no device 'cuda' here"):
        impl.resolve_platform(known, [], override="cuda")
    with pytest.raises(ValueError, match="override 'mytpu': no device 'tpu' here"):
        impl.resolve_platform(known, ["cuda"], override="mytpu")


def test_two_out_of_tree_is_an_error(impl):
    known = registry(impl, mytpu(impl, name="zeta"), mytpu(impl, name="acc", device_type="acc"))
    with pytest.raises(RuntimeError, match=r"^only one platform can be active, but got: acc, zeta$"):
        impl.resolve_platform(known, ["tpu", "acc"])
    assert resolved(impl, known, ["tpu"]) == "zeta", "a platform whose device is absent has no claim"
    assert resolved(impl, known, ["tpu", "acc"], "acc") == "acc", "the user's word settles it"
    known = registry(impl, mytpu(impl, name="bcc"), mytpu(impl, name="acc"))
    assert resolved(impl, known, ["tpu"]) == "RuntimeError: only one platform can be active, but got: acc, bcc", (
        "two packages for one kind of device are two claims"
    )


def test_two_of_this_tree_are_an_error(impl):
    known = registry(impl, mytpu(impl, name="rocm", device_type="rocm", out_of_tree=False))
    with pytest.raises(RuntimeError, match=r"^only one platform can be active, but got: cuda, rocm$"):
        impl.resolve_platform(known, ["rocm", "cuda"])
    impl.register_platform(known, mytpu(impl))
    assert resolved(impl, known, ["rocm", "cuda", "tpu"]) == "mytpu", "from outside comes first, and is one"
    known = registry(impl, mytpu(impl, name="zen", device_type="cpu", out_of_tree=False))
    assert resolved(impl, known, ["cuda"]) == "cuda", "zen is of this tree and runs on the processors: no accelerator"


def test_eight_cards_are_one_platform(impl):
    detected = ["cuda"] * 8
    assert resolved(impl, registry(impl), detected) == "cuda", "eight entries, one kind of device"
    assert detected == ["cuda"] * 8, "the list of devices is the caller's"


def test_a_platform_from_outside_on_the_processors(impl):
    known = registry(impl, mytpu(impl, name="zen", device_type="cpu"))
    for detected in ([], ["cuda"]):
        assert resolved(impl, known, detected) == "zen", (
            f"its device is always here, and it is from outside: {detected}"
        )


def test_no_floor(impl):
    known = {"cuda": impl.make_default_platforms()["cuda"]}
    with pytest.raises(RuntimeError, match="no platform for this machine: override it, or register 'cpu'"):
        impl.resolve_platform(known, [])


@pytest.mark.parametrize("name", [name for name in MACHINES if name != "a GPU, and a build for processors"])
def test_as_real_vllm_decides(impl, name):
    """All but one: there, processors are a claim like any other, and here they are the floor."""
    machine, real = MACHINES[name], REAL[name]["verdict"]
    allow = machine["allow"]
    known = registry(impl, mytpu(impl, name="rocm", device_type="rocm", out_of_tree=False))
    detected = [device for device in machine["built_in"] if device != "cpu"]
    for plugin, here in machine["plugins"].items():
        if allow is None or plugin in allow.split(","):
            impl.register_platform(known, mytpu(impl, name=plugin, device_type=plugin))
        detected += [plugin] * here
    got = resolved(impl, known, detected)
    wanted = {"unspecified": "cpu", "error": "RuntimeError"}.get(real, real)
    assert got.split(":")[0] == wanted, f"{name}: {machine}"


# ---- the registry ---------------------------------------------------------------------------------------------------


def test_duplicate_registration_is_refused(impl):
    known = registry(impl, mytpu(impl))
    before = dict(known)
    for name in ("cpu", "cuda", "mytpu"):
        with pytest.raises(ValueError, match=f"platform '{name}' is registered already"):
            impl.register_platform(known, mytpu(impl, name=name, memory_bytes=1))
        assert known == before, f"a second {name!r} was refused, and the first is as it was"


def test_every_registry_is_its_own(impl):
    registry(impl, mytpu(impl))
    assert sorted(impl.make_default_platforms()) == ["cpu", "cuda"], "what one caller registered, another one has"


def test_default_platforms(impl):
    found = {name: dataclasses.astuple(each)[1:] for name, each in impl.make_default_platforms().items()}
    assert found == {
        "cuda": (
            "cuda", ("flash_attn", "triton_attn"), ("bfloat16", "float16", "float32"), True, 80 * GIB, 16, False,
        ),
        "cpu": ("cpu", ("cpu_attn",), ("bfloat16", "float32"), False, 16 * GIB, 128, False),
    }  # fmt: skip
    assert all(name == each.name for name, each in impl.make_default_platforms().items())


# ---- negotiation ----------------------------------------------------------------------------------------------------


def test_dtype_negotiation(impl):
    known = impl.make_default_platforms()
    for name, model_dtype, wanted in (
        ("cpu", "bfloat16", "bfloat16"),
        ("cuda", "float16", "float16"),
        ("cpu", "float16", "bfloat16"),
        ("cuda", "float32", "bfloat16"),
        ("cpu", "float32", "bfloat16"),
    ):
        got = known[name].check_dtype("auto", model_dtype)
        assert got == wanted, f"auto, {name}, a checkpoint in {model_dtype}"


def test_the_favourite_is_the_platforms(impl):
    for order in (("float16", "float32"), ("float32", "float16"), ("float32",)):
        platform = mytpu(impl, supported_dtypes=order)
        assert platform.check_dtype("auto", "bfloat16") == order[0], f"favourites {order}"
        assert platform.check_dtype("auto", "float32") == order[0], f"favourites {order}, a checkpoint in float32"


def test_an_order_is_kept_or_refused(impl):
    known = impl.make_default_platforms()
    assert known["cuda"].check_dtype("float32", "bfloat16") == "float32", "an order, and it is supported"
    assert known["cuda"].check_dtype("float16", "bfloat16") == "float16", "an order, and it is supported"
    for name, asked, allowed in (
        ("cpu", "float16", "auto, bfloat16, float32"),
        ("cpu", "fp8", "auto, bfloat16, float32"),
        ("cuda", "int8", "auto, bfloat16, float16, float32"),
    ):
        with pytest.raises(ValueError, match=f"dtype must be one of {allowed} here, got '{asked}'"):
            known[name].check_dtype(asked, "bfloat16")


# ---- the engine -----------------------------------------------------------------------------------------------------


def test_settings_by_hand(impl):
    """The README works these out."""
    known = registry(impl, mytpu(impl))
    for name, wanted in (
        ("cuda", ("flash_attn", "bfloat16", True, 16, (40 * GIB - 988_065_536) // 196_608)),
        ("cpu", ("cpu_attn", "bfloat16", False, 128, (8 * GIB - 988_065_536) // 1_572_864)),
        ("mytpu", ("pallas", "bfloat16", True, 64, (16 * GIB - 988_065_536) // 786_432)),
    ):
        found = impl.configure(known[name], qwen(impl), impl.Wishes())
        assert dataclasses.astuple(found) == (*wanted, ()), f"settings on {name}"
    assert impl.configure(known["cpu"], qwen(impl), impl.Wishes()).num_blocks == 4833


def test_a_platform_from_outside_changes_every_decision(impl):
    known = registry(impl)
    before = impl.configure(impl.resolve_platform(known, ["tpu"]), qwen(impl), impl.Wishes())
    impl.register_platform(known, mytpu(impl, supported_dtypes=("float32",)))
    after = impl.configure(impl.resolve_platform(known, ["tpu"]), qwen(impl), impl.Wishes())
    same = [field.name for field in dataclasses.fields(before)
            if getattr(before, field.name) == getattr(after, field.name)]  # fmt: skip
    assert same == [], "these settings did not follow the platform"
    assert (after.attention_backend, after.dtype, after.block_size) == ("pallas", "float32", 64)


def test_nobody_asks_for_the_name(impl):
    class Nameless(impl.Platform):
        def __getattribute__(self, field):
            if field in ("name", "device_type", "out_of_tree"):
                raise AssertionError(
                    f"configure has read `{field}`: ask what the hardware can do, not what it is called"
                )
            return super().__getattribute__(field)

    for platform in impl.make_default_platforms().values():
        nameless = Nameless(**{field.name: getattr(platform, field.name) for field in dataclasses.fields(platform)})
        assert impl.configure(nameless, qwen(impl), impl.Wishes()) == impl.configure(
            platform, qwen(impl), impl.Wishes()
        )


def test_names_mean_nothing(impl):
    """A hundred platforms, each under the names of others."""
    draw = random.Random(17)
    for _ in range(100):
        platform = mytpu(
            impl, attention_backends=tuple(draw.sample(["flash_attn", "cpu_attn", "pallas"], draw.randint(1, 3))),
            supported_dtypes=tuple(draw.sample(["float32", "bfloat16", "float16"], draw.randint(1, 3))),
            supports_graphs=draw.random() < 0.5, memory_bytes=draw.randint(8, 64) * GIB,
            block_size=draw.choice([16, 128]),
        )  # fmt: skip
        model = qwen(impl, draw.choice(["bfloat16", "float32", "float16"]))
        called = [dataclasses.replace(platform, name=name, device_type=device, out_of_tree=outside)
                  for name, device, outside in (("cuda", "cuda", False), ("cpu", "cpu", False))]  # fmt: skip
        for each in called:
            assert impl.configure(each, model, impl.Wishes()) == impl.configure(platform, model, impl.Wishes()), (
                f"a platform gets other settings when it is called {each.name!r}"
            )
        assert impl.configure(platform, model, impl.Wishes()).graphs == platform.supports_graphs


def test_what_a_user_says_is_kept(impl):
    cuda = impl.make_default_platforms()["cuda"]
    wishes = impl.Wishes("float32", "triton_attn", False, 32, 1.0)
    found = impl.configure(cuda, qwen(impl), wishes)
    blocks = (80 * GIB - 4 * PARAMETERS) // (32 * KV_NUMBERS * 4)
    assert dataclasses.astuple(found) == ("triton_attn", "float32", False, 32, blocks, ()), "each wish, to the letter"
    assert impl.configure(cuda, qwen(impl), impl.Wishes(graphs=True)).graphs is True
    assert impl.configure(cuda, qwen(impl), impl.Wishes(block_size=1)).block_size == 1


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"dtype": "float16"}, "dtype must be one of auto, bfloat16, float32 here, got 'float16'"),
        ({"attention_backend": "flash_attn"}, "attention_backend must be one of cpu_attn here, got 'flash_attn'"),
        ({"attention_backend": ""}, "attention_backend must be one of cpu_attn here, got ''"),
        ({"graphs": True}, "graphs must be False here, got True"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"block_size": -16}, "block_size must be at least 1, got -16"),
        ({"memory_share": 0}, "memory_share must be above 0 and at most 1, got 0"),
        ({"memory_share": 1.01}, "memory_share must be above 0 and at most 1, got 1.01"),
    ],
)
def test_what_cannot_be_kept_is_refused(impl, wish, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        impl.configure(impl.make_default_platforms()["cpu"], qwen(impl), impl.Wishes(**wish))


def test_a_refusal_names_all_that_is_there(impl):
    with pytest.raises(ValueError, match="one of flash_attn, triton_attn here, got 'cpu_attn'"):
        impl.configure(impl.make_default_platforms()["cuda"], qwen(impl), impl.Wishes(attention_backend="cpu_attn"))


def test_sizes_follow_the_negotiated_dtype(impl):
    for dtypes, itemsize in ((("float32",), 4), (("bfloat16", "float32"), 2)):
        platform = mytpu(impl, supported_dtypes=dtypes)
        for stored in ("bfloat16", "float16", "float32"):
            found = impl.configure(platform, qwen(impl, stored), impl.Wishes())
            wanted = (16 * GIB - itemsize * PARAMETERS) // (64 * KV_NUMBERS * itemsize)
            assert (found.num_blocks, type(found.num_blocks)) == (wanted, int), f"{dtypes}, a checkpoint in {stored}"


def test_a_note_where_a_preference_gave_way(impl):
    only16 = mytpu(impl, supported_dtypes=("float16",))
    for asked, stored, notes in (
        ("auto", "bfloat16", 1), ("auto", "float16", 0), ("auto", "float32", 1), ("float16", "bfloat16", 0),
    ):  # fmt: skip
        found = impl.configure(only16, qwen(impl, stored), impl.Wishes(dtype=asked)).notes
        assert len(found) == notes, f"dtype {asked!r}, a checkpoint in {stored}: notes {found}"
        assert all(stored in note and "float16" in note for note in found), f"both types stand in the note: {found}"
    both = mytpu(impl, supported_dtypes=("float16", "float32"))
    found = impl.configure(both, qwen(impl, "float32"), impl.Wishes()).notes
    assert found == (), f"float32 is supported, and only not preferred: got the notes {found}, expected none"


def test_no_room(impl):
    block = 64 * KV_NUMBERS * 2
    fits = mytpu(impl, memory_bytes=2 * (2 * PARAMETERS + block))
    assert impl.configure(fits, qwen(impl), impl.Wishes()).num_blocks == 1, "one block just fits"
    with pytest.raises(ValueError, match=f"no room for a KV block: {block - 1} bytes are left .* takes {block}"):
        impl.configure(dataclasses.replace(fits, memory_bytes=fits.memory_bytes - 2), qwen(impl), impl.Wishes())
    with pytest.raises(ValueError, match=f"no room for a KV block: {-2 * PARAMETERS + 1} bytes are left"):
        impl.configure(dataclasses.replace(fits, memory_bytes=2), qwen(impl), impl.Wishes())


@pytest.mark.real_vllm
def test_the_verdicts_live(real_run):
    """Half a minute: the pinned release, asked again."""
    _, found = real_run("none")
    assert found["verdicts"] == REAL
