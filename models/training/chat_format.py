"""The chat format: special tokens, the Jinja template, and the same format as token ids with loss classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

PAD, BOS, END, SYSTEM, USER, ASSISTANT, TOOL = SPECIAL_TOKENS = [
    "<|pad|>",
    "<|bos|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
]
ROLES = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}
CLASS_PAD, CLASS_CONTEXT, CLASS_ANSWER = 0, 1, 2

# Messages become <|role|>\ncontent<|end|>\n ; `tools` (OpenAI's form) becomes the system prompt of the training;
# a message with tool_calls shows its first call as the JSON that the model writes.
CHAT_TEMPLATE = (
    "{{- '<|bos|>' }}"
    "{%- if tools %}"
    "{{- '<|system|>\\n' }}"
    "{%- if messages and messages[0].role == 'system' %}{{- messages[0].content | trim + '\\n' }}{%- endif %}"
    "{{- 'You can call tools.\\nTools:\\n' }}"
    "{%- for tool in tools %}"
    "{%- set f = tool.function if tool.function else tool %}"
    "{%- set params = f.parameters.properties if f.parameters and f.parameters.properties else {} %}"
    "{{- f.name + '(' + (params | join(', ')) + ')\\n' }}"
    "{%- endfor %}"
    "{{- 'To call one, answer with one JSON object.<|end|>\\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if not (tools and loop.first and message.role == 'system') %}"
    "{{- '<|' + message.role + '|>\\n' }}"
    "{%- if message.tool_calls %}"
    "{%- set call = message.tool_calls[0].function %}"
    '{{- \'{"name": "\' + call.name + \'", "arguments": \' }}'
    "{{- (call.arguments if call.arguments is string else call.arguments | tojson) + '}' }}"
    "{%- else %}{{- message.content | trim }}{%- endif %}"
    "{{- '<|end|>\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)


@dataclass
class Conversation:
    """Messages as (role, content); or, where `plain` is set, text without roles of which `prompt` is the given part."""

    messages: list[tuple[str, str]] = field(default_factory=list)
    plain: str | None = None
    prompt: str = ""
    bos: int = 1

    @property
    def text(self) -> str:
        """All of it as one string, as the template renders it (less the newline after the last turn)."""
        if self.plain is not None:
            return BOS + self.plain + END
        return BOS + "".join(f"{ROLES[role]}\n{content}{END}\n" for role, content in self.messages).removesuffix("\n")


def to_ids(
    conversation: Conversation, encode: Callable[[str], list[int]], special: dict[str, int]
) -> tuple[list[int], list[int]]:
    """Token ids and their loss classes; the parts between special tokens are encoded apart, as a tokenizer does."""
    ids, classes = [special[BOS]] * conversation.bos, [CLASS_CONTEXT] * conversation.bos

    def put(tokens: list[int], cls: int) -> None:
        ids.extend(tokens)
        classes.extend([cls] * len(tokens))

    if conversation.plain is not None:
        tokens = encode(conversation.plain)
        given = len(encode(conversation.prompt)) if conversation.prompt else 0
        put(tokens[:given], CLASS_CONTEXT)
        put([*tokens[given:], special[END]], CLASS_ANSWER)
        return ids, classes
    newline = encode("\n")
    for i, (role, content) in enumerate(conversation.messages):
        put([special[ROLES[role]], *newline], CLASS_CONTEXT)
        tokens = encode("\n" + content)[len(newline) :]
        put([*tokens, special[END]], CLASS_ANSWER if role == "assistant" else CLASS_CONTEXT)
        if i + 1 < len(conversation.messages):
            put(newline, CLASS_CONTEXT)
    return ids, classes
