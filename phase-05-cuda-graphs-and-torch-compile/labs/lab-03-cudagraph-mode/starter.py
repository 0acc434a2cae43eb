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
    raise NotImplementedError("whether the mode is one of the two pairs")


def decode_mode(mode: str) -> str:
    """The concrete mode for a step in which every request decodes."""
    raise NotImplementedError("one of the three concrete modes")


def mixed_mode(mode: str) -> str:
    """The concrete mode for any other step."""
    raise NotImplementedError("one of the three concrete modes")


def has_mode(mode: str, target: str) -> bool:
    """Is the concrete mode `target` used for one of the two kinds of step?

    Raises:
        ValueError: `target` is not concrete ("... is not a concrete mode").
    """
    raise NotImplementedError(
        "whether some kind of step runs in the target mode, or a refusal of a target that is none"
    )


def requires_piecewise_compilation(mode: str) -> bool:
    """Must the compiler cut the model at attention before the first step?"""
    raise NotImplementedError("whether any step needs a model that was cut")


def has_full_cudagraphs(mode: str) -> bool:
    """Is any step run as one recording?"""
    raise NotImplementedError("whether any step needs a recording of the whole model")


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
    raise NotImplementedError("the mode that is left when cuts and backend have had their say, or a refusal")


# ---- epoch 2: this step ----------------------------------------------------------------------------------------------


def is_uniform_decode(num_scheduled_tokens: Sequence[int], query_len: int = 1) -> bool:
    """Has every request of the step exactly `query_len` tokens? (Nothing asks whether they are prompt or output.)"""
    raise NotImplementedError("whether all shares are query_len")


def runtime_mode_for(mode: str, is_decode: bool) -> str:
    """The concrete mode for a step of this kind, sizes left aside."""
    raise NotImplementedError("the concrete mode of this kind of step")


def full_sizes(mode: str, sizes: Sequence[int], max_num_seqs: int, query_len: int = 1) -> list[int]:
    """Sizes that get a FULL recording, ascending, in a list of its own.

    All where mixed steps are FULL. Where decodes alone are, those from the smallest to the fullest decode step: of one
    request and of max_num_seqs, each with query_len tokens. Else none.
    """
    raise NotImplementedError("the sizes of the FULL recordings that this mode makes")


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
        sizes: captured sizes, ascending; empty for mode NONE.
        uniform_decode: every request has exactly `query_len` tokens.
        full_allowed: False for steps with something that FULL cannot hold (cascade attention, encoder output).
    """
    raise NotImplementedError("the concrete mode of this step, and what its recording is filed under")


def capture_plan(mode: str, sizes: Sequence[int], max_num_seqs: int, query_len: int = 1) -> list[tuple[str, int]]:
    """What the start records, in order: (concrete mode, size). Everything that `dispatch` can answer but NONE is in it.

    All PIECEWISE before all FULL, and each of the two in the order for which lab 05's pool is smallest.
    """
    raise NotImplementedError("every recording of the start, in the order in which they are made")
