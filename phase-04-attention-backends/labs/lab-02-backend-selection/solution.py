"""Lab 04-02: which attention backend will vLLM take, and why not the others? The selector's rules as code."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Device:
    """A machine, as far as the selector asks.

    capability: (major, minor) of an NVIDIA GPU, None for a CPU.
    missing: backends whose package cannot be imported here.
    """

    name: str
    capability: tuple[int, int] | None
    missing: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SelectorConfig:
    """What the selector knows of a model. Upstream: upstream/vllm/v1/attention/selector.py:21 —
    `AttentionSelectorConfig`, of which five fields are left out here.

    head_size: for MLA 576, the latent and the rotary part together.
    dtype: "float16", "bfloat16" or "float32".
    kv_cache_dtype: "auto", "fp8", "fp8_e4m3" or "fp8_e5m2".
    block_size: None unless the user gave one.
    """

    head_size: int
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    use_mla: bool = False
    has_sink: bool = False


@dataclass(frozen=True)
class BackendSpec:
    """The plain facts about a backend, read from its class.

    kv_cache_dtypes: allowed on every device that the backend runs on.
    block_sizes: a user's block size must be a multiple of one of these.
    head_sizes: the only ones, or () where a rule decides.
    """

    is_mla: bool
    dtypes: tuple[str, ...]
    kv_cache_dtypes: tuple[str, ...]
    block_sizes: tuple[int, ...]
    head_sizes: tuple[int, ...] = ()


HALF = ("float16", "bfloat16")
FP8 = ("fp8", "fp8_e4m3")
MLA_HEADS = (320, 576)
SPECS = {
    "FLASH_ATTN": BackendSpec(False, HALF, ("auto",), (16,)),
    "FLASHINFER": BackendSpec(False, HALF, ("auto", *FP8, "fp8_e5m2"), (16, 32, 64), (64, 128, 256, 512)),
    "TRITON_ATTN": BackendSpec(False, (*HALF, "float32"), ("auto", *FP8, "fp8_e5m2"), (16,)),
    "FLEX_ATTENTION": BackendSpec(False, (*HALF, "float32"), ("auto",), (16,)),
    "FLASH_ATTN_MLA": BackendSpec(True, HALF, ("auto",), (16,), MLA_HEADS),
    "FLASHMLA": BackendSpec(True, HALF, ("auto", *FP8), (64,), MLA_HEADS),
    "FLASHINFER_MLA": BackendSpec(True, HALF, ("auto", *FP8), (32, 64), MLA_HEADS),
    "CUTLASS_MLA": BackendSpec(True, HALF, ("auto", *FP8), (128,), MLA_HEADS),
    "TRITON_MLA": BackendSpec(True, HALF, ("auto", *FP8), (16,)),
}


def flash_attn_version(device: Device) -> int | None:
    """Which FlashAttention the device gets by default: 4 on 10.x, 3 on 9.x, 2 on any other from 8.0 on, else None.

    Upstream: upstream/vllm/v1/attention/backends/fa_utils.py:56 — `get_flash_attn_version`.
    """
    assert device.capability is not None
    major = device.capability[0]
    if major in (9, 10):
        return {9: 3, 10: 4}[major]
    return 2 if major >= 8 else None


def supports_head_size(name: str, device: Device, head_size: int) -> bool:
    """The head size rule of a backend.

    A list in its spec decides where there is one. FLASH_ATTN: a multiple of 8, up to 256, or up to 512 where
    FlashAttention 4 can run (9.x, 10.x, 11.x). TRITON_ATTN: 32 or more. All others take any.

    Upstream: upstream/vllm/v1/attention/backends/flash_attn.py:173 — `FlashAttentionBackend.supports_head_size`.
    """
    assert device.capability is not None
    if SPECS[name].head_sizes:
        return head_size in SPECS[name].head_sizes
    if name == "FLASH_ATTN":
        return head_size % 8 == 0 and head_size <= (512 if device.capability[0] in (9, 10, 11) else 256)
    return name != "TRITON_ATTN" or head_size >= 32


def supports_kv_cache_dtype(name: str, device: Device, kv_cache_dtype: str) -> bool:
    """The spec's list; FLASH_ATTN takes "fp8" and "fp8_e4m3" too, on 9.x alone, where it is FlashAttention 3.

    Upstream: upstream/vllm/v1/attention/backends/flash_attn.py:183 — `FlashAttentionBackend.supports_kv_cache_dtype`.
    """
    if name == "FLASH_ATTN" and kv_cache_dtype in FP8:
        return flash_attn_version(device) == 3
    return kv_cache_dtype in SPECS[name].kv_cache_dtypes


def supports_sink(name: str, device: Device) -> bool:
    """Whether a backend has attention sinks on a device.

    The rule is withheld: the captured verdicts tell. Of FLASH_ATTN it holds on generations, too, that no capture has:
    one of the facts above decides. (FLASHINFER would have them on 10.x, with kernels that it downloads from NVIDIA; we
    take them as not there, as the captures do.)
    """
    return name == "TRITON_ATTN" or (name == "FLASH_ATTN" and flash_attn_version(device) in (3, 4))


def supports_compute_capability(name: str, device: Device) -> bool:
    """FLASH_ATTN from 8.0; FLASHINFER 7.5 to 12.1; FLASH_ATTN_MLA 9.x; FLASHMLA 9.x, 10.x; FLASHINFER_MLA and
    CUTLASS_MLA 10.x; the others everywhere."""
    assert device.capability is not None
    major = device.capability[0]
    if name == "FLASH_ATTN":
        return device.capability >= (8, 0)
    if name == "FLASHINFER":
        return (7, 5) <= device.capability <= (12, 1)
    allowed = {"FLASH_ATTN_MLA": (9,), "FLASHMLA": (9, 10), "FLASHINFER_MLA": (10,), "CUTLASS_MLA": (10,)}
    return name not in allowed or major in allowed[name]


def combination_reason(name: str, device: Device, config: SelectorConfig) -> str | None:
    """What a backend says beyond the general rules, in upstream's words; None: nothing.

    FLASH_ATTN, FLASH_ATTN_MLA and FLASHMLA have one sentence each. The words stand among the "reasons" of
    `captured/selector.json.xz`, and `ask.py` prints them. Whose they are, and when they are said, is withheld: the
    captured verdicts tell.
    """
    assert device.capability is not None
    hopper = device.capability[0] == 9
    if name == "FLASH_ATTN" and config.has_sink and device.capability < (9, 0):
        return "sink not supported on compute capability < 9.0"
    if name == "FLASH_ATTN_MLA" and not hopper:
        return "FlashAttention MLA not supported on this device"
    if name == "FLASHMLA" and not hopper:
        return "FlashMLA Dense is only supported on Hopper devices."
    return None


def validate(name: str, device: Device, config: SelectorConfig) -> list[str]:
    """All reasons against a backend, in upstream's words and order; an empty list: it can be used.

    ["ImportError"] alone where its package is missing. Else, in this order and where they hold:
    "head_size not supported", "dtype not supported", "kv_cache_dtype not supported", "block_size not supported",
    "MLA not supported" or "non-MLA not supported" (what the model wants and the backend is not),
    "attention sinks not supported", "compute capability not supported", and the combination's reason.

    Upstream: upstream/vllm/v1/attention/backend.py:271 — `AttentionBackend.validate_configuration`.
    """
    if name in device.missing:
        return ["ImportError"]
    spec, block = SPECS[name], config.block_size
    checks = {
        "head_size not supported": supports_head_size(name, device, config.head_size),
        "dtype not supported": config.dtype in spec.dtypes,
        "kv_cache_dtype not supported": supports_kv_cache_dtype(name, device, config.kv_cache_dtype),
        "block_size not supported": block is None or any(block % size == 0 for size in spec.block_sizes),
        f"{'MLA' if config.use_mla else 'non-MLA'} not supported": config.use_mla == spec.is_mla,
        "attention sinks not supported": not config.has_sink or supports_sink(name, device),
        "compute capability not supported": supports_compute_capability(name, device),
    }
    reasons = [reason for reason, fine in checks.items() if not fine]
    combination = combination_reason(name, device, config)
    return [*reasons, combination] if combination else reasons


def priorities(device: Device, use_mla: bool) -> list[str]:
    """The candidates in SPECS for a model with or without MLA, best first.

    10.x has an order of its own, and with MLA one candidate more than the others, which share theirs. Both orders are
    withheld: the captured verdicts tell.

    Upstream: upstream/vllm/platforms/cuda.py:79 — `_get_backend_priorities`.
    """
    assert device.capability is not None
    blackwell = device.capability[0] == 10
    if use_mla:
        if blackwell:
            return ["FLASHINFER_MLA", "CUTLASS_MLA", "FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA"]
        return ["FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA"]
    first = ["FLASHINFER", "FLASH_ATTN"] if blackwell else ["FLASH_ATTN", "FLASHINFER"]
    return [*first, "TRITON_ATTN", "FLEX_ATTENTION"]


@dataclass
class Selection:
    """The answer. `log`: the lines that vLLM would print.

    reasons: what is against each candidate that was asked, in the order of asking; an empty list: nothing. Asked are
        all candidates of `priorities`, in its order, also those behind the winner; after an override or on a CPU the
        one name alone.
    """

    name: str
    reasons: dict[str, list[str]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)


def select_backend(device: Device, config: SelectorConfig, override: str | None = None) -> Selection:
    """Choose as vLLM does at start-up.

    A CPU takes "CPU_ATTN" whatever was asked; another wish is logged as "Cannot use AttentionBackendEnum.X backend on
    CPU." and forgotten. On a GPU an override is validated and taken ("Using AttentionBackendEnum.X backend.") or
    refused; it never falls back. Without one the first candidate without reasons wins: log
    "Using X attention backend out of potential backends: ['X', 'Y']." If the user's block size is the only thing
    against a better candidate, a warning comes first: "--block-size 16 precluded higher-priority backend(s) A, B.
    Using X instead, which may result in reduced performance. Consider removing --block-size to auto-select the
    optimal block size."

    Raises:
        ValueError: MLA on a CPU ("MLA is not supported on CPU."; upstream raises NotImplementedError); an unknown
            override ("Unknown attention backend: 'X'. Valid options are: " and the names in SPECS, separated by ", ",
            on a CPU CPU_ATTN as the last); an override that has reasons against it ("Selected backend
            AttentionBackendEnum.X is not valid for this configuration. Reason: ['...', '...']");
            no candidate left ("No valid attention backend found. Reasons: {X: [reason, reason], Y: [reason]}.", where
            upstream also names the device and the configuration).

    Upstream: upstream/vllm/platforms/cuda.py:293 — `CudaPlatformBase.get_attn_backend_cls`.
    """
    known = [*SPECS, "CPU_ATTN"] if device.capability is None else [*SPECS]
    if override is not None and override not in known:
        raise ValueError(f"Unknown attention backend: '{override}'. Valid options are: {', '.join(known)}")
    if device.capability is None:
        return _select_on_cpu(config, override)
    if override:
        against = validate(override, device, config)
        if against:
            text = f"Selected backend AttentionBackendEnum.{override} is not valid for this configuration."
            raise ValueError(f"{text} Reason: {against}")
        return Selection(override, {override: []}, [f"Using AttentionBackendEnum.{override} backend."])
    reasons = {name: validate(name, device, config) for name in priorities(device, config.use_mla)}
    valid = [name for name, against in reasons.items() if not against]
    if not valid:
        listing = ", ".join(f"{name}: [{', '.join(against)}]" for name, against in reasons.items())
        raise ValueError(f"No valid attention backend found. Reasons: {{{listing}}}.")
    better = list(reasons)[: list(reasons).index(valid[0])]
    log = []
    if excluded := [name for name in better if reasons[name] == ["block_size not supported"]]:
        log.append(
            f"--block-size {config.block_size} precluded higher-priority backend(s) {', '.join(excluded)}. "
            f"Using {valid[0]} instead, which may result in reduced performance. Consider removing --block-size to "
            "auto-select the optimal block size."
        )
    log.append(f"Using {valid[0]} attention backend out of potential backends: {valid}.")
    return Selection(valid[0], reasons, log)


def _select_on_cpu(config: SelectorConfig, override: str | None) -> Selection:
    log = []
    if override not in (None, "CPU_ATTN"):
        log.append(f"Cannot use AttentionBackendEnum.{override} backend on CPU.")
    if config.use_mla:
        raise ValueError("MLA is not supported on CPU.")
    return Selection("CPU_ATTN", {"CPU_ATTN": []}, log)
