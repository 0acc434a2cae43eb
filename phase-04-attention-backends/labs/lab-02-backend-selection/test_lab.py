"""Lab 04-02: your rules against the real selector's verdicts on six GPUs, a real H200 and a real CPU."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
REAL = load(HERE / "ask.py").REAL
GPUS = {"7.5": "T4", "8.0": "A100", "8.9": "L4", "9.0": "H100", "10.0": "B200", "12.0": "RTX 5090"}
ROWS = REAL["rows"]
SPECS = ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA"]
SPECS += ["CUTLASS_MLA", "TRITON_MLA"]


def device(impl, capability, missing=()):
    return impl.Device(GPUS[capability], tuple(map(int, capability.split("."))), frozenset(missing))


def config_of(impl, row):
    return impl.SelectorConfig(*row[1:7])


def rows_of(capability):
    return [row for row in ROWS if row[0] == capability]


def verdicts(row):
    return {name: [REAL["reasons"][n] for n in numbers] for name, numbers in row[8].items()}


@pytest.mark.parametrize("capability", GPUS)
def test_flash_attention_version(impl, capability):
    assert impl.flash_attn_version(device(impl, capability)) == REAL["fa_version"][capability]


@pytest.mark.parametrize("capability", GPUS)
def test_every_reason_against_every_backend(impl, capability):
    """133 configurations on each GPU: the same reasons, in the same order, as vLLM's own predicates give."""
    for row in rows_of(capability):
        for name, against in verdicts(row).items():
            if name in SPECS:
                found = impl.validate(name, device(impl, capability), config_of(impl, row))
                assert found == against, f"{name} on {GPUS[capability]} for {row[1:7]}"


@pytest.mark.parametrize("use_mla", [False, True])
@pytest.mark.parametrize("capability", GPUS)
def test_the_order_of_the_candidates(impl, capability, use_mla):
    """Where nobody can be taken, the real selector lists all candidates in its order; so do your priorities."""
    refused = [row for row in rows_of(capability) if row[7] is None and row[5] is use_mla]
    (real,) = {tuple(name for name in row[8] if name in SPECS) for row in refused}
    assert tuple(impl.priorities(device(impl, capability), use_mla)) == real


@pytest.mark.parametrize("capability", GPUS)
def test_every_choice(impl, capability):
    for row in rows_of(capability):
        gpu, config = device(impl, capability), config_of(impl, row)
        if row[7] is None:
            asked = {name: against for name, against in verdicts(row).items() if name in SPECS}
            words = ", ".join(f"{name}: [{', '.join(asked[name])}]" for name in impl.priorities(gpu, config.use_mla))
            text = f"No valid attention backend found. Reasons: {{{words}}}."
            with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
                impl.select_backend(gpu, config)
            continue
        chosen = impl.select_backend(gpu, config)
        assert chosen.name == row[7], f"on {GPUS[capability]} for {row[1:7]}"
        ours = {name: against for name, against in verdicts(row).items() if name in SPECS}
        assert chosen.reasons == ours
        assert list(chosen.reasons) == impl.priorities(gpu, config.use_mla), "asked in the order of the candidates"
        assert chosen.log[:-1] == row[9:], "the warning about the block size"


