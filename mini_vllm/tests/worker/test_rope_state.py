"""Positions of three parts: a prompt's as the model has them, also in chunks; then on from the largest."""

import numpy as np
import pytest

from mini_vllm.tests.multimodal.toy import IMAGE, ToyProcessor, ToyVisionModel
from mini_vllm.worker.rope_state import RopeState


def state():
    rope, model = RopeState(ToyVisionModel()), ToyProcessor()
    tokens, features = model.apply([1, IMAGE, 2], {"image": [np.ones((2, 2))]})
    rope.init_prefill_positions("r", tokens, features)
    rope.init_prefill_positions("text", [1, 2, 3], [])
    return rope


# a token; two rows of two pixels and a break, all at time 1; the text behind them
PROMPT = [[0, 1, 1, 1, 1, 1, 1, 4], [0, 1, 1, 1, 2, 2, 2, 4], [0, 1, 2, 3, 1, 2, 3, 4]]


def test_a_prompt_has_the_models_positions_and_a_generated_token_the_next():
    found = state().prepare_positions(["r"], np.array([0, 10]), np.arange(10))
    assert found[:, :8].tolist() == PROMPT
    assert found[:, 8:].tolist() == [[5, 6]] * 3


def test_a_step_of_several_requests_has_a_chunk_of_each():
    numbers = np.array([2, 3, 4, 3, 7, 8])
    found = state().prepare_positions(["r", "text", "r"], np.array([0, 3, 4, 6]), numbers)
    assert found[:, :3].tolist() == [row[2:5] for row in PROMPT]
    assert found[:, 3:].tolist() == [[3, 4, 5]] * 3


def test_positions_of_another_shape_are_refused():
    model = ToyVisionModel()
    model.get_mrope_input_positions = lambda tokens, features: (np.zeros((2, 3)), 0)
    with pytest.raises(ValueError, match=r"get_mrope_input_positions of ToyVisionModel .*\(3, 3\), got \(2, 3\)"):
        RopeState(model).init_prefill_positions("r", [1, 2, 3], [])


def test_of_a_request_that_has_ended_nothing_is_kept():
    rope = state()
    rope.forget("r")
    rope.forget("unknown")
    assert list(rope.positions) == list(rope.deltas) == ["text"]
