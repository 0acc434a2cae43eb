// The model, as an equation: rows are the step's tokens, whatever requests they belong to.
// Twin: mini_vllm/models/llama.py.

import { rms_norm } from "../layers/layernorm.js";
import { linear } from "../layers/linear.js";
import { RotaryEmbedding } from "../layers/rotary_embedding.js";

/** @typedef {import("../model_loader/safetensors_reader.js").Tensor} Tensor */
/** @typedef {import("../attention/paged_attention.js").PagedAttention} PagedAttention */
/** @typedef {import("../attention/paged_attention.js").AttentionMetadata} AttentionMetadata */

/**
 * The fields of `config.json` that are read.
 * @typedef {object} LlamaConfig
 * @property {number} vocab_size @property {number} hidden_size @property {number} intermediate_size
 * @property {number} num_hidden_layers @property {number} num_attention_heads @property {number} num_key_value_heads
 * @property {number} head_dim @property {number} max_position_embeddings @property {number} rms_norm_eps
 * @property {number} rope_theta @property {boolean} tie_word_embeddings @property {number} eos_token_id
 * @property {string[]} architectures
 */

/** The weights of one layer; queries, keys and values are one matrix, and so are gate and up. */
class LlamaDecoderLayer {
  /** @param {Map<string, Tensor>} tensors @param {string} prefix */
  constructor(tensors, prefix) {
    const merged = (/** @type {string[]} */ ...names) =>
      concatenate(names.map((name) => weight(tensors, prefix + name)));
    this.input_layernorm = merged("input_layernorm");
    this.qkv_proj = merged("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj");
    this.o_proj = merged("self_attn.o_proj");
    this.post_attention_layernorm = merged("post_attention_layernorm");
    this.gate_up_proj = merged("mlp.gate_proj", "mlp.up_proj");
    this.down_proj = merged("mlp.down_proj");
  }
}

export class LlamaForCausalLM {
  /**
   * @param {LlamaConfig} config @param {Map<string, Tensor>} tensors
   * @param {number} max_num_tokens of a step; room for so many rows is made once
   */
  constructor(config, tensors, max_num_tokens) {
    if (!config.architectures.includes("LlamaForCausalLM") || !config.tie_word_embeddings) {
      throw new Error(`only a LlamaForCausalLM with tied embeddings runs here, not ${config.architectures}`);
    }
    this.config = config;
    this.embed_tokens = weight(tensors, "model.embed_tokens");
    this.norm = weight(tensors, "model.norm");
    const make_layer = (/** @type {number} */ i) => new LlamaDecoderLayer(tensors, `model.layers.${i}.`);
    this.layers = Array.from({ length: config.num_hidden_layers }, (_, i) => make_layer(i));
    this.rotary_emb = new RotaryEmbedding(config.head_dim, config.rope_theta, config.max_position_embeddings);
    this.q_size = config.num_attention_heads * config.head_dim;
    this.qkv_size = this.q_size + 2 * config.num_key_value_heads * config.head_dim;
    const rows = (/** @type {number} */ size) => new Float32Array(max_num_tokens * size);
    this.hidden = rows(config.hidden_size);
    this._normed = rows(config.hidden_size);
    this._change = rows(config.hidden_size);
    this._qkv = rows(this.qkv_size);
    this._attended = rows(this.q_size);
    this._gate_up = rows(2 * config.intermediate_size);
    this._activated = rows(config.intermediate_size);
  }

  /**
   * Token ids [num_tokens] -> hidden states after the last layer, in `this.hidden` [num_tokens, hidden_size].
   * @param {Int32Array} token_ids @param {number} num_tokens
   * @param {PagedAttention} attn @param {AttentionMetadata} metadata
   */
  forward(token_ids, num_tokens, attn, metadata) {
    const { hidden_size, rms_norm_eps } = this.config;
    const { hidden, _normed: normed, _change: change } = this;
    for (let token = 0; token < num_tokens; token++) {
      const row = token_ids[token] * hidden_size;
      for (let i = 0; i < hidden_size; i++) hidden[token * hidden_size + i] = this.embed_tokens[row + i];
    }
    for (let i = 0; i < this.layers.length; i++) {
      const layer = this.layers[i];
      rms_norm(normed, hidden, layer.input_layernorm, num_tokens, rms_norm_eps);
      this._attention(change, normed, i, num_tokens, attn, metadata);
      add(hidden, change, num_tokens * hidden_size);
      rms_norm(normed, hidden, layer.post_attention_layernorm, num_tokens, rms_norm_eps);
      this._mlp(change, normed, layer, num_tokens);
      add(hidden, change, num_tokens * hidden_size);
    }
  }

  /** @param {Float32Array} y @param {Float32Array} x @param {number} i @param {number} num_tokens
   * @param {PagedAttention} attn @param {AttentionMetadata} metadata */
  _attention(y, x, i, num_tokens, attn, metadata) {
    const { hidden_size, num_attention_heads, num_key_value_heads } = this.config;
    linear(this._qkv, x, this.layers[i].qkv_proj, num_tokens, hidden_size, this.qkv_size);
    const num_rotated = num_attention_heads + num_key_value_heads; // queries and keys, which stand first
    this.rotary_emb.rotate(this._qkv, this.qkv_size, num_rotated, metadata.positions, num_tokens);
    attn.forward(this._attended, this._qkv, i, metadata);
    linear(y, this._attended, this.layers[i].o_proj, num_tokens, this.q_size, hidden_size);
  }

  /** SwiGLU.
   * @param {Float32Array} y @param {Float32Array} x @param {LlamaDecoderLayer} layer @param {number} num_tokens */
  _mlp(y, x, layer, num_tokens) {
    const { hidden_size, intermediate_size: size } = this.config;
    const { _gate_up: gate_up, _activated: activated } = this;
    linear(gate_up, x, layer.gate_up_proj, num_tokens, hidden_size, 2 * size);
    for (let token = 0; token < num_tokens; token++) {
      for (let i = 0; i < size; i++) {
        const gate = gate_up[token * 2 * size + i];
        activated[token * size + i] = (gate / (1 + Math.exp(-gate))) * gate_up[token * 2 * size + size + i];
      }
    }
    linear(y, activated, layer.down_proj, num_tokens, size, hidden_size);
  }

  /**
   * Logits after some rows of the last `forward`.
   * @param {Float32Array} logits [num_rows, vocab_size] @param {Int32Array} rows [num_rows] @param {number} num_rows
   */
  compute_logits(logits, rows, num_rows) {
    const { hidden_size, vocab_size, rms_norm_eps } = this.config;
    const { _change: chosen, _normed: normed } = this;
    for (let row = 0; row < num_rows; row++) {
      const from = rows[row] * hidden_size;
      for (let i = 0; i < hidden_size; i++) chosen[row * hidden_size + i] = this.hidden[from + i];
    }
    rms_norm(normed, chosen, this.norm, num_rows, rms_norm_eps);
    linear(logits, normed, this.embed_tokens, num_rows, hidden_size, vocab_size);
  }
}

/** @param {Map<string, Tensor>} tensors @param {string} name */
function weight(tensors, name) {
  const tensor = tensors.get(`${name}.weight`);
  if (!tensor) throw new Error(`the checkpoint has no tensor ${name}.weight`);
  return tensor.data;
}

/** @param {Float32Array[]} parts */
function concatenate(parts) {
  const whole = new Float32Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** x += change. @param {Float32Array} x @param {Float32Array} change @param {number} n */
function add(x, change, n) {
  for (let i = 0; i < n; i++) x[i] += change[i];
}