MATRIX = [  # device, configuration, choice: the table of the README
    ("8.0", {"head_size": 128}, "FLASH_ATTN"),
    ("9.0", {"head_size": 128}, "FLASH_ATTN"),
    ("10.0", {"head_size": 128}, "FLASHINFER"),
    ("10.0", {"head_size": 80}, "FLASH_ATTN"),
    ("12.0", {"head_size": 128}, "FLASH_ATTN"),
    ("7.5", {"head_size": 64, "dtype": "float16"}, "FLASHINFER"),
    ("7.5", {"head_size": 80, "dtype": "float16"}, "TRITON_ATTN"),
    ("8.0", {"head_size": 64, "dtype": "float32"}, "TRITON_ATTN"),
    ("8.0", {"head_size": 16, "dtype": "float32"}, "FLEX_ATTENTION"),
    ("8.9", {"head_size": 96}, "FLASH_ATTN"),
    ("8.9", {"head_size": 100}, "TRITON_ATTN"),
    ("8.9", {"head_size": 320}, "TRITON_ATTN"),
    ("8.9", {"head_size": 512}, "FLASHINFER"),
    ("9.0", {"head_size": 512}, "FLASH_ATTN"),
    ("8.9", {"head_size": 128, "kv_cache_dtype": "fp8_e4m3"}, "FLASHINFER"),
    ("9.0", {"head_size": 128, "kv_cache_dtype": "fp8_e4m3"}, "FLASH_ATTN"),
    ("9.0", {"head_size": 128, "kv_cache_dtype": "fp8_e5m2"}, "FLASHINFER"),
    ("8.0", {"head_size": 64, "has_sink": True}, "TRITON_ATTN"),
    ("9.0", {"head_size": 64, "has_sink": True}, "FLASH_ATTN"),
    ("8.0", {"head_size": 576, "use_mla": True}, "TRITON_MLA"),
    ("9.0", {"head_size": 576, "use_mla": True}, "FLASH_ATTN_MLA"),
    ("9.0", {"head_size": 576, "use_mla": True, "kv_cache_dtype": "fp8"}, "FLASHMLA"),
    ("9.0", {"head_size": 576, "use_mla": True, "kv_cache_dtype": "fp8", "block_size": 16}, "TRITON_MLA"),
    ("10.0", {"head_size": 576, "use_mla": True}, "FLASHINFER_MLA"),
]


@pytest.mark.parametrize(("capability", "settings", "expected"), MATRIX)
def test_the_readmes_matrix(impl, capability, settings, expected):
    """Your choice, the README's and, where that configuration was asked, the real selector's."""
    config = impl.SelectorConfig(**settings)
    assert impl.select_backend(device(impl, capability), config).name == expected
    assert [row[7] for row in rows_of(capability) if config_of(impl, row) == config] == [expected]


@pytest.mark.parametrize("capability", GPUS)
def test_an_override_is_taken_or_refused(impl, capability):
    """Word for word the real selector's log line or error, for a model with heads of 128 in bfloat16."""
    gpu, config = device(impl, capability), impl.SelectorConfig(128)
    for _, name, chosen, words in [row for row in REAL["forced"] if row[0] == capability and row[1] in SPECS]:
        if chosen is None:
            with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
                impl.select_backend(gpu, config, name)
        else:
            found = impl.select_backend(gpu, config, name)
            assert (found.name, found.log, found.reasons) == (name, [words], {name: []})


def test_an_unknown_name_lists_what_there_is(impl):
    real = next(row[3] for row in REAL["forced"] if row[1] == "FLASH_ATN")
    with pytest.raises(ValueError, match=r"^Unknown attention backend: 'FLASH_ATN'\. Valid options are: ") as error:
        impl.select_backend(device(impl, "9.0"), impl.SelectorConfig(128), "FLASH_ATN")
    known = str(error.value).split(": ")[-1].split(", ")
    assert known == SPECS and set(known) <= set(real.split(": ")[-1].split(", "))
    for gpu in (device(impl, "9.0"), impl.Device("CPU", None)):
        with pytest.raises(ValueError, match=r"^Unknown attention backend: ''\. "):
            impl.select_backend(gpu, impl.SelectorConfig(128), "")
    with pytest.raises(ValueError, match=r"TRITON_MLA, CPU_ATTN$"):
        impl.select_backend(impl.Device("CPU", None), impl.SelectorConfig(128), "FLASH_ATN")
    with pytest.raises(ValueError, match=r"^Unknown attention backend: 'CPU_ATTN'"):
        impl.select_backend(device(impl, "9.0"), impl.SelectorConfig(128), "CPU_ATTN")


