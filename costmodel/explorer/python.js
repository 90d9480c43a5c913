// What Python's own functions and types do, for functions that are written as JavaScript (translation.py).

// A key of a Map: a text itself, one for a number (which some engines find by how it was made), one that is equal for tuples
// and tuples with names of equal parts, or an object that is neither. What has names never changes: its text is made once.
const textOf = new WeakMap();
function keyOf(key) {
  if (typeof key === "number") return `\u0001${key}`;
  if (key === null || typeof key !== "object" || !(Symbol.iterator in key)) return key;
  if (Array.isArray(key)) return tupleKey(key);
  let text = textOf.get(key);
  if (text === undefined) textOf.set(key, (text = tupleKey([...key])));
  return text;
}
function tupleKey(parts) {
  let text = "\u0002(";
  for (const part of parts) {
    const own = keyOf(part);
    text += own === part && own !== null && typeof own === "object" ? `object ${id(own)},` : `${typeof own} ${own},`;
  }
  return `${text})`;
}
class Dict {
  constructor(pairs = []) {
    this.entries = new Map();
    for (const [key, value] of pairs) this.put(key, value);
  }
  put(key, value) {
    const text = keyOf(key);
    const entry = this.entries.get(text);
    if (entry) entry[1] = value;
    else this.entries.set(text, [key, value]);
  }
  has(key) {
    return this.entries.has(keyOf(key));
  }
  get(key, other = null) {
    const entry = this.entries.get(keyOf(key));
    return entry ? entry[1] : other;
  }
  setdefault(key, value) {
    if (!this.has(key)) this.put(key, value);
    return this.get(key);
  }
  items() {
    return [...this.entries.values()].map(([key, value]) => [key, value]);
  }
  values() {
    return Array.from(this.entries.values(), ([, value]) => value);
  }
  get length() {
    return this.entries.size;
  }
  [Symbol.iterator]() {
    return this.items().map(([key]) => key)[Symbol.iterator]();
  }
}
// A function that keeps what it has made of what, of the last few.
const MOST_KEPT = 32;
function cached(of) {
  const kept = new Dict();
  return (...given) => {
    if (!kept.has(given)) {
      if (len(kept) === MOST_KEPT) clear(kept);
      kept.put(given, of(...given));
    }
    return kept.get(given);
  };
}
const is_true = (value) => (value !== null && typeof value === "object" && "length" in value ? value.length > 0 : Boolean(value));
const both = (...values) => values.reduce((last, next) => (is_true(last) ? next() : last), true);
const either = (...values) => values.reduce((last, next) => (is_true(last) ? last : next()), false);
const equal = (a, b) => a === b || (a !== null && b !== null && typeof a === "object" && typeof b === "object" && keyOf(a) === keyOf(b));
const contains = (many, value) => (many instanceof Dict ? many.has(value) : [...many].some((each) => equal(each, value)));
function item(many, place) {
  if (many instanceof Dict) {
    if (!many.has(place)) throw RangeError(`no ${keyOf(place)}`);
    return many.get(place);
  }
  const list = Array.isArray(many) ? many : [...many];
  return list[Number(place) < 0 ? list.length + Number(place) : Number(place)];
}
function put(many, place, value) {
  if (many instanceof Dict) many.put(place, value);
  else many[place] = value;
}
const append = (list, value) => list.push(value);
const items = (dict) => dict.items();
const tolist = (list) => list;
const startswith = (text, start) => text.startsWith(start);
const popleft = (queue) => queue.shift();
const pop = (list, place) => list.splice(place, 1)[0];
function clear(many) {
  if (many instanceof Dict) many.entries.clear();
  else many.length = 0;
}
function rpartition(text, mark) {
  const place = text.lastIndexOf(mark);
  return place < 0 ? ["", "", text] : [text.slice(0, place), mark, text.slice(place + mark.length)];
}
const replaced = (of, other) => Object.assign(Object.create(Object.getPrototypeOf(of)), of, other);
const floored = (a, b) => Math.floor(a / b);
const divmod = (a, b) => [floored(a, b), a - b * floored(a, b)];
const repeated = (list, times) => Array.from({ length: times * list.length }, (_, n) => list[n % list.length]);
const added = (a, b) => (Array.isArray(a) ? (a.push(...b), a) : a + b);
const joined = (a, b) => (a instanceof Dict ? new Dict([...a.items(), ...b.items()]) : a || b);
const met = (a, b) => a && b;
const index = (many, value) => many.findIndex((each) => equal(each, value));
const join = (mark, many) => [...many].join(mark);
const filter = (of, many) => [...many].filter(of ?? is_true);
const bool = is_true;
const len = (many) => many.length;
const range = (start, end, step = 1) =>
  end === undefined ? range(0, start) : Array.from({ length: Math.max(0, Math.ceil((end - start) / step)) }, (_, n) => start + n * step);
const enumerate = (many) => [...many].map((each, place) => [place, each]);
function zip(...many) {
  const lists = many.map((each) => (Array.isArray(each) ? each : [...each]));
  return range(Math.min(...lists.map(len))).map((place) => lists.map((each) => each[place]));
}
const pairwise = (many) => zip([...many], [...many].slice(1));
const map = (of, ...many) => (many.length > 1 ? zip(...many) : [...many[0]].map((each) => [each])).map((each) => of(...each));
const any = (many) => [...many].some(is_true);
const all = (many) => [...many].every(is_true);
const sum = (many) => [...many].reduce((total, each) => total + each, 0);
const prod = (many) => [...many].reduce((total, each) => total * each, 1);
const sorted = (many) => [...many].sort((a, b) => a - b);
const sorted_by = (many, key) => [...many].sort((a, b) => key(a) - key(b));
const max_by = (many, key) => [...many].reduce((most, each) => (key(each) > key(most) ? each : most)); // the first of equals
const list = (many) => [...many];
const [tuple, reversed] = [list, (many) => [...many].reverse()];
const set_of = (many) => new Dict([...many].map((each) => [each, each]));
const deque = (many = []) => [...many];
const str = String;
const chain = { *from_iterable(many) { for (const each of many) yield* each; } };
const dict = (of) => new Dict(of.items());
const iter = (many) => many[Symbol.iterator]();
const next = (many, other) => {
  const { value, done } = many.next();
  return done ? other : value;
};
const float = Number;
const int = Math.trunc;
const { abs, ceil, log2, exp, hypot, log, log1p } = Math;
const inf = Infinity;
const [max, min] = [Math.max, Math.min].map((of) => (...values) => (values.length > 1 ? of(...values) : of(...values[0])));
const numbers = new WeakMap();
const id = (of) => numbers.get(of) ?? numbers.set(of, (id.last = (id.last ?? 0) + 1)).get(of);
const getattr = (of, name) => of[name];
function isinstance(value, kind) {
  if (Array.isArray(kind)) return kind.some((each) => isinstance(value, each));
  if (kind === float || kind === bool) return typeof value === (kind === float ? "number" : "boolean");
  return kind !== undefined && value instanceof kind;
}
// Of numbers alone, what NumPy does of numbers and arrays.
const np = { minimum: Math.min, maximum: Math.max, any: is_true, max: Number, array: (of) => of, inf: Infinity, ndim: () => 0 };
