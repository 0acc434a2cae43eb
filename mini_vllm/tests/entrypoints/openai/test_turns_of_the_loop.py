"""No request keeps the event loop to itself: how much of one is worked on in a turn. Work is counted, and not time."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from mini_vllm import SamplingParams
from mini_vllm.engine.input_processor import InputProcessor
from mini_vllm.engine.output_handler import OUTPUT_PROC_CHUNK_SIZE, handle_outputs
from mini_vllm.tests.entrypoints.openai.servers import Server
from mini_vllm.tokenizers.byte import ByteTokenizer
from mini_vllm.utils.async_utils import AT_ONCE, in_turns, merge_async_iterators


class Turns:
    """How often something is done in each turn of a loop. `count()` is called where it is done."""

    def __init__(self):
        self.counts = [0]

    def count(self):
        self.counts[-1] += 1

    async def _tick(self):
        while True:
            self.counts.append(0)
            await asyncio.sleep(0)

    async def during(self, coroutine):
        """What it returns; turns are told apart meanwhile."""
        ticking = asyncio.ensure_future(self._tick())
        try:
            return await coroutine
        finally:
            ticking.cancel()


def test_items_come_in_turns():
    turns = Turns()

    async def body():
        return [turns.count() or each async for each in in_turns(range(1000))]

    assert asyncio.run(turns.during(body())) == list(range(1000))
    assert max(turns.counts) <= AT_ONCE and sum(turns.counts) == 1000


def test_bad_words_are_read_some_at_a_time():
    turns = Turns()

    class Tokenizer(ByteTokenizer):
        def encode(self, text, **more):
            turns.count()
            return super().encode(text, **more)

    processor = InputProcessor(Tokenizer(), 257, 64, [256])
    words = [f"word {number}" for number in range(1000)]
    params = SamplingParams(max_tokens=1, bad_words=words)
    found = asyncio.run(turns.during(processor.process_inputs_async([1], params)))
    assert found.params.bad_words_token_ids == processor.process_inputs([1], params).params.bad_words_token_ids
    assert len(found.params.bad_words_token_ids) >= 1000
    assert max(turns.counts[:-1]) <= 2 * AT_ONCE and len(turns.counts) > 1000 / AT_ONCE


def test_outputs_of_a_step_are_handed_out_some_at_a_time():
    turns = Turns()

    class Client:
        replica_metrics = None

        async def get_output_async(self):
            if sum(turns.counts):
                raise asyncio.CancelledError
            return SimpleNamespace(outputs=list(range(128)), timestamp=0.0, num_inputs=0)

        def drop_stale(self, chunk, num_inputs):
            return chunk

    class Processor:
        def process_outputs(self, outputs, timestamp):
            for _ in outputs:
                turns.count()
            return [], []

        def propagate_error(self, error):
            pass

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(turns.during(handle_outputs(Client(), Processor(), SimpleNamespace(error=None))))
    assert sum(turns.counts) == 128 and max(turns.counts) <= OUTPUT_PROC_CHUNK_SIZE <= 32


@pytest.mark.parametrize("number", [50, 2000])
def test_what_an_item_costs_does_not_grow_with_the_number_of_streams(number):
    """Callbacks of the loop are counted: as many for each of 2,000 streams as for each of 50."""
    calls = 0

    async def stream(at):
        yield at
        yield -at

    async def body():
        nonlocal calls
        loop = asyncio.get_running_loop()
        call_soon = loop.call_soon

        def counted(*args, **more):
            nonlocal calls
            calls += 1
            return call_soon(*args, **more)

        loop.call_soon = counted
        found = [item async for item in merge_async_iterators(*(stream(at) for at in range(number)))]
        loop.call_soon = call_soon
        return found

    found = asyncio.run(body())
    assert sorted(found) == sorted([*((at, at) for at in range(number)), *((at, -at) for at in range(number))])
    assert calls < 30 * number


def test_many_prompts_of_one_request_are_read_and_answered_some_at_a_time(monkeypatch):
    from mini_vllm.entrypoints.openai.completion import serving
    from mini_vllm.renderers import base

    looks = []

    async def watched(items, size=AT_ONCE):
        looks.append(len(items))
        async for each in in_turns(items, size):
            yield each

    monkeypatch.setattr(serving, "in_turns", watched)
    monkeypatch.setattr(base, "in_turns", watched)
    with Server("toy", "--max-model-len", "64") as server, server.client() as client:
        response = client.post("/v1/completions", json={"prompt": ["ab"] * 300, "max_tokens": 1})
    assert response.status_code == 200
    assert [choice["index"] for choice in response.json()["choices"]] == list(range(300))
    assert looks == [300, 300, 300]  # rendered, given their parameters, answered
