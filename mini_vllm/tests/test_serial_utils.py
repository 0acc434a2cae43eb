"""Messages to and from an engine core, as bytes."""

import dataclasses
import math
import sys
from collections import Counter

import numpy as np
import pytest

from mini_vllm import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason, SamplingParams
from mini_vllm.compilation.cudagraph.stats import CUDAGraphStat, CUDAGraphStats
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.engine import EngineCoreReadyResponse, EngineCoreRequestType, UtilityOutput
from mini_vllm.layers.fused_moe.expert_load import ExpertLoad
from mini_vllm.metrics.stats import SchedulerStats
from mini_vllm.request import RequestStatus
from mini_vllm.serial_utils import MsgpackDecoder, MsgpackEncoder, require_library

pytest.importorskip("msgspec")
ODD = "a\x00é\U0001f600"


def round_trip(value, message_class=None):
    return MsgpackDecoder(message_class).decode(MsgpackEncoder(message_class).encode(value))


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 10**40, 1.5, math.inf, -math.inf,
        "", ODD, "\ud800", b"", b"\xff", [], [1, 2], [1, 2**70], [None, "x", 1.0], ["a", "\udfff"], (), (1, (2, [3])),
        {}, {"a": 1}, {1: "a"}, {2**70: 1}, {(1, 2): {3}}, set(), {1, 2.5}, frozenset({1}), Counter({"x": 3}),
        RequestStatus.PREEMPTED, FinishReason.STOP, [FinishReason.ERROR, None], {"nested": [{"deep": (ODD, {2**65})}]},
    ],
    ids=ascii,
)  # fmt: skip
def test_values_keep_their_type(value):
    again = round_trip(value)
    assert again == value and type(again) is type(value)


def test_nan_stays_nan():
    assert math.isnan(round_trip(math.nan)) and math.isnan(round_trip([1, math.nan])[1])


def test_arrays_and_their_scalars():
    for array in (
        np.arange(6, dtype=np.int8).reshape(2, 3)[:, ::2],
        np.zeros((0, 3)),
        np.array(1 + 2j),
        np.ones(2, bool),
    ):
        again = round_trip(array)
        assert again.dtype == array.dtype and again.shape == array.shape and (again == array).all()
        again[...] = 0  # memory of its own
    assert round_trip([np.int64(7), np.float32(0.5)]) == [7, 0.5]


def test_a_request_keeps_all_of_its_parameters():
    params = SamplingParams(
        temperature=0.7, seed=2**63 - 1, stop=[ODD, "\ud800"], stop_token_ids=[3], logit_bias={5: -1e300, 2: 1e300},
        allowed_token_ids=[1, 2], bad_words=["x"], max_tokens=2**62, logprobs=-1, n=3,
    )  # fmt: skip
    params.update_from_generation_config([7, 8])
    params.bad_words_token_ids = [[1, 2], [3]]
    request = EngineCoreRequest(ODD, [0, 5, 2**40], params, 1.25, "salt", -(10**20))
    again = round_trip(request)
    assert again == request and vars(again.sampling_params) == vars(params)
    assert type(again.sampling_params.all_stop_token_ids) is set
    assert round_trip(EngineCoreRequest("", [], SamplingParams())) == EngineCoreRequest("", [], SamplingParams())


def test_parameters_are_not_checked_again_and_nothing_is_changed(recwarn):
    params = SamplingParams()
    params.temperature = 1e-6  # would be raised to 0.01, with a warning
    assert round_trip(params).temperature == 1e-6 and not recwarn.list


