"""`generation_config.json`: what it says about sampling counts, and everything else of transformers' does not.

Upstream twin: `try_get_generation_config` of `vllm/transformers_utils/config.py`.
"""

from __future__ import annotations

from mini_vllm.transformers_utils.file_keys import COUNT, FLAG, NULL, POSITIVE, WHOLE, WHOLES, FileKeys, Kind
from mini_vllm.utils.checks import is_int, is_real


def _between(low: float, high: float, open_low: bool = False) -> Kind:
    return Kind(
        f"a number from {low:g} to {high:g}",
        lambda value: is_real(value) and low <= value <= high and not (open_low and value == low),
    )


_HARMLESS = """
    _from_model_config decoder_start_token_id transformers_version max_length use_cache
    assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight assistant_lookbehind is_assistant
    target_lookbehind num_assistant_tokens num_assistant_tokens_schedule prompt_lookup_num_tokens speculation_type
    max_matching_ngram_size use_mtp cache_config cache_implementation compile_config continuous_batching_config
    disable_compile low_memory max_cache_len max_time prefill_chunk_size return_dict_in_generate return_legacy_cache
    output_attentions output_hidden_states output_logits output_scores remove_invalid_values renormalize_logits
    bad_words_ids begin_suppress_tokens suppress_tokens force_words_ids forced_bos_token_id forced_eos_token_id
    forced_decoder_ids constraints diversity_penalty dola_layers early_stopping encoder_no_repeat_ngram_size
    encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty guidance_scale
    length_penalty min_length min_new_tokens no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    penalty_alpha sequence_bias stop_strings token_healing top_h typical_p watermarking_config generation_kwargs
    trust_remote_code"""
KEYS = FileKeys(
    "generation_config.json",
    used={
        "temperature": _between(0, 1e9),
        "top_p": _between(0, 1, open_low=True),
        "top_k": Kind("a whole number of at least -1", lambda value: is_int(value) and value >= -1),
        "min_p": _between(0, 1),
        "repetition_penalty": POSITIVE,
        "max_new_tokens": COUNT,
        **dict.fromkeys(
            ("eos_token_id", "bos_token_id", "pad_token_id"),
            Kind("a token id or a list of them", (WHOLE | WHOLES | NULL).allows),
        ),
        "do_sample": FLAG,
    },
    harmless=frozenset(_HARMLESS.split()),
)  # fmt: skip
"""The second half of what is harmless steers transformers' `generate` alone: upstream, too, takes six keys of the file
and no more (upstream/vllm/config/model.py:1465 — `ModelConfig.get_diff_sampling_param`)."""
