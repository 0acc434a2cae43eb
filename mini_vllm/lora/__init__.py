"""Many fine-tunes on one base: an adapter for each row of a batch.

    request.py                which adapter a request wants
    peft_helper.py, lora_model.py, lora_weights.py    an adapter's files, and its weights
    layers/base_linear.py     a projection with a buffer for each slot
    punica_wrapper/           the products with the buffers, for rows of different adapters
    model_manager.py          slots and the adapters in memory
    worker_manager.py         what a step needs is put into slots

Upstream twin: `vllm/lora/`.
"""