def test_a_refused_override_never_falls_back(impl):
    gpu, wide = device(impl, "8.0"), impl.SelectorConfig(320)
    assert impl.select_backend(gpu, wide).name == "TRITON_ATTN"
    with pytest.raises(ValueError, match=r"Reason: \['head_size not supported'\]$"):
        impl.select_backend(gpu, wide, "FLASH_ATTN")


def test_a_package_that_is_not_installed(impl):
    gpu = device(impl, "10.0", missing=["FLASHINFER"])
    found = impl.select_backend(gpu, impl.SelectorConfig(128))
    assert found.name == "FLASH_ATTN" and found.reasons["FLASHINFER"] == ["ImportError"]
    with pytest.raises(ValueError, match=r"Reason: \['ImportError'\]$"):
        impl.select_backend(gpu, impl.SelectorConfig(100), "FLASHINFER")


@pytest.mark.parametrize("settings", [{"head_size": 128, "dtype": "bfloat16"}, {"head_size": 64, "dtype": "float16"}])
def test_a_real_h200_said_so(impl, settings):
    """Two true starts of vLLM on an H200 without flashinfer: your line is the one in its log."""
    found = impl.select_backend(device(impl, "9.0", ["FLASHINFER"]), impl.SelectorConfig(**settings))
    log = (CAPTURED / "h200.log").read_text(encoding="utf-8").splitlines()
    block = log[log.index(next(line for line in log if settings["dtype"] in line)) :]
    assert block[1].endswith(found.log[-1])
    version = impl.flash_attn_version(device(impl, "9.0"))
    assert block[2].endswith(f"Using FlashAttention version {version}")


def test_a_real_h200_took_and_refused(impl):
    """True starts with a backend asked for: taken, refused twice, misspelt. Heads of 128, bfloat16, no flashinfer."""
    log = (CAPTURED / "h200-arms.log").read_text(encoding="utf-8")
    gpu, config = device(impl, "9.0", ["FLASHINFER"]), impl.SelectorConfig(128)
    assert f"] {impl.select_backend(gpu, config, 'TRITON_ATTN').log[0]}\n" in log
    for name in ("FLASHMLA", "FLASHINFER"):
        with pytest.raises(ValueError, match=rf"^Selected backend AttentionBackendEnum\.{name} is not valid") as error:
            impl.select_backend(gpu, config, name)
        assert f"\nValueError: {error.value}\n" in log
    with pytest.raises(ValueError, match=r"^Unknown attention backend: 'FLASH_ATN'\. Valid options are: ") as error:
        impl.select_backend(gpu, config, "FLASH_ATN")
    assert str(error.value).split("Valid")[0] in log


