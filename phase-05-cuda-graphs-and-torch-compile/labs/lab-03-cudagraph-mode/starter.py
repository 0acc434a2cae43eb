"""Lab 05-03: one setting, two kinds of batch, two epochs: what must be built at start, what is used in this step.

Modes are strings. Three of them are concrete: "NONE", "PIECEWISE", "FULL". Two are routines: a pair of concrete
modes, one for steps in which every request decodes, one for all other steps.
"""

from __future__ import annotations

from bisect import bisect_left  # noqa: F401  (for you)
from collections.abc import Sequence
from dataclasses import dataclass

CONCRETE = ("NONE", "PIECEWISE", "FULL")
ROUTINES = {"FULL_DECODE_ONLY": ("FULL", "NONE"), "FULL_AND_PIECEWISE": ("FULL", "PIECEWISE")}
SUPPORT = {"NEVER": 0, "UNIFORM_SINGLE_TOKEN_DECODE": 1, "UNIFORM_BATCH": 2, "ALWAYS": 3}


@dataclass(frozen=True)
class BatchDescriptor:
    """What a recording is filed under. Given.

    Attributes:
        num_tokens: tokens of the step, padding included.
        num_reqs: requests, padding included; None: any number fits, as in PIECEWISE.
        uniform: the recording serves only steps in which every request has the same number of tokens.
    """

    num_tokens: int
    num_reqs: int | None = None
    uniform: bool = False


# ---- epoch 1: what the setting means ---------------------------------------------------------------------------------


def separate_routine(mode: str) -> bool:
    """Does the mode treat pure decode steps otherwise than mixed ones?"""
    raise NotImplementedError("say whether the mode is one of the two pairs")


def decode_mode(mode: str) -> str:
    """The concrete mode for a step in which every request decodes."""
    raise NotImplementedError("return the first of the pair, or the mode itself")


def mixed_mode(mode: str) -> str:
    """The concrete mode for any other step."""
    raise NotImplementedError("return the second of the pair, or the mode itself")


def has_mode(mode: str, target: str) -> bool:
    """Is the concrete mode `target` used for one of the two kinds of step?

    Raises:
        ValueError: `target` is not concrete ("... is not a concrete mode").
    """
    raise NotImplementedError("refuse a target that is not concrete, then look for it among the two")


def requires_piecewise_compilation(mode: str) -> bool:
    """Must the compiler cut the model at attention before the first step?"""
    raise NotImplementedError("ask has_mode for the mode that needs a model cut into pieces")


def has_full_cudagraphs(mode: str) -> bool:
    """Is any step run as one recording?"""
    raise NotImplementedError("ask has_mode for the mode that needs none")


def resolve(mode: str, support: str, attention_split: bool = True, query_len: int = 1) -> str:
    """What becomes of the mode once the attention backend is known.

    First, without cuts there are no pieces: PIECEWISE falls to NONE, and FULL_AND_PIECEWISE rises to FULL. Then, in
    upstream's order: mixed steps as FULL need ALWAYS; decodes as FULL need more than NEVER; decodes of more than one
    token (speculation) need UNIFORM_BATCH.

    Args:
        support: a key of SUPPORT, the least that any backend of the model offers.
        attention_split: the compiled model is cut at attention.
        query_len: tokens of one decoding request in a step.

    Raises:
        ValueError: FULL was asked for, for all steps, of a backend that never can ("... is not supported ...").
    """
    raise NotImplementedError(
        "take back what the missing cuts forbid, then what the backend cannot hold, in the order of the docstring"
    )


# ---- epoch 2: this step ----------------------------------------------------------------------------------------------


def is_uniform_decode(num_scheduled_tokens: Sequence[int], query_len: int = 1) -> bool:
    """Has every request of the step exactly `query_len` tokens? (Nothing asks whether they are prompt or output.)"""
    raise NotImplementedError("compare every share with query_len")


def runtime_mode_for(mode: str, is_decode: bool) -> str:
    """The concrete mode for a step of this kind, sizes left aside."""
    raise NotImplementedError("choose between the two concrete modes")


def full_sizes(mode: str, sizes: Sequence[int], max_num_seqs: int, query_len: int = 1) -> list[int]:
    """Sizes that get a FULL recording: all where mixed steps are FULL, else those that a decode step can fill exactly.

    A decode step has between query_len and max_num_seqs * query_len tokens; sizes beyond either end are left out.
    """
    raise NotImplementedError("keep all sizes, those that a decode step can fill, or none")


def dispatch(
    mode: str,
    sizes: Sequence[int],
    max_num_seqs: int,
    num_tokens: int,
    uniform_decode: bool = False,
    query_len: int = 1,
    full_allowed: bool = True,
) -> tuple[str, BatchDescriptor]:
    """The concrete mode of this step and the key of the recording that it replays.

    FULL if there is such a recording, else PIECEWISE if there is, else ("NONE", the step's own number of tokens).
    Requests in a FULL key, never more than `max_num_seqs`: padded tokens // query_len in a uniform one; else (mode
    FULL, which ignores `uniform_decode`) as many as padded tokens. A PIECEWISE or NONE key holds tokens alone.

    Args:
        mode: already resolved.
        sizes: captured sizes, ascending.
        uniform_decode: every request has exactly `query_len` tokens.
        full_allowed: False for steps with something that FULL cannot hold (cascade attention, encoder output).
    """
    raise NotImplementedError(
        "pad the tokens to a size, then look for a FULL recording, then for a PIECEWISE one, then give up"
    )


def capture_plan(mode: str, sizes: Sequence[int], max_num_seqs: int, query_len: int = 1) -> list[tuple[str, int]]:
    """What the start records, in order: (concrete mode, size); all PIECEWISE first, then FULL; largest first."""
    raise NotImplementedError("list the PIECEWISE sizes, then the FULL ones, each from the largest down")