def test_outputs_of_a_step():
    logprobs = [{5: (-0.25, 1), 0: (-math.inf, 9)}, {7: (0.0, 2)}]
    outputs = EngineCoreOutputs(
        [
            EngineCoreOutput("a", [5, 7], logprobs, None, None, 0, 3),
            EngineCoreOutput(ODD, [], None, FinishReason.STOP, 2**40, None),
            EngineCoreOutput("", [np.int64(1)], None, FinishReason.ERROR, ODD),
        ],
        timestamp=12.5,
        num_inputs=10**12,
    )
    assert round_trip(outputs, EngineCoreOutputs) == outputs
    assert round_trip(EngineCoreOutputs(), EngineCoreOutputs) == EngineCoreOutputs()
    nan = round_trip(EngineCoreOutputs([EngineCoreOutput("a", [1], [{1: (math.nan, 1)}])]), EngineCoreOutputs)
    assert math.isnan(nan.outputs[0].new_logprobs[0][1][0])
    for reason in FinishReason:
        message = EngineCoreOutputs([EngineCoreOutput("a", [], finish_reason=reason)])
        assert round_trip(message, EngineCoreOutputs).outputs[0].finish_reason is reason


def test_every_field_of_an_output_may_be_set():
    """A field that is added later has to travel too: this fails for a type that msgspec cannot read back."""
    plain = EngineCoreOutputs([EngineCoreOutput("a", [1])])
    assert round_trip(plain, EngineCoreOutputs) == plain
    names = {each.name for each in dataclasses.fields(EngineCoreOutput)}
    encoded = MsgpackEncoder(EngineCoreOutputs).encode(plain)
    assert all(name.encode() in encoded for name in names)


def test_answers_to_utility_calls():
    result = MsgpackEncoder().encode({"any": (1, {2})})
    for answer in (UtilityOutput(2**63, result=result), UtilityOutput(0, ODD, "builtins.ValueError")):
        message = EngineCoreOutputs(utility_output=answer)
        assert round_trip(message, EngineCoreOutputs) == message
    assert MsgpackDecoder().decode(result) == {"any": (1, {2})}


def test_what_else_travels():
    stat = CUDAGraphStat(1, 2, 1, "FULL")
    graphs = CUDAGraphStats(Counter({stat: 4}), Counter({("FULL", 2): 4}), launches=3)
    load = ExpertLoad(2, 4)
    load.record(1, np.array([[0, 3]]))
    again = round_trip(SchedulerStats(num_steps=3, cudagraph_stats=graphs, expert_load=load))
    assert again.cudagraph_stats == graphs and again.num_steps == 3
    assert (again.expert_load.counts == load.counts).all()
    again.expert_load.record(0, np.array([[0]]))  # its lock works
    ready = EngineCoreReadyResponse(5, 6, True, 7, [1], {"top_p": 0.5})
    assert round_trip(ready) == ready and round_trip(EngineConfig()) == EngineConfig()


def test_types_of_messages_are_single_bytes_and_upstreams():
    assert {t.name: t.value for t in EngineCoreRequestType} == {
        "ADD": b"\x00", "ABORT": b"\x01", "START_DP_WAVE": b"\x02", "UTILITY": b"\x03", "WAKEUP": b"\x05",
    }  # fmt: skip


class Foreign:
    pass


@pytest.mark.parametrize(
    "value", [Foreign(), [Foreign()], {"a": lambda: 0}, object, np.array([None])], ids=list("abcde")
)
def test_what_cannot_travel_is_named(value):
    with pytest.raises(TypeError, match=r"cannot be sent to an engine core in a process of its own"):
        round_trip(value)


@pytest.mark.parametrize("name", ["os:system", "subprocess:Popen", "mini_vllm.serial_utils:require_library", "x:y"])
def test_bytes_cannot_name_a_function_or_a_foreign_class(name):
    encoder = MsgpackEncoder()
    data = encoder._encoder.encode(encoder._typed(name, {}))
    with pytest.raises(ValueError, match=r"mini_vllm alone|neither a dataclass nor an enum"):
        MsgpackDecoder().decode(data)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\xc7\x01\x07\x00"])
def test_damaged_bytes_are_a_value_error(data):
    with pytest.raises(ValueError):
        MsgpackDecoder().decode(data)


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ImportError, match=r"needs pyzmq: pip install 'mini-vllm-course\[serve\]'"):
        require_library("zmq")
