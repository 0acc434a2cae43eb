// <play-bits>: what small formats keep of a number. Encoding and decoding are written here once more, and the tests hold
// them to the last bit against mini_vllm (fp8, int8, int4, NF4) and numpy (fp16, bf16).

import { data, define, h, s, slider, tabs } from "./core.js";

/** Exponent bits, mantissa bits, and whether values beyond the largest are clamped to it, as fp8 weights are. */
export const FORMATS = {
  "fp8 e4m3": { exponent: 4, mantissa: 3, largest: 448, saturates: true },
  bf16: { exponent: 8, mantissa: 7, largest: 2 ** 127 * (2 - 2 ** -7), saturates: false },
  fp16: { exponent: 5, mantissa: 10, largest: 65504, saturates: false },
};
const bias = (format) => 2 ** (format.exponent - 1) - 1;

/** Rounded to the nearest whole number, ties to the even one. */
export function rint(x) {
  const low = Math.floor(x), rest = x - low;
  return rest < 0.5 || (rest === 0.5 && low % 2 === 0) ? low : low + 1;
}

/** floor(log2(x)) of a positive number, exactly. */
function log2floor(x) {
  let e = Math.floor(Math.log2(x));
  if (2 ** e > x) e -= 1;
  else if (2 ** (e + 1) <= x) e += 1;
  return e;
}

/** A float32 as a code of the format: to nearest, ties to even. */
export function encode(x, name) {
  const format = FORMATS[name], { exponent, mantissa, largest, saturates } = format;
  const sign = x < 0 || Object.is(x, -0) ? 2 ** (exponent + mantissa) : 0, ones = 2 ** exponent - 1;
  if (Number.isNaN(x)) return (2 ** (exponent + mantissa)) - 1;
  const least = 1 - bias(format), size = Math.abs(x);
  const step = 2 ** (Math.max(size ? log2floor(size) : least, least) - mantissa);
  let value = Number.isFinite(size) ? rint(size / step) * step : size;
  if (value > largest) value = saturates ? largest : Infinity;
  if (value === Infinity) return sign + ones * 2 ** mantissa;
  if (value < 2 ** least) return sign + value / 2 ** (least - mantissa);
  const e = log2floor(value);
  return sign + (e + bias(format)) * 2 ** mantissa + (value / 2 ** e - 1) * 2 ** mantissa;
}

/** What a code means. */
export function decode(code, name) {
  const format = FORMATS[name], { exponent, mantissa, saturates } = format;
  const sign = code >= 2 ** (exponent + mantissa) ? -1 : 1, rest = code % 2 ** (exponent + mantissa);
  const e = Math.floor(rest / 2 ** mantissa), m = rest % 2 ** mantissa;
  if (e === 2 ** exponent - 1) {
    if (saturates && m === 2 ** mantissa - 1) return NaN; // e4m3 "fn": one code is NaN, none is infinite
    if (!saturates) return m ? NaN : sign * Infinity;
  }
  return sign * (e ? (1 + m / 2 ** mantissa) * 2 ** (e - bias(format)) : m * 2 ** (1 - bias(format) - mantissa));
}

/** Many at once, for the tests. */
export const encodeAll = (values, name) => values.map((x) => encode(x, name));
export const decodeAll = (codes, name) => codes.map((code) => decode(code, name));

/** Integer codes -top..top of numbers that share a scale: {codes, scale}. */
export function quantizeIntegers(values, top) {
  const largest = Math.max(...values.map(Math.abs)), scale = largest / top > 0 ? largest / top : 1;
  return { scale, codes: values.map((w) => Math.min(top, Math.max(-top, rint(w / scale)))) };
}

const LEVELS = [-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
  -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
  0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1].map(Math.fround);

/** NF4: the nearest of sixteen levels, times the largest magnitude. In float32, as the engine. */
export function quantizeNf4(values) {
  const whole = values.map(Math.fround), absmax = Math.max(...whole.map(Math.abs)), inverse = Math.fround(1 / (absmax || 1));
  return { scale: absmax, codes: whole.map((w) => LEVELS.slice(1).filter((level, i) => (level + LEVELS[i]) / 2 < Math.fround(w * inverse)).length) };
}

/** fp8 with one scale: the largest magnitude goes to 448. In float32, as the engine. */
export function quantizeFp8(values) {
  const whole = values.map(Math.fround), largest = Math.max(...whole.map(Math.abs));
  const scale = Math.max(Math.fround(largest / 448), Math.fround(1 / (448 * 512))), inverse = Math.fround(1 / scale);
  return { scale, codes: whole.map((w) => encode(Math.fround(w * inverse), "fp8 e4m3")) };
}

