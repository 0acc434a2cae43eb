"""What `record.py` writes, one module a playground; each has a function `record`."""

from recordings import attention, bits, encoder, launch, life, paged, router, softmax, tokenizer

ALL = {
    module.__name__.rpartition(".")[2]: module.record
    for module in (tokenizer, attention, life, paged, softmax, launch, bits, router, encoder)
}
