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
    raise NotImplementedError("2, 3 or 4, as the generation has it, or None")


def supports_head_size(name: str, device: Device, head_size: int) -> bool:
    """The head size rule of a backend.

    A list in its spec decides where there is one. FLASH_ATTN: a multiple of 8, up to 256, or up to 512 where
    FlashAttention 4 can run (9.x, 10.x, 11.x). TRITON_ATTN: 32 or more. All others take any.

    Upstream: upstream/vllm/v1/attention/backends/flash_attn.py:173 — `FlashAttentionBackend.supports_head_size`.
    """
    raise NotImplementedError("whether this backend has a kernel for heads of this size on this device")


def supports_kv_cache_dtype(name: str, device: Device, kv_cache_dtype: str) -> bool:
    """The spec's list; FLASH_ATTN takes "fp8" and "fp8_e4m3" too, on 9.x alone, where it is FlashAttention 3.

    Upstream: upstream/vllm/v1/attention/backends/flash_attn.py:183 — `FlashAttentionBackend.supports_kv_cache_dtype`.
    """
    raise NotImplementedError("whether this backend reads a KV cache of this type on this device")


def supports_sink(name: str, device: Device) -> bool:
    """Whether a backend has attention sinks on a device.

    The rule is withheld: the captured verdicts tell. Of FLASH_ATTN it holds on generations, too, that no capture has:
    one of the facts above decides. (FLASHINFER would have them on 10.x, with kernels that it downloads from NVIDIA; we
    take them as not there, as the captures do.)
    """
    raise NotImplementedError("whether this backend has attention sinks on this device, as the captured verdicts say")


def supports_compute_capability(name: str, device: Device) -> bool:
    """FLASH_ATTN from 8.0; FLASHINFER 7.5 to 12.1; FLASH_ATTN_MLA 9.x; FLASHMLA 9.x, 10.x; FLASHINFER_MLA and
    CUTLASS_MLA 10.x; the others everywhere."""
    raise NotImplementedError("whether this backend runs on devices of this capability")


def combination_reason(name: str, device: Device, config: SelectorConfig) -> str | None:
    """What a backend says beyond the general rules, in upstream's words; None: nothing.

    FLASH_ATTN, FLASH_ATTN_MLA and FLASHMLA have one sentence each. The words stand among the "reasons" of
    `captured/selector.json.xz`, and `ask.py` prints them. Whose they are, and when they are said, is withheld: the
    captured verdicts tell.
    """
    raise NotImplementedError("the backend's own objection in upstream's words, or None, as the captured verdicts say")


def validate(name: str, device: Device, config: SelectorConfig) -> list[str]:
    """All reasons against a backend, in upstream's words and order; an empty list: it can be used.

    ["ImportError"] alone where its package is missing. Else, in this order and where they hold:
    "head_size not supported", "dtype not supported", "kv_cache_dtype not supported", "block_size not supported",
    "MLA not supported" or "non-MLA not supported" (what the model wants and the backend is not),
    "attention sinks not supported", "compute capability not supported", and the combination's reason.

    Upstream: upstream/vllm/v1/attention/backend.py:271 — `AttentionBackend.validate_configuration`.
    """
    raise NotImplementedError("every reason against the backend, in upstream's words and order")


def priorities(device: Device, use_mla: bool) -> list[str]:
    """The candidates in SPECS for a model with or without MLA, best first.

    10.x has an order of its own, and with MLA one candidate more than the others, which share theirs. Both orders are
    withheld: the captured verdicts tell.

    Upstream: upstream/vllm/platforms/cuda.py:79 — `_get_backend_priorities`.
    """
    raise NotImplementedError("the candidates, best first, as the captured verdicts list them")


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
    raise NotImplementedError(
        "the backend that vLLM takes, what was against each one asked, and the lines that it logs"
    )
