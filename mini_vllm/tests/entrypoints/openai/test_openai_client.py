"""The official openai client against the server, on pocket; texts are compared with those of `LLM`."""

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.tests.entrypoints.openai.servers import Server

MODEL = "models/pocket"
QUESTION = [{"role": "user", "content": "What is a KV block?"}]


@pytest.fixture(scope="module")
def server():
    with Server(MODEL) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return server.openai()


@pytest.fixture(scope="module")
def llm():
    return LLM(MODEL)


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.owned_by, model.max_model_len) == (MODEL, "vllm", 2048)


def test_completion_is_that_of_the_offline_engine(client, llm):
    answer = client.completions.create(model=MODEL, prompt="A block", max_tokens=12, temperature=0)
    (offline,) = llm.generate("A block", SamplingParams(max_tokens=12, temperature=0), use_tqdm=False)
    assert answer.choices[0].text == offline.outputs[0].text
    assert answer.choices[0].finish_reason == offline.outputs[0].finish_reason == "length"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(offline.prompt_token_ids), 12)
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion"


def test_completion_stream_adds_up_to_the_whole(client):
    ask = {"model": MODEL, "prompt": "A block", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**ask).choices[0]
    chunks = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    *pieces, last = chunks
    assert "".join(chunk.choices[0].text for chunk in pieces) == whole.text
    assert [chunk.choices[0].finish_reason for chunk in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert last.choices == [] and last.usage.completion_tokens == 12
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.slow
def test_several_prompts_and_choices(client):
    prompts = ["A block", "The scheduler"]
    answer = client.completions.create(model=MODEL, prompt=prompts, n=2, seed=1, max_tokens=4, temperature=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [""] * 4
    stream = client.completions.create(
        model=MODEL, prompt=prompts, n=2, seed=1, max_tokens=4, temperature=1, stream=True
    )
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in answer.choices]


def test_chat_is_that_of_the_offline_engine(client, llm):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_completion_tokens=20, temperature=0)
    (offline,) = llm.chat(QUESTION, SamplingParams(max_tokens=20, temperature=0), use_tqdm=False)
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", offline.outputs[0].text)
    assert answer.usage.prompt_tokens == len(offline.prompt_token_ids)
    assert answer.id.startswith("chatcmpl-")


@pytest.mark.slow
def test_chat_without_a_bound_ends_by_itself(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    assert answer.choices[0].finish_reason == "stop"


def test_chat_stream_adds_up_to_the_whole(client):
    ask = {"model": MODEL, "messages": QUESTION, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**ask).choices[0].message.content
    first, *pieces = list(client.chat.completions.create(**ask, stream=True))
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(chunk.choices[0].delta.content for chunk in pieces) == whole
    assert [chunk.choices[0].finish_reason for chunk in pieces][-1] == "length"


def test_json_by_response_format(client):
    import json

    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=40, temperature=0, response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}},
                                                    "required": ["a"], "additionalProperties": False}}},
    )  # fmt: skip
    assert list(json.loads(answer.choices[0].message.content)) == ["a"]


def test_what_is_wrong_is_an_exception_of_the_client(client):
    import openai

    with pytest.raises(openai.NotFoundError, match="The model `other` does not exist"):
        client.completions.create(model="other", prompt="A")
    with pytest.raises(openai.BadRequestError, match=r"temperature must be non-negative, got -1\.0"):
        client.completions.create(model=MODEL, prompt="A", temperature=-1)
    with pytest.raises(openai.BadRequestError, match="max_tokens=5000 cannot be greater than max_model_len"):
        client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=5000)


def test_logprobs(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == answer.choices[0].message.content
    assert [len(entry.top_logprobs) for entry in content] == [2, 2, 2]
    assert all(entry.top_logprobs[0].token == entry.token for entry in content)
