"""Measurements on a GPU: the kernels of `mini_vllm.kernels` beside what a user would take instead. See `run.py`."""
