"""CUDA graphs as settings: which graph for a batch of decodes alone, which for a mixed batch, and for which sizes.

Sizes are tokens of a step, which equal requests only where each request has one token; every batch pads up to the next
size of a ladder. Upstream twins: `vllm/config/compilation.py`, and `vllm/config/vllm.py` (`_set_cudagraph_sizes`).
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Mapping, Sequence

from mini_vllm.attention.backend import AttentionCGSupport
from mini_vllm.config.utils import whole_number
from mini_vllm.utils.checks import is_int, shown

_MOST = 1 << 20
"""No ladder of sizes is longer than this, whatever its top."""


class CUDAGraphMode(enum.Enum):
    """NONE, PIECEWISE and FULL are also what a single step can run in; the other two are pairs (decode, mixed).

    Upstream: upstream/vllm/config/compilation.py:53 — `CUDAGraphMode`.
    """

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_DECODE_ONLY = (FULL, NONE)
    FULL_AND_PIECEWISE = (FULL, PIECEWISE)

    @classmethod
    def from_name(cls, name: str | CUDAGraphMode | None) -> CUDAGraphMode:
        """The mode of that name, in any case; None is NONE. Raises ValueError, which lists what is allowed."""
        if isinstance(name, cls):
            return name
        mode = cls.__members__.get(str(name or "none").upper())
        if mode is None:
            raise ValueError(f"cudagraph_mode must be one of {', '.join(cls.__members__)}, got {shown(name)}")
        return mode

    def separate_routine(self) -> bool:
        """True for a pair: decodes go another way than mixed batches."""
        return isinstance(self.value, tuple)

    def decode_mode(self) -> CUDAGraphMode:
        """What a uniform decode batch runs in."""
        return CUDAGraphMode(self.value[0]) if isinstance(self.value, tuple) else self

    def mixed_mode(self) -> CUDAGraphMode:
        """What any other batch runs in."""
        return CUDAGraphMode(self.value[1]) if isinstance(self.value, tuple) else self

    def has_mode(self, mode: CUDAGraphMode) -> bool:
        """True when some batch may run in `mode`, which must be NONE, PIECEWISE or FULL."""
        assert not mode.separate_routine()
        return mode in (self.decode_mode(), self.mixed_mode())

    def requires_piecewise_compilation(self) -> bool:
        """True when the model must be split at its attention layers."""
        return self.has_mode(CUDAGraphMode.PIECEWISE)

    def max_cudagraph_mode(self) -> CUDAGraphMode:
        """The larger of the two."""
        return max(self.decode_mode(), self.mixed_mode(), key=lambda mode: mode.value)

    def has_full_cudagraphs(self) -> bool:
        """True when the attention of some batch stands inside a graph."""
        return self.max_cudagraph_mode() == CUDAGraphMode.FULL

    @classmethod
    def valid_runtime_modes(cls) -> frozenset[CUDAGraphMode]:
        """What a single step can run in."""
        return frozenset({cls.NONE, cls.PIECEWISE, cls.FULL})

    def __str__(self) -> str:
        return self.name

    def __bool__(self) -> bool:
        return self != CUDAGraphMode.NONE


def split_compilation_config(value: object) -> dict[str, object]:
    """`compilation_config` as single settings: {"enforce_eager": …, "cudagraph_mode": …, …}.

    Args:
        value: None; an int, the mode; or a dict with `mode`, `cudagraph_mode`, `cudagraph_capture_sizes`,
            `max_cudagraph_capture_size`. Mode 3 is the default; mode 0 compiles nothing, as `enforce_eager`.

    Raises:
        ValueError: another key, or another mode: 1 and 2 hand the model to torch.compile, which is not here.

    Upstream: upstream/vllm/config/compilation.py:37 — `CompilationMode`.
    """
    given = {"mode": value} if isinstance(value, int) else dict(value) if isinstance(value, Mapping) else value
    if given is None:
        return {}
    allowed = ("mode", "cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
    if not isinstance(given, dict) or set(given) - set(allowed):
        raise ValueError(f"compilation_config must be 0, 3, or a dict with some of {allowed}, got {shown(value)}")
    mode = given.pop("mode", None)
    if isinstance(mode, bool) or mode not in (None, 0, 3):
        raise ValueError(f"compilation_config: mode must be 0 (none) or 3 (the default), got {shown(mode)}")
    return {**({"enforce_eager": True} if mode == 0 else {}), **given}


def resolve_cudagraph_mode(
    mode: CUDAGraphMode,
    support: AttentionCGSupport,
    backend_name: str = "",
    *,
    uniform_decode_query_len: int = 1,
    attention_is_split: bool = True,
) -> tuple[CUDAGraphMode, list[str]]:
    """The mode that the attention backend can serve, and a warning for each step down.

    Args:
        support: the least of all backends in use.
        uniform_decode_query_len: 1, or 1 + the number of speculative tokens.
        attention_is_split: the model is compiled in pieces around attention (upstream: mode VLLM_COMPILE with the
            attention operators in `splitting_ops`). Ours always is.

    Raises:
        ValueError: FULL was asked for and the backend can be in no graph at all.

    Upstream: upstream/vllm/config/compilation.py:1318 — `CompilationConfig.resolve_cudagraph_mode_and_sizes`.
    """
    warnings: list[str] = []
    never, full = support == AttentionCGSupport.NEVER, CUDAGraphMode.FULL
    fallback = CUDAGraphMode.PIECEWISE if attention_is_split else CUDAGraphMode.NONE

    def not_supported(how: str = f"with {backend_name} backend") -> str:
        return f"CUDAGraphMode.{mode.name} is not supported {how} (support: {support})"

    if mode.mixed_mode() == full and support != AttentionCGSupport.ALWAYS:
        if never:
            advice = "please try cudagraph_mode=PIECEWISE, and make sure compilation mode is VLLM_COMPILE"
            raise ValueError(f"{not_supported()}; {advice}")
        to = CUDAGraphMode.FULL_AND_PIECEWISE if attention_is_split else CUDAGraphMode.FULL_DECODE_ONLY
        warnings.append(f"{not_supported()}; setting cudagraph_mode={to}")
        mode = to
    if mode.decode_mode() == full and never:
        because = f"because attention is {'' if attention_is_split else 'not '}compiled piecewise"
        warnings.append(f"{not_supported()}; setting cudagraph_mode={fallback} {because}")
        mode = fallback
    uniform_batches = support.value >= AttentionCGSupport.UNIFORM_BATCH.value
    if mode.decode_mode() == full and uniform_decode_query_len > 1 and not uniform_batches:
        how = f"with spec-decode for attention backend {backend_name}"
        warnings.append(f"{not_supported(how)}; setting cudagraph_mode={fallback}")
        mode = fallback
    return mode, warnings


def default_capture_sizes(max_size: int) -> list[int]:
    """1, 2, 4, then every 8th below 256, then every 16th, up to `max_size`: 51 sizes for 512.

    Upstream: upstream/vllm/config/vllm.py:1597 — `VllmConfig._set_cudagraph_sizes`.
    """
    sizes = [1, 2, 4, *range(8, min(max_size + 1, 256), 8), *range(256, max_size + 1, 16)]
    return [size for size in sizes if size <= max_size]


def check_capture_sizes(sizes: Sequence[int] | None, max_size: int | None) -> None:
    """Raises ValueError for what is no size, also where no graph is asked for."""
    if max_size is not None:
        whole_number("max_cudagraph_capture_size", max_size, 1)
    if sizes is None:
        return
    if not isinstance(sizes, Sequence) or isinstance(sizes, str | bytes):
        raise ValueError(f"cudagraph_capture_sizes must be a list of whole numbers, got {shown(sizes)}")
    if not len(sizes) or not all(is_int(size) and size >= 1 for size in sizes):
        raise ValueError(f"cudagraph_capture_sizes must hold whole numbers of at least 1, got {shown(list(sizes))}")


def resolve_capture_sizes(
    sizes: Sequence[int] | None,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_size: int | None = None,
    uniform_decode_query_len: int = 1,
    every_small_size: bool = False,
) -> list[int]:
    """The sizes to capture, ascending and without repeats.

    Args:
        sizes: the user's own; those above the token budget are dropped. None: the default ladder up to
            min(2 * max_num_seqs * uniform_decode_query_len, 512, budget), with the budget itself as the last rung
            where it is no larger than that.
        max_size: the top of the ladder, where the user sets it (upstream: `max_cudagraph_capture_size`).
        every_small_size: the ladder has a rung at every size up to 32 (upstream: performance_mode="interactivity").

    Raises:
        ValueError: a size is not a positive whole number, or `sizes` and `max_size` contradict each other.

    Upstream: upstream/vllm/config/vllm.py:1597 — `VllmConfig._set_cudagraph_sizes`.
    """
    for name, value in (("max_cudagraph_capture_size", max_size), ("max_num_seqs", max_num_seqs)):
        if value is not None and value > _MOST:
            raise ValueError(f"{name} must be at most {_MOST} with CUDA graphs, got {value}")
    check_capture_sizes(sizes, max_size)
    if sizes is not None:
        chosen = sorted({size for size in sizes if size <= max_num_batched_tokens})
        if max_size is not None and max_size != (chosen or [0])[-1]:
            raise ValueError(
                f"max_cudagraph_capture_size={max_size} contradicts cudagraph_capture_sizes, whose largest within the "
                f"token budget is {(chosen or [0])[-1]}"
            )
        return chosen
    if max_size is None:
        max_size = min(max_num_seqs * uniform_decode_query_len * 2, 512)
    max_size = min(max_size, max_num_batched_tokens)
    ladder = set(default_capture_sizes(max_size)) | (
        set(range(1, min(max_size, 32) + 1)) if every_small_size else set()
    )
    if max_num_batched_tokens <= max_size:
        ladder.add(max_num_batched_tokens)
    return sorted(ladder)


def adjust_cudagraph_sizes_for_spec_decode(sizes: Sequence[int], uniform_decode_query_len: int) -> list[int]:
    """Sizes rounded up to multiples of the tokens that a request with drafts has in a step, none above the largest.

    Raises:
        ValueError: no size is left.

    Upstream: upstream/vllm/config/compilation.py:1464 — `CompilationConfig.adjust_cudagraph_sizes_for_spec_decode`.
    """
    most, of = max(sizes, default=0), uniform_decode_query_len
    rounded = sorted({up for size in sizes if (up := -(-size // of) * of) <= most})
    if not rounded:
        raise ValueError(
            f"cudagraph_capture_sizes must reach num_speculative_tokens + 1 = {of}, the tokens of a request in a step, "
            f"got {list(sizes)}"
        )
    return rounded


def pad_to_capture_size(num_tokens: int, sizes: Sequence[int]) -> int | None:
    """The smallest size that holds the batch; None above the largest: no graph. `sizes` ascend."""
    at = bisect.bisect_left(sizes, num_tokens)
    return sizes[at] if at < len(sizes) else None
