"""The policy in one setting: which graph for a batch of decodes alone, which for a mixed batch.

Upstream twin: `vllm/config/compilation.py`.
"""

from __future__ import annotations

import enum

from mini_vllm.attention.backend import AttentionCGSupport


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
            raise ValueError(f"cudagraph_mode must be one of {', '.join(cls.__members__)}, got {name!r}")
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
