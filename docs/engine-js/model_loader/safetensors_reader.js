// Weights out of a safetensors file: eight bytes that tell the length of a JSON header, the header, then the bytes of
// all tensors. Twin: mini_vllm/model_loader/safetensors_reader.py.

/** @typedef {{data: Float32Array, shape: number[]}} Tensor */

/**
 * All tensors as float32.
 * @param {ArrayBuffer} buffer the whole file
 * @returns {Map<string, Tensor>}
 */
export function read_safetensors(buffer) {
  const header_size = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, header_size)));
  const tensors = new Map();
  for (const [name, { dtype, shape, data_offsets }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [start, stop] = data_offsets;
    const bytes = buffer.slice(8 + header_size + start, 8 + header_size + stop); // aligned, unlike a view
    tensors.set(name, { data: to_float32(bytes, dtype), shape });
  }
  return tensors;
}

/** @param {ArrayBuffer} bytes @param {string} dtype @returns {Float32Array} */
function to_float32(bytes, dtype) {
  if (dtype === "F32") return new Float32Array(bytes);
  if (dtype !== "F16") throw new Error(`dtype ${dtype}: only F16 and F32 are read here`);
  const halves = new Uint16Array(bytes), values = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) values[i] = HALF[halves[i]];
  return values;
}

/** The value of each of the 65,536 half-precision numbers. */
const HALF = Float32Array.from({ length: 1 << 16 }, (_, bits) => {
  const sign = bits >> 15 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  if (exponent === 0) return sign * fraction * 2 ** -24; // subnormal: no hidden bit
  return sign * (1024 + fraction) * 2 ** (exponent - 25);
});
