"""Which ranks form groups, how layers are shared out among stages, and the links between stages."""

import itertools
import threading

import numpy as np
import pytest

from mini_vllm.distributed.parallel_state import RankGroup, initialize_model_parallel
from mini_vllm.distributed.pipeline_ranks import PLACES, IntermediateTensors, StageLink
from mini_vllm.distributed.utils import get_pp_indices


def test_groups_are_those_of_the_layout_dp_pp_tp():
    """As `initialize_model_parallel` upstream takes them from one array: the dimension last, the rest flat."""
    for dp, pp, tp in [(1, 1, 1), (2, 2, 2), (3, 2, 4), (2, 4, 1), (1, 3, 2)]:
        ranks = np.arange(dp * pp * tp).reshape(1, dp, pp, 1, tp)
        theirs = {
            "tp": ranks.reshape(-1, tp),
            "pp": ranks.transpose(0, 1, 4, 3, 2).reshape(-1, pp),
            "dp": ranks.transpose(0, 4, 2, 3, 1).reshape(-1, dp),
            "ep": ranks.transpose(0, 2, 1, 3, 4).reshape(-1, dp * tp),
        }
        for rank in range(dp * pp * tp):
            state = initialize_model_parallel(rank, tp, pp, dp)
            for name, groups in theirs.items():
                ours = getattr(state, name)
                assert list(ours.ranks) in groups.tolist() and ours.ranks[ours.rank_in_group] == rank, (name, rank)


def test_a_rank_knows_its_neighbours():
    state = initialize_model_parallel(5, tensor_model_parallel_size=2, pipeline_model_parallel_size=4)
    assert state.pp == RankGroup((1, 3, 5, 7), 5) and state.tp.ranks == (4, 5)
    assert (state.pp.prev_rank, state.pp.next_rank, state.pp.rank_in_group) == (3, 7, 2)
    assert not (state.pp.is_first_rank or state.pp.is_last_rank) and state.tp.is_last_rank
    assert RankGroup((1, 3), 1).prev_rank == 3 and RankGroup((1, 3), 3).next_rank == 1
    with pytest.raises(ValueError, match="rank must be from 0 to 3, got 4"):
        initialize_model_parallel(4, 2, 2)


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [
        (8, 2, [4, 4]),
        (3, 2, [2, 1]),
        (7, 3, [2, 3, 2]),
        (8, 3, [3, 3, 2]),
        (10, 4, [2, 3, 3, 2]),
        (11, 4, [3, 3, 3, 2]),
    ],
)
def test_what_does_not_divide_goes_to_the_stages_before_the_last(layers, stages, sizes):
    spans = [get_pp_indices(layers, stage, stages) for stage in range(stages)]
    assert [end - start for start, end in spans] == sizes
    assert spans[0][0] == 0 and spans[-1][1] == layers
    assert all(one[1] == other[0] for one, other in itertools.pairwise(spans))


def test_a_partition_may_be_given(monkeypatch):
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "1,4,2")
    assert [get_pp_indices(7, stage, 3) for stage in range(3)] == [(0, 1), (1, 5), (5, 7)]
    for wrong, layers in (("1,4,2", 8), ("3,4", 7), ("7,0,0", 7), ("a,b,c", 7), ("", 7)):
        monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", wrong)
        with pytest.raises(ValueError, match=f"VLLM_PP_LAYER_PARTITION must be 3 numbers above 0 .*the {layers} layer"):
            get_pp_indices(layers, 0, 3)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="pipeline_parallel_size must be at most the 3 layers of the model, got 4"):
        get_pp_indices(3, 0, 4)


def test_a_link_keeps_the_order_and_holds_only_so_many_steps():
    link, done = StageLink(5, 3, "float64", 2), []
    steps = [np.full((1 + i % 5, 3), float(i)) for i in range(9)]

    def send():
        for step in steps:
            link.send_tensor_dict(IntermediateTensors({"hidden_states": step}), lambda: None)
            done.append(len(step))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    while len(done) < PLACES:
        pass
    assert len(done) == PLACES
    received = []
    for step in steps:
        received.append(link.recv_tensor_dict(len(step), lambda: None)["hidden_states"])
        np.testing.assert_array_equal(received[-1], step)
    sender.join(60)
    assert len(done) == len(steps)
    for got, step in zip(received, steps, strict=True):
        np.testing.assert_array_equal(got, step, "a later step has taken its place")


def test_who_waits_at_a_link_may_be_called_off():
    def stop():
        raise TimeoutError("enough")

    with pytest.raises(TimeoutError, match="enough"):
        StageLink(5, 3, "float64", 2).recv_tensor_dict(1, stop)
