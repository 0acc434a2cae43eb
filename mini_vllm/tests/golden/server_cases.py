"""The requests that the real server answered (`record_server.py`), and that the tests ask ours.

`PLAIN` is played against a server with `ARGS`, `KEYED` against one with `KEYED_ARGS` besides, each from the first case
to the last and one at a time, so that the counts of cached tokens are the same each time. Everything compared is
greedy; `loose` cases draw at random, and only their shape is compared. `DEADLY` ends the real server.
"""

from mini_vllm.tests.golden import server_bad_cases as bad
from mini_vllm.tests.golden import server_chat_cases as chats
from mini_vllm.tests.golden import server_completion_cases as completions
from mini_vllm.tests.golden.server_requests import API_KEY

ARGS = {
    "served_model_name": ["pocket", "pocket-again"], "dtype": "float32", "max_model_len": 512, "block_size": 16,
    "max_num_seqs": 32, "max_num_batched_tokens": 512, "enforce_eager": True, "enable_prompt_tokens_details": True,
}  # fmt: skip
KEYED_ARGS = {
    **ARGS, "api_key": API_KEY, "enable_auto_tool_choice": True, "tool_call_parser": "hermes", "max_logprobs": 3,
    "enable_request_id_headers": True, "enable_server_load_tracking": True, "scheduling_policy": "priority",
    "return_tokens_as_token_ids": True, "enable_force_include_usage": True,
}  # fmt: skip
GOOD = [
    *completions.AROUND, *completions.COMPLETIONS, *completions.TOKENS, *chats.CHATS, *chats.RESPONSES, *chats.MESSAGES,
]  # fmt: skip
BAD = [*bad.SENT, *bad.COMPLETIONS, *bad.CHATS, *bad.OTHERS]
PLAIN = GOOD + BAD
KEYED = chats.TOOLS
DEADLY = bad.DEADLY
