"""Lab 03-02: chunking moves work between steps, and never changes a token."""

import pytest

from mini_vllm import Request

PROMPT = "The scheduler knows no phases: only tokens that exist, and tokens that are computed."


def no_request(self, *args, **kwargs):
    raise AssertionError("an account on paper made a request: it does without an engine")


@pytest.fixture
def paper(impl, monkeypatch):
    """`paper("prefill_chunks", ...)`: your function, called while no engine in this process can take a request."""

    def call(name, *args):
        with monkeypatch.context() as patch:
            patch.setattr(Request, "__init__", no_request)
            return getattr(impl, name)(*args)

    return call


@pytest.mark.parametrize(
    ("prompt_len", "threshold", "budget", "chunks"),
    [
        (40, 0, 2048, [40]),
        (40, 16, 2048, [16, 16, 8]),
        (48, 16, 2048, [16, 16, 16]),
        (100, 64, 32, [32, 32, 32, 4]),
        (32, 32, 2048, [32]),
        (33, 32, 2048, [32, 1]),
        (5, 0, 2, [2, 2, 1]),
        (1, 1, 1, [1]),
    ],
)
def test_chunks(paper, prompt_len, threshold, budget, chunks):
    assert paper("prefill_chunks", prompt_len, threshold, budget) == chunks
    assert paper("num_prefill_steps", prompt_len, threshold, budget) == len(chunks)


@pytest.mark.parametrize(
    ("prompt_len", "threshold", "budget", "steps"),
    [(4000, 512, 2048, 8), (4096, 0, 2048, 2), (4097, 0, 2048, 3), (8000, 0, 2046, 4), (7, 3000, 2048, 1)],
)
def test_num_prefill_steps(paper, prompt_len, threshold, budget, steps):
    assert paper("num_prefill_steps", prompt_len, threshold, budget) == steps
    assert paper("num_prefill_steps", 3 * 10**17 + 1, 10**17, 10**18) == 4, "whole numbers, no detour over floats"


@pytest.mark.parametrize("bad", [(0, 0, 8), (4, -1, 8), (4, 0, 0)])
def test_nonsense_is_refused(paper, bad):
    prompt_len, threshold, budget = bad
    message = rf"^need prompt_len >= 1, budget >= 1, threshold >= 0; got {prompt_len}, {budget}, {threshold}$"
    for refused in (
        lambda: paper("prefill_chunks", *bad),
        lambda: paper("num_prefill_steps", *bad),
        lambda: paper("interleave", [5, prompt_len] if budget and threshold >= 0 else [prompt_len], threshold, budget),
    ):
        with pytest.raises(ValueError, match=message):
            refused()


@pytest.mark.parametrize("budget", [1, 7, 16, 2048])
@pytest.mark.parametrize("threshold", [0, 1, 5, 16, 4000])
def test_the_engine_takes_the_predicted_chunks(impl, paper, threshold, budget):
    expected = paper("prefill_chunks", len(PROMPT), threshold, budget)
    chunks, ids = impl.measured_chunks(PROMPT, 3, long_prefill_token_threshold=threshold, max_num_batched_tokens=budget)
    assert chunks == expected
    assert len(ids) == 3, "all output tokens, not only the first"


def test_a_cached_prefix_shortens_the_drip(impl):
    """Chunking and caching meet in the counter. The prompt repeats one letter, but no block of it is cached yet."""
    chunks, _ = impl.measured_chunks("a" * 84, 1, long_prefill_token_threshold=40, block_size=4)
    assert chunks == [40, 40, 4], "what is computed in step 1 is not a hit for step 2 of the same request"


@pytest.mark.parametrize("threshold", [1, 3, 16, 83, 84, 85])
def test_same_output_different_timing(impl, threshold):
    """The toy engine runs under the KV oracle: a chunk that read a slot before it was written would raise."""
    whole, expected = impl.measured_chunks(PROMPT, 12)
    chunks, ids = impl.measured_chunks(PROMPT, 12, long_prefill_token_threshold=threshold)
    assert whole == [len(PROMPT)] and len(expected) == 12
    assert ids == expected, "chunking may change when a token is computed, never which one comes out"
    assert len(chunks) == -(-len(PROMPT) // threshold)


def test_without_the_sampling_guard_the_output_changes(impl, monkeypatch):
    """An engine that takes a token from every chunk: your measurement must see that its output is another."""
    from mini_vllm import Scheduler

    _, expected = impl.measured_chunks(PROMPT, 4)
    original = Scheduler.update_from_output

    def take_every_row(self, output, model_output):
        model_output.sampled_token_ids = [tokens or [7] for tokens in model_output.sampled_token_ids]
        return original(self, output, model_output)

    monkeypatch.setattr(Scheduler, "update_from_output", take_every_row)
    chunks, ids = impl.measured_chunks(PROMPT, 4, long_prefill_token_threshold=16)
    assert chunks == [16], "the first chunk gave a token: so it looks like the end of the prefill"
    assert ids == [7, 7, 7, 7] != expected, "tokens were taken at positions where the prompt goes on"


def test_measured_in_one_engine_of_its_own(impl, greedy):
    with pytest.raises(ValueError, match="unknown engine argument"):
        impl.measured_chunks("hello", nonsense=1)
    chunks, ids = impl.measured_chunks("we", 6)
    assert chunks == [2] and ids == greedy("we", 6), "greedy, and past EOS, which is its third token"
    assert len(impl.measured_chunks("hello")[1]) == 8, "the default"


def test_two_prompts_share_the_budget(paper):
    assert paper("interleave", [11, 7], 0, 8) == [[8, 0], [3, 5], [0, 2]]
    assert paper("interleave", [100, 10], 16, 24) == [[16, 8], [16, 2], [16, 0], [16, 0], [16, 0], [16, 0], [4, 0]]
    lengths = [5, 3]
    assert paper("interleave", lengths, 4, 6) == [[4, 2], [1, 1]] and lengths == [5, 3], "the list is the caller's"
    assert paper("interleave", [5], 0, 5) == [[5]]
    assert paper("interleave", [], 0, 5) == []


@pytest.mark.parametrize(("threshold", "budget"), [(0, 8), (4, 16), (16, 24), (5, 6)])
def test_shares_equal_the_engines(paper, threshold, budget):
    """Against the engine: a request's first tokens are counted until its prompt is computed."""
    from mini_vllm import LLMEngine, SamplingParams

    lengths = [30, 9, 17]
    engine = LLMEngine(
        long_prefill_token_threshold=threshold, max_num_batched_tokens=budget, enable_prefix_caching=False
    )
    for i, n in enumerate(lengths):
        engine.add_request(str(i), chr(97 + i) * n, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True))
    seen, original = [], engine.scheduler.schedule

    def schedule():
        output = original()
        seen.append([output.num_scheduled_tokens.get(str(i), 0) for i in range(len(lengths))])
        return output

    engine.scheduler.schedule = schedule
    while engine.has_unfinished_requests():
        engine.step()
    assert paper("interleave", lengths, threshold, budget) == seen
