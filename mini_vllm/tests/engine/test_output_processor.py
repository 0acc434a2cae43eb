"""However many tokens a step brings, the front end gives what it gives for one token a step."""

from __future__ import annotations

import random

import pytest

from mini_vllm.engine import EngineCoreOutput, FinishReason
from mini_vllm.engine.input_processor import ProcessedInput
from mini_vllm.engine.output_processor import OutputProcessor
from mini_vllm.metrics.stats import EngineStats
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
from mini_vllm.tokenizers.byte import ByteTokenizer

EOS = 256
TEXT = "the mill in the old town €5, the mill".encode()
STOPS = [
    ["mill", "the"], ["the", "mill"], ["a", "l"], ["ill", "mill"], ["mill", "ill"], ["€", " "], ["never"],
    ["old town", "own €"], ["l in", "in", "mill in the"], list("zyxwto"),
]  # fmt: skip
KINDS = list(RequestOutputKind)


def serve(token_ids, cut, ended=None, kind=RequestOutputKind.FINAL_ONLY, stream_interval=1, **params):
    """What a client has in the end, the pieces that came, the processor's counts, and what is to be aborted."""
    params = SamplingParams(**{"max_tokens": None, "logprobs": 0, **params})
    stats, aborted, pieces = EngineStats(), [], []
    processor = OutputProcessor(ByteTokenizer(), stats, stream_interval=stream_interval)
    processor.add_request("0", ProcessedInput("p", [112], params), kind)
    while token_ids and not aborted:
        new, token_ids = list(token_ids[:cut]), token_ids[cut:]
        entries = [{each: (-each / 7, 1)} for each in new]
        said = EngineCoreOutput("0", new, entries, None if token_ids else ended, num_cached_tokens=0)
        shown, aborted = processor.process_outputs([said], 1.0)
        pieces += shown
    last = pieces[0]
    for piece in pieces[1:]:
        last.add(piece, aggregate=kind is RequestOutputKind.DELTA)
    (completion,) = last.outputs
    return completion, stats.num_generation_tokens, bool(aborted)


def by_hand(stop, min_tokens):
    """Stop string and number of tokens by the rule itself: the first token behind which one ends, and the first end."""
    told = TEXT.decode()
    shown = [len(TEXT[:n].decode(errors="ignore")) for n in range(len(TEXT) + 1)]
    for n in range(min_tokens + 1, len(TEXT) + 1):
        ends = [end for end in range(shown[n - 1] + 1, shown[n] + 1) if any(told[:end].endswith(s) for s in stop)]
        if ends:
            return next(s for s in stop if told[: ends[0]].endswith(s)), n
    return None, len(TEXT)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("min_tokens", [0, 5])
@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_steps_of_several_tokens_end_where_steps_of_one_end(stop, min_tokens, include):
    params = {"stop": stop, "min_tokens": min_tokens, "include_stop_str_in_output": include}
    expected = serve(TEXT, 1, FinishReason.LENGTH, **params)
    reason, count = by_hand(stop, min_tokens)
    assert (expected[0].stop_reason, len(expected[0].token_ids)) == (reason, count)
    assert expected[0].finish_reason == ("length" if reason is None else "stop")
    for cut in (2, 4, len(TEXT)):
        for kind in KINDS:
            completion, counted, aborted = serve(TEXT, cut, FinishReason.LENGTH, kind, **params)
            assert completion == expected[0] and counted == count == len(completion.logprobs)
            assert aborted == (reason is not None and (count - 1) // cut < (len(TEXT) - 1) // cut)


@pytest.mark.parametrize("stop", [["wn", "town "], ["€"], ["ll"]], ids=str)
@pytest.mark.parametrize("ended", [FinishReason.STOP, FinishReason.LENGTH, FinishReason.REPETITION])
def test_a_stop_string_in_the_step_in_which_the_core_ends_the_request(stop, ended):
    """The core saw tokens alone, and ended behind the stop string: by a stop token, a length, a repetition."""
    ids = [*b"in town e", 0xE2, 0x82, 0xAC, EOS]
    expected = serve(ids, 1, ended, stop=stop)
    for cut in (2, 5, len(ids)):
        for kind in KINDS:
            got = serve(ids, cut, ended, kind, stop=stop)
            assert got[:2] == expected[:2]
    assert expected[0].finish_reason == ("stop" if expected[0].stop_reason else str(ended))


def test_random_texts_random_stops_and_any_cut():
    rng = random.Random(3)
    for _ in range(60):
        ids = [*rng.choices(b"abc ", k=rng.randrange(3, 24)), EOS]
        stop = ["".join(rng.choices("abc ", k=rng.randrange(1, 4))) for _ in range(rng.randrange(1, 4))]
        params = {"stop": stop, "min_tokens": rng.randrange(4), "include_stop_str_in_output": rng.random() < 0.3}
        expected, counted, _ = serve(ids, 1, FinishReason.STOP, **params)
        for cut in (2, 4, len(ids)):
            got = serve(ids, cut, FinishReason.STOP, rng.choice(KINDS), rng.choice([1, 3]), **params)
            assert got[:2] == (expected, counted), (ids, params, cut)
