"""Bounds of a request's head. Upstream twin: `vllm/entrypoints/constants.py`."""

H11_MAX_INCOMPLETE_EVENT_SIZE_DEFAULT = 4194304
H11_MAX_HEADER_COUNT_DEFAULT = 256
