"""A prefill engine, a decode engine and their proxy together answer as one engine does, token for token."""

import asyncio

import pytest

pytest.importorskip("httpx", reason="needs the extra serve")
pytest.importorskip("fastapi", reason="needs the extra serve")

from mini_vllm.tests.distributed.kv_transfer.pairs import PROMPTS, ask_all, pair, requests_of, tokens_of
from mini_vllm.tests.entrypoints.openai.servers import Server
from mini_vllm.tests.helpers import POCKET

FLAGS = ["--dtype", "float64"]


@pytest.fixture(params=["ExampleConnector", "NixlConnector"])
def connector(request, tmp_path, monkeypatch):
    """(its name, its settings)"""
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "0")
    settings = {"shared_storage_path": str(tmp_path)} if request.param == "ExampleConnector" else {}
    return request.param, settings


def check_pair(connector, wanted):
    with Server(str(POCKET), *FLAGS) as one:
        tokens = [tokens_of(answer) for answer in asyncio.run(ask_all(one.url, wanted))]
    assert all(tokens)
    with pair(connector[0], flags=FLAGS, **connector[1]) as ((p,), (d,), proxy):
        answers = asyncio.run(ask_all(proxy.url, wanted))
        assert [tokens_of(answer) for answer in answers] == tokens
        assert proxy.app.state.proxy.ways == {"disaggregated": len(wanted)}
        for server in (p, d):
            server.wait_until_idle()
            assert server.engine.scheduler.kv_cache_manager.usage == 0.0
        asked, loaded = (each.engine.scheduler.connector.prefix_cache_stats for each in (p, d))
        assert asked.hits == 0 and loaded.hits > 0.6 * loaded.queries, "D has computed what P had"


@pytest.mark.slow
def test_twenty_prompts_as_completions_and_chats_streamed_and_not(connector):
    wanted = list(requests_of(PROMPTS))
    assert len(wanted) == 40
    check_pair(connector, wanted)


@pytest.mark.parametrize("connector", ["NixlConnector"], indirect=True)
def test_two_prompts_of_them(connector):
    check_pair(connector, list(requests_of(PROMPTS[2:4], max_tokens=3)))