@pytest.mark.provided
def test_the_readme_quotes_the_h200():
    """Each time of the README's table is one of captured/h200-backends.jsonl."""
    lines = (CAPTURED / "h200-backends.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    for row in rows:
        cells = re.search(rf"\| {row['batch']} × {row['context']:,} \|(.*)\|\n", readme)[1].split("|")
        column = ("default", "TRITON_ATTN", "FLEX_ATTENTION").index(row["arm"])
        assert cells[column].strip().removesuffix(" ms") == f"{row['ms_per_step']:.3f}"
    assert len(rows) == 10


def test_a_real_cpu_said_so(impl):
    """Three true starts on a CPU: default, another backend asked for, the variable of older releases set."""
    log = (CAPTURED / "cpu.log").read_text(encoding="utf-8")
    cpu, config = impl.Device("CPU", None), impl.SelectorConfig(64, "float32")
    assert impl.select_backend(cpu, config) == impl.Selection("CPU_ATTN", {"CPU_ATTN": []}, [])
    assert impl.select_backend(cpu, config, "CPU_ATTN").log == []
    assert log.count("for CPU_ATTN backend.") == 3, "whatever was asked"
    forced = impl.select_backend(cpu, config, "TRITON_ATTN")
    assert forced.name == "CPU_ATTN" and forced.log[0] in log
    assert "Unknown vLLM environment variable detected: VLLM_ATTENTION_BACKEND" in log
    with pytest.raises(ValueError, match=r"^MLA is not supported on CPU\.$"):
        impl.select_backend(cpu, impl.SelectorConfig(576, use_mla=True))


@pytest.mark.parametrize(
    ("capability", "settings", "expected"),
    [
        ("8.9", {"head_size": 136}, "FLASH_ATTN"),
        ("9.0", {"head_size": 264}, "FLASH_ATTN"),
        ("12.0", {"head_size": 264}, "TRITON_ATTN"),
        ("8.0", {"head_size": 256, "kv_cache_dtype": "fp8"}, "FLASHINFER"),
        ("10.0", {"head_size": 72, "has_sink": True}, "FLASH_ATTN"),
        ("7.5", {"head_size": 256, "dtype": "float16", "has_sink": True, "block_size": 16}, "TRITON_ATTN"),
        ("10.0", {"head_size": 320, "use_mla": True, "block_size": 128}, "FLASHINFER_MLA"),
        ("10.0", {"head_size": 320, "use_mla": True, "block_size": 16}, "TRITON_MLA"),
    ],
)
def test_models_that_were_not_asked(impl, capability, settings, expected):
    """Configurations that no capture holds: rules find an answer, a look into the captures does not."""
    config = impl.SelectorConfig(**settings)
    assert [row for row in rows_of(capability) if config_of(impl, row) == config] == [], "not among the captured ones"
    assert impl.select_backend(device(impl, capability), config).name == expected


def test_generations_that_were_not_asked(impl):
    """The rules at their ends: below 7.5, 11.0, 12.1 and beyond."""
    gpus = {c: impl.Device("?", c) for c in ((7, 4), (8, 6), (11, 0), (12, 1), (12, 2))}
    assert [impl.flash_attn_version(gpu) for gpu in gpus.values()] == [None, 2, 2, 2, 2]
    fits = [impl.supports_compute_capability("FLASHINFER", gpu) for gpu in gpus.values()]
    assert fits == [False, True, True, True, False]
    sinks = [impl.supports_sink("FLASH_ATTN", gpu) for gpu in gpus.values()]
    assert sinks == [False] * 5, "no generation here has a FlashAttention that has sinks: look at its versions"
    assert impl.supports_head_size("FLASH_ATTN", gpus[11, 0], 512)
    assert not impl.supports_head_size("FLASH_ATTN", gpus[11, 0], 520)
    assert [impl.supports_head_size("TRITON_ATTN", gpus[8, 6], size) for size in (31, 32)] == [False, True]
    assert [impl.supports_head_size("FLASH_ATTN", gpus[8, 6], size) for size in (250, 256, 264)] == [False, True, False]
    assert impl.priorities(gpus[11, 0], False)[0] == "FLASH_ATTN" == impl.priorities(gpus[7, 4], False)[0]
    assert impl.combination_reason("FLASH_ATTN", gpus[8, 6], impl.SelectorConfig(64, has_sink=True))
    assert impl.combination_reason("TRITON_ATTN", gpus[8, 6], impl.SelectorConfig(64, has_sink=True)) is None


# ---- a run of your own ---------------------------------------------------------------------------------------------


@pytest.mark.real_vllm
def test_live(impl, real_vllm_python, tmp_path):
    """About ten seconds: asks the real selector about an H100 anew."""
    command = [str(real_vllm_python), str(HERE / "real_selector.py"), "--capability", "9.0", "--out", str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    for row in result["rows"]:
        if row[6] is not None:
            config = impl.SelectorConfig(*row[:6])
            assert impl.select_backend(device(impl, "9.0"), config).name == row[6], row
