"""Random scenarios of two small engines: other block sizes, little room, chunks, aborts on either side, reads that
fail, leases that run out. Whatever happens, the tokens are those of one engine, or the request says that it failed;
and nothing is held in the end."""

import random

import pytest

from mini_vllm import LLM
from mini_vllm.distributed.kv_transfer.kv_connector.nixl import transports
from mini_vllm.tests.distributed.kv_transfer.nixl.pair import (
    REMOTE_DECODE,
    drain_together,
    ended,
    greedy,
    transfer_config,
)
from mini_vllm.tests.models.decoder_checkpoints import save_decoder
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

LENGTH = 5


MODELS = [(save_tiny, "llama"), (save_decoder, "deepseek-v2"), (save_decoder, "gpt-oss")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model with heads, one with latents, and one with windows, of which NixlConnector makes one group."""
    return [str(save(name, tmp_path_factory.mktemp(name))) for save, name in MODELS]


@pytest.fixture(scope="module")
def expected(folders):
    """The tokens of prompts, of one engine, as they are asked for."""
    engines = [LLM(folder, dtype="float64", num_blocks=256) for folder in folders]
    known = {}

    def tokens(model, prompt):
        if (model, prompt) not in known:
            outputs = engines[model].generate({"prompt_token_ids": list(prompt)}, greedy(LENGTH), use_tqdm=False)
            known[model, prompt] = outputs[0].outputs[0].token_ids
        return known[model, prompt]

    return tokens


class Scenario:
    """One seed: two engines, and requests that go from P to D while things go wrong."""

    def __init__(self, seed, folders, clock, monkeypatch):
        self.rng = rng = random.Random(seed)
        self.model, self.clock = rng.randrange(len(MODELS)), clock
        self.policy, backend = rng.choice(["fail", "recompute"]), rng.choice(["tcp", "shm"])
        self.p, self.d = (
            LLM(
                folders[self.model],
                dtype="float64",
                kv_transfer_config=transfer_config("kv_both", self.policy, {"backends": [backend]}),
                block_size=rng.choice([2, 3, 4, 8]),
                num_blocks=rng.choice([64, 24]),
                max_num_batched_tokens=rng.choice([8, 64]),
                enable_prefix_caching=rng.random() < 0.7,
                async_scheduling=rng.random() < 0.5,
                max_num_seqs=rng.choice([2, 8]),
            )
            for _ in range(2)
        )
        stem = [rng.randrange(3, 60) for _ in range(16)]
        self.prompts = {
            f"r{i}": (*stem[: rng.choice([0, 5, 16])], *(rng.randrange(3, 60) for _ in range(rng.randrange(1, 24))))
            for i in range(rng.randrange(2, 7))
        }
        self.results, self.aborted = {}, set()
        self.share_of_failures = rng.choice([0.0, 0.0, 0.3])
        for transport in (transports.TcpTransport, transports.ShmTransport):
            monkeypatch.setattr(transport, "send", self.maybe_fails(transport.send))

    def maybe_fails(self, send):
        def sends(transport, sock, freight, fill):
            if self.rng.random() < self.share_of_failures:
                raise OSError("killed")
            send(transport, sock, freight, fill)

        return sends

    def add(self, llm, name, params, max_tokens):
        prompt = {"prompt_token_ids": list(self.prompts[name])}
        llm.llm_engine.add_request(name, prompt, greedy(max_tokens, params))

    def run(self):
        for name in self.prompts:
            self.add(self.p, name, REMOTE_DECODE, 1)
        for _ in range(100_000):
            self.step_p()
            self.step_d()
            self.something_happens()
            if len(self.results) + len(self.aborted) == len(self.prompts):
                break
        drain_together(self.clock, self.d, self.p)

    def step_p(self):
        for output in self.p.llm_engine.step():
            if output.finished and output.kv_transfer_params is not None:
                self.add(self.d, output.request_id, output.kv_transfer_params, LENGTH)

    def step_d(self):
        for output in self.d.llm_engine.step():
            if output.finished:
                self.results[output.request_id] = output.outputs[0]

    def something_happens(self):
        if self.rng.random() < 0.01:
            name = self.rng.choice(list(self.prompts))
            if name not in self.results:
                self.aborted.add(name)
                for llm in (self.p, self.d):
                    llm.llm_engine.abort_request([name])
        if self.rng.random() < 0.01:
            self.clock.time += self.rng.choice([3, 6, 31])


def play(seed, folders, expected, clock, monkeypatch):
    scenario = Scenario(seed, folders, clock, monkeypatch)
    with ended(scenario.p, scenario.d):
        scenario.run()
    for name, result in scenario.results.items():
        if result.finish_reason == "error":
            assert scenario.policy == "fail"
        else:
            assert result.token_ids == expected(scenario.model, scenario.prompts[name]), (seed, name)


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10) if seed != 3)])
def test_ten_seeds(seed, folders, expected, clock, monkeypatch):
    play(seed, folders, expected, clock, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(1, 20))
def test_two_hundred_seeds(tens, folders, expected, clock, monkeypatch):
    for seed in range(10 * tens, 10 * tens + 10):
        with monkeypatch.context() as context:
            play(seed, folders, expected, clock, context)