const GROUPS = {
  int8: { quantize: (w) => quantizeIntegers(w, 127), back: (code, scale) => code * scale, rule: "scale = largest / 127" },
  int4: { quantize: (w) => quantizeIntegers(w, 7), back: (code, scale) => code * scale, rule: "scale = largest / 7" },
  NF4: { quantize: quantizeNf4, back: (code, scale) => LEVELS[code] * scale, rule: "scale = largest; 16 levels" },
  fp8: { quantize: quantizeFp8, back: (code, scale) => decode(code, "fp8 e4m3") * scale, rule: "scale = largest / 448" },
};

/** Weights through a format and back: {codes, scale, back}. */
export function roundTrip(values, kind) {
  const { codes, scale } = GROUPS[kind].quantize(values);
  return { codes, scale, back: codes.map((code) => GROUPS[kind].back(code, scale)) };
}

const show = (x) => (Number.isFinite(x) ? String(Number(x.toPrecision(7))).replace("-", "−") : Number.isNaN(x) ? "NaN" : x > 0 ? "∞" : "−∞");
const tidy = (x) => String(Number(x.toFixed(4)));

const raised = (n) => [...String(n)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");

// --- one number

function oneNumber() {
  let format = "fp8 e4m3", code = 0, wanted = 0.1, veiled = false;
  const input = h("input", { type: "text", inputmode: "decimal", "aria-label": "a number", style: "width:8em;font-size:17px;font-weight:600" });
  const bits = h("div", { class: "bits", role: "group", "aria-label": "bits; press one to flip it" }), words = h("p", { class: "note mono" });
  const value = h("div", { class: "title", "aria-live": "polite" }), line = h("div");
  const names = Object.keys(FORMATS), pick = tabs("format", names, (i) => { format = names[i]; take(wanted); });
  input.addEventListener("input", () => { const x = Number(input.value.replace(",", ".")); if (input.value.trim() && !Number.isNaN(x)) take(Math.fround(x), false); });

  function take(x, write = true) {
    wanted = x;
    if (write) input.value = show(x).replace("−", "-");
    code = encode(x, format);
    draw();
  }

  function flip(bit) {
    const one = 2 ** bit;
    code += Math.floor(code / one) % 2 ? -one : one;
    wanted = decode(code, format);
    input.value = show(wanted).replace("−", "-");
    draw();
    bits.querySelector(`[data-bit="${bit}"]`).focus();
  }

  function draw() {
    const f = FORMATS[format], all = 1 + f.exponent + f.mantissa, x = decode(code, format);
    bits.replaceChildren(...Array.from({ length: all }, (_, i) => {
      const bit = all - 1 - i, on = Math.floor(code / 2 ** bit) % 2, part = i === 0 ? ["sign", 4] : i <= f.exponent ? ["exponent", 0] : ["mantissa", 2];
      return h("button", { type: "button", "data-bit": bit, class: `bit k${part[1]} ${on ? "on" : ""} ${i === 1 || i === f.exponent + 1 ? "gap" : ""}`, disabled: veiled,
        "aria-label": `${part[0]} bit ${bit}: ${on}`, text: veiled ? "?" : on, onclick: () => flip(bit) });
    }));
    value.textContent = veiled ? `${show(wanted)} → ?` : Object.is(x, wanted) || x === wanted ? `${show(x)}, exactly` : `${show(wanted)} → ${show(x)}`;
    const e = Math.floor(code / 2 ** f.mantissa) % 2 ** f.exponent, m = code % 2 ** f.mantissa;
    const off = wanted && Number.isFinite(x) ? Math.abs(x / wanted - 1) : 0;
    words.textContent = veiled ? "" : !Number.isFinite(x) ? "a code of its own" : `${x < 0 ? "−" : ""}${e ? `(1 + ${m}/${2 ** f.mantissa}) × 2${raised(e - bias(f))}` : `${m}/${2 ** f.mantissa} × 2${raised(1 - bias(f))} (no hidden 1)`}${off ? ` · off by ${(off * 100).toPrecision(2)} %` : ""}`;
    line.replaceChildren(numberLine(x));
  }

  /** The neighbours that the format has, and where the wanted number lies between them. */
  function numberLine(x) {
    if (!Number.isFinite(x) || veiled) return "";
    const sign = x < 0 || wanted < 0 ? -1 : 1, base = code % 2 ** (FORMATS[format].exponent + FORMATS[format].mantissa);
    const near = [-4, -3, -2, -1, 0, 1, 2, 3, 4].map((by) => base + by).filter((c) => c >= 0).map((c) => sign * decode(c, format)).filter(Number.isFinite).sort((a, b) => a - b);
    const low = near[0], high = near.at(-1), at = (v) => 30 + (600 * (Math.min(Math.max(v, low), high) - low)) / (high - low || 1);
    return s("svg", { viewBox: "0 0 660 84", role: "img", "aria-label": `neighbours: ${near.map(show).join(", ")}` },
      s("line", { class: "axis", x1: 10, x2: 650, y1: 44, y2: 44, "stroke-width": 2 }),
      ...near.map((v, i) => s("g", {}, s("circle", { cx: at(v), cy: 44, r: v === x ? 8 : 5, fill: v === x ? "var(--c2)" : "var(--dim)" }),
        i % 2 === 0 || v === x ? s("text", { x: at(v), y: 70, "text-anchor": "middle", class: v === x ? "" : "dim", text: show(v) }) : "")),
      wanted === x ? "" : s("path", { d: `M${at(wanted)} 36 l-6 -11 h12 z`, fill: "var(--c4)" }), wanted === x ? "" : s("text", { x: at(wanted), y: 18, "text-anchor": "middle", text: show(wanted) }));
  }

  return { node: h("div", {}, h("div", { class: "row" }, input, pick.node), bits, value, words, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "neighbours on the number line" }, line)),
    look(x, name, hide) { veiled = hide; format = name; pick.set(names.indexOf(name)); take(Math.fround(x)); for (const b of [input, ...pick.node.children]) b.disabled = hide; } };
}

