"""The routes of a model that pools, over HTTP."""

import base64
from pathlib import Path

import numpy as np
import pytest

from mini_vllm import LLM, LoRARequest
from mini_vllm.tests.entrypoints.openai.servers import Server

httpx = pytest.importorskip("httpx")
MODEL = Path(__file__).resolve().parents[4] / "models" / "pocket-embed"
pytestmark = pytest.mark.skipif(not MODEL.is_dir(), reason="models/pocket-embed is not here")


def test_every_route_answers():
    with Server(str(MODEL), "--served-model-name", "embed") as server, server.client() as client:
        body = {"model": "embed", "input": ["a free block", "a beam"]}
        floats = client.post("/v1/embeddings", json=body).json()
        vectors = np.array([each["embedding"] for each in floats["data"]])
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        coded = client.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json()["data"][1]
        np.testing.assert_allclose(np.frombuffer(base64.b64decode(coded["embedding"]), "<f4"), vectors[1], atol=1e-6)
        short = client.post("/v1/embeddings", json={**body, "dimensions": 32}).json()["data"][0]["embedding"]
        assert len(short) == 32 and client.post("/v1/embeddings", json={**body, "dimensions": 31}).status_code == 400
        assert client.post("/v1/embeddings", json={**body, "model": "other"}).status_code == 404
        rows = client.post("/pooling", json={**body, "task": "token_embed"}).json()["data"][0]["data"]
        assert len(rows[0]) == 128
        bits = client.post("/v2/embed", json={"texts": ["a beam"], "embedding_types": ["binary", "float"]}).json()
        assert len(bits["embeddings"]["binary"][0]) == 16 and bits["meta"]["api_version"]["version"] == "2"
        for path in ("/score", "/v1/score"):
            pair = client.post(path, json={"queries": "a free block", "documents": ["a beam", "a free block"]}).json()
            assert pair["data"][1]["score"] == pytest.approx(1, abs=1e-5)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            asked = {"query": "a free block", "documents": ["a beam", "a free block"], "top_n": 1}
            [best] = client.post(path, json=asked).json()["results"]
            assert best["index"] == 1 and best["document"]["text"] == "a free block"
            assert client.post(path, json={**asked, "top_n": -1}).status_code == 400
        assert client.post("/classify", json=body).status_code == 404


@pytest.mark.slow
def test_the_name_of_an_adapter_is_the_name_of_a_model():
    """`test_the_other_doors_take_an_adapter` asks the engine behind them."""
    adapter = MODEL.parent / "pocket-lora-pirate"
    given = (str(MODEL.parent / "pocket"), "--runner", "pooling", "--served-model-name", "base")
    body = {"model": "pirate", "input": ["a free block", "a beam"]}
    with (
        Server(*given, "--enable-lora", "--lora-modules", f"pirate={adapter}") as server,
        server.client() as client,
    ):
        mine = [each["embedding"] for each in client.post("/v1/embeddings", json=body).json()["data"]]
        base = client.post("/v1/embeddings", json={**body, "model": "base"}).json()["data"][0]["embedding"]
        asked = {"model": "pirate", "texts": body["input"], "embedding_types": ["float"]}
        by_cohere = client.post("/v2/embed", json=asked).json()["embeddings"]["float"]
        asked = {"model": "pirate", "queries": body["input"][0], "documents": body["input"][1]}
        score = client.post("/score", json=asked).json()["data"][0]["score"]
    llm = LLM(str(MODEL.parent / "pocket"), runner="pooling", enable_lora=True)
    request = LoRARequest("pirate", 1, str(adapter))
    want = [each.outputs.embedding for each in llm.embed(body["input"], lora_request=request, use_tqdm=False)]
    np.testing.assert_allclose(mine, want, atol=1e-5)
    np.testing.assert_allclose(by_cohere, want, atol=1e-5)
    assert llm.score(*body["input"], lora_request=request)[0].outputs.score == pytest.approx(score, abs=1e-5)
    assert np.abs(np.array(base) - want[0]).max() > 1e-3
