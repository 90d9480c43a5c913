// The page's formulas and tables, which are deflated: RFC 1951, read at once, so that the page needs no later moment.

const SPANS = {
  length: [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258],
  distance: [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145,
    8193, 12289, 16385, 24577],
};
const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

// How many codes there are of each length, and the symbols in the order of their codes.
function codes(lengths) {
  const counts = new Array(16).fill(0);
  for (const length of lengths) counts[length] += 1;
  counts[0] = 0;
  const places = [0];
  for (let length = 1; length < 16; length += 1) places.push(places[length - 1] + counts[length - 1]);
  const symbols = [];
  lengths.forEach((length, symbol) => {
    if (length) symbols[places[length]++] = symbol;
  });
  return { counts, symbols };
}

// Text, each of whose characters is a byte, from bytes.
function inflated(bytes) {
  let at = 0;
  let bit = 0;
  const out = [];
  function bits(count) {
    let value = 0;
    for (let n = 0; n < count; n += 1) {
      value |= ((bytes[at] >> bit) & 1) << n;
      if (++bit === 8) [bit, at] = [0, at + 1];
    }
    return value;
  }
  function symbol({ counts, symbols }) {
    let [code, first, place] = [0, 0, 0];
    for (let length = 1; length < 16; length += 1) {
      code |= bits(1);
      if (code - first < counts[length]) return symbols[place + code - first];
      place += counts[length];
      first = (first + counts[length]) << 1;
      code <<= 1;
    }
    throw new Error("this page is not as it was written");
  }
  function described() {
    const [literals, distances, own] = [257 + bits(5), 1 + bits(5), 4 + bits(4)];
    const lengths = new Array(19).fill(0);
    for (let n = 0; n < own; n += 1) lengths[ORDER[n]] = bits(3);
    const table = codes(lengths);
    const all = [];
    while (all.length < literals + distances) {
      const next = symbol(table);
      if (next < 16) all.push(next);
      else {
        const [value, times] = next === 16 ? [all[all.length - 1], 3 + bits(2)] : [0, next === 17 ? 3 + bits(3) : 11 + bits(7)];
        for (let n = 0; n < times; n += 1) all.push(value);
      }
    }
    return [codes(all.slice(0, literals)), codes(all.slice(literals))];
  }
  const fixed = () => [
    codes([...new Array(144).fill(8), ...new Array(112).fill(9), ...new Array(24).fill(7), ...new Array(8).fill(8)]),
    codes(new Array(30).fill(5)),
  ];
  for (let last = 0; !last; ) {
    last = bits(1);
    const kind = bits(2);
    if (kind === 0) {
      if (bit) [bit, at] = [0, at + 1];
      const length = bytes[at] | (bytes[at + 1] << 8);
      for (let n = 0; n < length; n += 1) out.push(bytes[at + 4 + n]);
      at += 4 + length;
      continue;
    }
    const [literals, distances] = kind === 1 ? fixed() : described();
    for (let next = symbol(literals); next !== 256; next = symbol(literals)) {
      if (next < 256) out.push(next);
      else {
        const place = next - 257;
        const length = SPANS.length[place] + bits(place < 8 || place === 28 ? 0 : (place >> 2) - 1);
        const far = symbol(distances);
        const distance = SPANS.distance[far] + bits(far < 4 ? 0 : (far >> 1) - 1);
        for (let n = 0; n < length; n += 1) out.push(out[out.length - distance]);
      }
    }
  }
  const pieces = [];
  for (let n = 0; n < out.length; n += 8192) pieces.push(String.fromCharCode(...out.slice(n, n + 8192)));
  return pieces.join("");
}
