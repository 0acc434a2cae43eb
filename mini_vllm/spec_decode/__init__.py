"""Speculative decoding: several tokens of a request in one step, at the price of some that are thrown away.

    end of a step         the proposer guesses the next k tokens of each request
    schedule              guesses are scheduled behind the last token, as tokens that exist are
    forward               logits at the last token and at each guess: k + 1 rows of a request
    sample_tokens         guesses are kept up to the first that the model would not have said
    update_from_output    the request has 1 to k + 1 new tokens; what was rejected is uncounted

Who guesses: the text itself (`ngram_proposer.py`), a small model (`draft_model.py`), a layer that goes on from the
model's own hidden states (`eagle.py`), heads side by side on one of them (`medusa.py`), a class of one's own.

What is said is what would have been said without guesses: with greedy sampling token for token, else in law. The
scheduler's part is `core/sched/drafts.py`, the sampler's `sample/rejection_sampler.py`, the runner's
`worker/draft_runner.py`; nobody enters them without `speculative_config`. Upstream twin: `vllm/v1/spec_decode/`.
"""
