"""Chat templates: where they are found, what they may do, and the same text as transformers gives."""

from __future__ import annotations

import json

import pytest

from mini_vllm.entrypoints.chat_utils import ChatTemplateError, apply_chat_template, load_chat_template

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "bos_and_trim": """{{- bos_token }}
{% for m in messages %}
    {%- if m.role == 'system' %}
        {{- '<<SYS>>' + m.content | trim + '<</SYS>>' }}
    {% else %}
[{{ m.role | upper }}] {{ m.content }}{{ eos_token }}
    {% endif %}
{% endfor %}""",
    "tools": """{% if tools %}{{ tools | tojson(indent=2) }}
{% endif %}{% for m in messages %}{{ m | tojson }};{% endfor %}""",
    "loop_controls": "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}{{ m.content }}"
    "{% if loop.index == 3 %}{% break %}{% endif %}|{% endfor %}",
    "generation_tag": "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %}"
    "{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
}
CONVERSATIONS = [
    [{"role": "user", "content": "Hi <b> & 'you' é 👋"}],
    [
        {"role": "system", "content": "  Be brief.\n"},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "tool", "content": '{"a": 1}'},
        {"role": "user", "content": "line\nbreak"},
    ],
]
TOOLS = [{"type": "function", "function": {"name": "añadir", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def transformers_tokenizer():
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=["one", "five"])
def test_texts_are_those_of_transformers(name, conversation, transformers_tokenizer):
    for add_generation_prompt in (True, False):
        for tools in (None, TOOLS):
            expected = transformers_tokenizer.apply_chat_template(
                conversation,
                tools=tools,
                chat_template=TEMPLATES[name],
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
            )
            special = {"bos_token": "<s>", "eos_token": "</s>"}
            got = apply_chat_template(TEMPLATES[name], conversation, add_generation_prompt, tools=tools, **special)
            assert got == expected


def test_chatml_by_hand():
    messages = [{"role": "user", "content": "hi"}]
    assert apply_chat_template(CHATML, messages) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert apply_chat_template(CHATML, messages, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_where_the_template_is_found(tmp_path):
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(ChatTemplateError, match="has no chat template"):
        apply_chat_template(tmp_path, messages)
    named = [{"name": "default", "template": "D{{ eos_token }}"}, {"name": "tool_use", "template": "T"}]
    config = {"chat_template": named, "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert apply_chat_template(str(tmp_path), messages) == "D</s>"
    assert apply_chat_template(tmp_path, messages, tools=TOOLS) == "T"
    assert apply_chat_template(tmp_path, messages, chat_template="{{ eos_token }}!") == "</s>!"
    assert apply_chat_template(tmp_path, messages, eos_token="E") == "DE"
    (tmp_path / "chat_template.jinja").write_text("from the file", encoding="utf-8")
    assert load_chat_template(tmp_path) == "from the file"


def test_a_template_is_code_and_cannot_get_out():
    messages = [{"role": "user", "content": "hi"}]
    for attack in ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}"):
        with pytest.raises(ChatTemplateError):
            apply_chat_template(attack, messages)


def test_errors_name_the_cause():
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        apply_chat_template("{{ raise_exception('roles must alternate') }}", CONVERSATIONS[0])
    with pytest.raises(ChatTemplateError, match="line 2"):
        apply_chat_template("ok\n{% if %}", CONVERSATIONS[0])
    for bad in ([], "hi", [{"content": "no role"}], ["hi"], None):
        with pytest.raises(ChatTemplateError, match="messages"):
            apply_chat_template(CHATML, bad)


def test_the_date_is_available():
    assert apply_chat_template("{{ strftime_now('%Y') }}", CONVERSATIONS[0]).isdigit()
