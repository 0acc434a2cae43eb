// Byte-level BPE, read from a checkpoint's tokenizer.json. Twins: mini_vllm/tokenizers/bpe.py and pretokenize.py.

/** What `ByteLevel` splits by. JavaScript's \s is another set than Unicode's White_Space, so that is written out. */
const [s, S] = ["\\p{White_Space}", "\\P{White_Space}"];
const GPT2_PATTERN = new RegExp(
  String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^${s}\p{L}\p{N}]+|${s}+(?!${S})|${s}+`, "gu",
);

/** Printable bytes stand for themselves; the other 68 get the characters from U+0100 on (the space: "Ġ"). */
const BYTE_TO_CHAR = (() => {
  const printable = (/** @type {number} */ byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : next++));
})();
const CHAR_TO_BYTE = new Map(BYTE_TO_CHAR.map((char, byte) => [char, byte]));

export class BPETokenizer {
  /** @param {any} spec the parsed tokenizer.json */
  constructor(spec) {
    check_supported(spec);
    /** @type {Map<string, number>} */
    this.vocab = new Map(Object.entries(spec.model.vocab));
    /** "left right" -> the rank of the merge: the lower, the earlier. @type {Map<string, number>} */
    this.ranks = new Map();
    for (const [left, right] of spec.model.merges) this.ranks.set(`${left} ${right}`, this.ranks.size);
    /** @type {Map<string, number>} */
    this.added_tokens = new Map(spec.added_tokens.map((/** @type {any} */ token) => [token.content, token.id]));
    const longest_first = [...this.added_tokens.keys()].sort((a, b) => b.length - a.length);
    this._added_pattern = new RegExp(`(${longest_first.map((text) => text.replace(/[|<>]/g, "\\$&")).join("|")})`);
    this._split = new RegExp(`(${spec.pre_tokenizer.pretokenizers[0].pattern.Regex})`, "u");
    /** Bytes of each id. @type {Uint8Array[]} */
    this.id_to_bytes = [];
    const to_byte = (/** @type {string} */ char) => /** @type {number} */ (CHAR_TO_BYTE.get(char));
    for (const [token, id] of this.vocab) this.id_to_bytes[id] = Uint8Array.from(token, to_byte);
    for (const [token, id] of this.added_tokens) this.id_to_bytes[id] = new TextEncoder().encode(token);
    this.all_special_ids = new Set(this.added_tokens.values());
    /** @type {Map<string, number[]>} */
    this._cache = new Map();
  }

  /** Ids of a text; added tokens that stand in it are recognised, and none is put around it. @param {string} text */
  encode(text) {
    const ids = [];
    for (const piece of text.split(this._added_pattern)) {
      const added = this.added_tokens.get(piece);
      if (added !== undefined) ids.push(added);
      else for (const word of this._split_words(piece)) ids.push(...this._encode_word(word));
    }
    return ids;
  }

  /** The pieces that are merged separately, in order. @param {string} text @returns {string[]} */
  _split_words(text) {
    return text.split(this._split).flatMap((part) => part.match(GPT2_PATTERN) ?? []);
  }

  /** @param {string} word */
  _encode_word(word) {
    const known = this._cache.get(word);
    if (known) return known;
    const symbols = Array.from(new TextEncoder().encode(word), (byte) => BYTE_TO_CHAR[byte]);
    this._merge(symbols);
    const ids = symbols.map((symbol) => /** @type {number} */ (this.vocab.get(symbol)));
    if (this._cache.size < 10000) this._cache.set(word, ids);
    return ids;
  }

  /** Merge, in place, until no pair is known: always the adjacent pair of lowest rank, the leftmost of equals.
   * @param {string[]} symbols */
  _merge(symbols) {
    for (;;) {
      let best = Infinity, best_at = -1;
      for (let at = 0; at + 1 < symbols.length; at++) {
        const rank = this.ranks.get(`${symbols[at]} ${symbols[at + 1]}`) ?? Infinity;
        if (rank < best) [best, best_at] = [rank, at];
      }
      if (best_at < 0) return;
      symbols.splice(best_at, 2, symbols[best_at] + symbols[best_at + 1]);
    }
  }

  /** Text of ids without special tokens; bytes that are no valid UTF-8 become U+FFFD. @param {number[]} ids */
  decode(ids) {
    const decode = this.make_detokenizer();
    return ids.map(decode).join("") + decode(null);
  }

  /** A function that takes one id after the other and returns the text that is complete by then; null ends the text. */
  make_detokenizer() {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return (/** @type {number | null} */ id) => {
      if (id === null) return decoder.decode();
      return this.all_special_ids.has(id) ? "" : decoder.decode(this.id_to_bytes[id], { stream: true });
    };
  }
}

/** Throws where tokenizer.json asks for what is not written here. @param {any} spec */
function check_supported(spec) {
  const [split, bytes] = spec.pre_tokenizer?.pretokenizers ?? [];
  const known = spec.model.type === "BPE" && !spec.normalizer && split?.behavior === "Isolated" && !split.invert &&
    bytes?.type === "ByteLevel" && !bytes.add_prefix_space && spec.model.merges.every(Array.isArray);
  if (!known) throw new Error("this tokenizer.json asks for more than pocket's does");
}