// --- a group that shares a scale

function group(weights) {
  let values = [...weights], kind = "int4", veiled = false;
  const body = h("tbody"), said = h("p", { class: "note", "aria-live": "polite" }), kinds = Object.keys(GROUPS);
  const pick = tabs("format", kinds, (i) => { kind = kinds[i]; draw(); }, 1);
  const loud = slider("loudest weight", { min: 0.6, max: 8, step: 0.1, value: values[0] }, (v) => v.toFixed(1), (v) => { values[0] = v; draw(); });

  function draw() {
    const { codes, scale, back } = roundTrip(values, kind), largest = Math.max(...values.map(Math.abs));
    body.replaceChildren(...values.map((w, i) => h("tr", {}, h("td", { class: "mono", text: show(w) }),
      h("td", { class: "mono", text: veiled ? "?" : kind === "fp8" || kind === "NF4" ? `0x${codes[i].toString(16).toUpperCase()}` : show(codes[i]) }), h("td", { class: "mono", text: veiled ? "?" : show(Number(back[i].toFixed(4))) }),
      h("td", { style: "width:45%" }, h("span", { class: "pair" }, h("i", { class: "bar k7", style: `width:${100 * Math.abs(w) / largest}%` }), h("i", { class: `bar ${w && !back[i] ? "k4" : "k2"}`, style: `width:${veiled ? 0 : 100 * Math.abs(back[i]) / largest}%` }))))));
    const error = Math.sqrt(values.slice(1).reduce((sum, w, i) => sum + (back[i + 1] - w) ** 2, 0) / values.slice(1).reduce((sum, w) => sum + w * w, 0));
    said.textContent = veiled ? `One scale for all: ${GROUPS[kind].rule}.` : `${GROUPS[kind].rule} = ${show(scale)}. The seven quiet weights are off by ${(100 * error).toFixed(1)} % (root mean square).`;
  }

  const head = h("tr", {}, ["weight", "code", "comes back as", "size: before, after"].map((text) => h("th", { scope: "col", text, style: text.startsWith("size") ? "text-align:left" : null })));
  return { node: h("div", {}, pick.node, h("div", { style: "margin:8px 0" }, loud.node), h("table", {}, h("thead", {}, head), body), said),
    look(first, name, hide) { values = [first, ...weights.slice(1)]; loud.set(first); kind = name; veiled = hide; pick.set(kinds.indexOf(name)); draw(); for (const b of [loud.input, ...pick.node.children]) b.disabled = hide; } };
}

function stage(weights) {
  const one = oneNumber(), many = group(weights), nodes = [one.node, many.node];
  const which = tabs("what to look at", ["one number", "a group with one scale"], (i) => open(i));
  const open = (i) => { which.set(i); nodes.forEach((node, k) => { node.hidden = k !== i; }); };
  return { node: h("div", {}, h("div", {}, which.node), nodes),
    one(...given) { open(0); one.look(...given); }, many(...given) { open(1); many.look(...given); }, tabs: (on) => { which.node.hidden = !on; which.node.style.marginBottom = "12px"; } };
}

/** Questions for the page, and, without a stage, for the tests. */
export function questions({ weights }, view = null) {
  const one = (id, x, name, ask, options, why, answer = () => String(decode(encode(Math.fround(x), name), name))) => ({ id, ask, options, why: () => why, answer,
    setup: () => { view?.tabs(false); view?.one(x, name, true); }, reveal: () => view?.one(x, name, false) });
  const many = (id, first, kind, ask, more, why, answer) => ({ id, ask, ...more, why: () => why, answer: () => answer(roundTrip([first, ...weights.slice(1)], kind)),
    setup: () => { view?.tabs(false); view?.many(first, kind, true); }, reveal: () => view?.many(first, kind, false) });
  const e4m3 = Array.from({ length: 127 }, (_, code) => decode(code, "fp8 e4m3"));
  return [
    one("tenth", 0.1, "fp8 e4m3", "What does 0.1 become in fp8 e4m3 (4 bits of exponent, 3 of mantissa)?", ["0.09375", "0.1", "0.1015625", "0.109375"],
      "0.1 is 1.6 × 2⁻⁴. Three bits of mantissa offer 1.5, 1.625 and 1.75 there, and 1.625 × 2⁻⁴ is the nearest. Off by 1.6 %; the worst case for a number of this kind is 1/16."),
    one("between", 1, "fp8 e4m3", "How many numbers x with 1 ≤ x < 2 does e4m3 have?", undefined,
      "Eight: three bits of mantissa. Between 2 and 4 there are eight as well, and between 128 and 256. The steps double with each power of two, so the relative error stays the same.",
      () => e4m3.filter((x) => x >= 1 && x < 2).length),
    one("largest", 1000, "fp8 e4m3", "And 1000, in e4m3 as engines use it?", ["NaN", "1000", "448", "Infinity"],
      "This format (“fn”, finite only) has no infinity, and values are clamped to its largest number, 448, before they are cast. That is why a tensor in fp8 comes with a scale."),
    one("flip", 1, "fp8 e4m3", "1.0 is 0 0111 000. A cosmic ray flips the lowest bit of the exponent. What is left?", ["2", "0.875", "0.5", "1.125"],
      "0 0110 000: the exponent goes from 7 to 6, and 2⁰ becomes 2⁻¹. The top bit of the exponent would have made it 256; the lowest bit of the mantissa, 1.125. Flip the others yourself in free play.",
      () => String(decode(encode(1, "fp8 e4m3") ^ 8, "fp8 e4m3"))),
    one("swallow", 1.003, "bf16", "A weight of 1 gets an update of 0.003, and is stored in bf16. What stands there?", ["1", "1.00293", "1.003", "1.0078125"],
      "bf16 has seven bits of mantissa, so behind 1 comes 1.0078125. The update is less than half of that step and is lost, each time. fp16, with ten bits, would have kept 1.00293; training keeps float32 beside bf16."),
    many("int4", weights[0], "int4", "Eight weights share one int4 scale; the loudest is 0.7, the codes go from −7 to 7. What does 0.26 come back as?", { options: ["0.2", "0.25", "0.26", "0.3"] },
      "The scale is 0.7 / 7 = 0.1, so only multiples of 0.1 exist: 0.26 is 2.6 steps and takes code 3. Nobody but the loudest weight chose this step.",
      ({ back }) => tidy(back[1])),
    many("outlier", 7, "int4", "Now the loudest weight is 7.0 instead of 0.7. How many of the other seven come back as 0?", { number: { min: 0, max: 7, unit: "weights" } },
      "The step is 1 now, and all that is smaller than half a step is rounded to 0; only 0.55 survives, as 1. One loud weight costs its whole group. Small groups limit the damage; drag the slider in free play, and compare fp8.",
      ({ codes }) => codes.slice(1).filter((code) => code === 0).length),
  ].map((q) => (q.options ? q : { number: { min: 0, max: 64, unit: "numbers" }, ...q }));
}

define("bits", async () => {
  const recorded = await data("bits"), view = stage(recorded.weights);
  return { stage: view.node, questions: questions(recorded, view), free: () => { view.tabs(true); view.one(0.1, "fp8 e4m3", false); view.many(recorded.weights[0], "int4", false); view.one(0.1, "fp8 e4m3", false); },
    lead: "Press a bit and it flips. Type a number and see what a format keeps of it. Then let one loud weight spoil a group." };
});
