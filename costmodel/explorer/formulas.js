// Guarded formulas, evaluated on whole numbers of any size (BigInt): the same numbers as costmodel.predict gives.

function floor(n, d) {
  if (d === 0n) return 0n; // only where the formula does not hold
  const quotient = n / d;
  return n % d !== 0n && n < 0n !== d < 0n ? quotient - 1n : quotient;
}
function ceil(n, d) {
  return -floor(-n, d);
}
function mod(n, d) {
  return n - d * floor(n, d);
}
function max(...values) {
  return values.reduce((a, b) => (a > b ? a : b));
}
function min(...values) {
  return values.reduce((a, b) => (a < b ? a : b));
}

class Model {
  // data: what Python wrote of one model. made: the function that makes its formulas.
  constructor(data, made) {
    this.data = data;
    this.made = made;
    this.formulas = made();
    this.memo = [];
    this.words = (number) => data.words[number];
  }

  // The value of a formula by its number, at the sizes that were set last.
  value(number) {
    return (this.memo[number] ??= this.formulas.f[number]());
  }

  // The text of a formula by its number: what is evaluated, as JavaScript.
  text(number) {
    return String(this.formulas.f[number]).replace(/^\s*\(\)\s*=>\s*/, "");
  }

  // Sizes by name. What is worked out from now on is at these.
  set(sizes) {
    this.formulas.set(this.data.sizes.map((size) => BigInt(sizes[size.name])));
    this.memo = [];
  }

  // The choice's place among its labels, by name; null where it has no meaning, as the optimizer of an inference.
  key(choices) {
    const training = this.training(choices);
    return this.data.choices
      .filter((choice) => choice.name !== "optimizer")
      .map((choice) => (training || !OF_TRAINING.has(choice.name) ? choices[choice.name] : ""))
      .join(",");
  }

  mode(choices) {
    const mode = this.data.choices.find((choice) => choice.name === "mode");
    return mode ? mode.labels[choices.mode] : this.data.fixed.mode ?? "train";
  }

  training(choices) {
    return this.mode(choices) === "train";
  }

  // What a question's answer is: its values and formulas, or why there is none here.
  // sizes: whole numbers by name. choices: the place of the chosen label by name.
  at(sizes, choices) {
    const found = this.leaf(sizes, choices);
    return found.leaf ? this.answer(found.leaf, choices, found.path) : found;
  }

  // The formulas that hold there, by the way that conditions lead to them, or why there are none.
  leaf(sizes, choices) {
    for (const size of this.data.sizes) {
      const least = size.stops[0];
      const most = size.stops[size.stops.length - 1];
      const value = sizes[size.name];
      if (!Number.isSafeInteger(value) || value < least || value > most || (size.discrete && !size.stops.includes(value)))
        return { why: "range", size, least, most };
    }
    const key = this.key(choices);
    if (key in this.data.refused) return { why: "refused", message: this.data.refused[key] };
    this.set(sizes);
    const path = [];
    let node = this.data.trees[key];
    while (node !== null && node !== undefined && node >= 0) {
      const [at, ...after] = this.data.nodes[node];
      const [relation, number] = this.data.conditions[at];
      const value = this.value(number);
      const outcome = relation === "value" ? value : BigInt(relation === "zero" ? value === 0n : value > 0n);
      node = null;
      for (let place = 0; place < after.length; place += 2) if (BigInt(after[place]) === outcome) node = after[place + 1];
      path.push({ relation, number, outcome, child: node });
    }
    if (node === null || node === undefined) return { why: "unknown", path };
    const leaf = this.data.leaves[-1 - node];
    if (typeof leaf[0] === "string") return { why: "refused", message: leaf[0], path, point: leaf.slice(1) };
    return { leaf, path };
  }

  // Where on a way that leads to no formulas the last of them were left.
  turn(path) {
    const place = path.findIndex(({ child }) => child === null || child === undefined || !this.leads(child));
    return place < 0 ? path.length - 1 : place;
  }

  // Whether there are formulas behind a node.
  leads(node) {
    const waiting = [node];
    while (waiting.length) {
      const at = waiting.pop();
      if (at === null) continue;
      if (at >= 0) waiting.push(...this.data.nodes[at].filter((_, place) => place && place % 2 === 0));
      else if (typeof this.data.leaves[-1 - at][0] !== "string") return true;
    }
    return false;
  }

  answer([rows, ...optimizers], choices, path) {
    const { data } = this;
    const offered = data.choices.find((choice) => choice.name === "optimizer");
    const wanted = offered && this.training(choices) ? offered.labels[choices.optimizer] : null;
    const [, quantities, ranks, tasks, play] = optimizers.find(([name]) => this.words(name) === wanted) ?? optimizers[0];
    const answer = { path, quantities: this.named(quantities, data.quantities) };
    answer.ranks = data.lists[ranks].map((at, place) => this.rank(place, ...data.ranks[at]));
    answer.rank = answer.ranks.reduce((a, b) => (b.peak.total > a.peak.total ? b : a)); // the heaviest, the first of equals
    answer.phases = answer.rank.phases;
    answer.peak = answer.rank.peak;
    for (const quantity of data.rankQuantities)
      if (quantity.includes(".")) answer.quantities[quantity] = answer.rank.quantities[quantity];
    answer.quantities["memory.peak"] = { value: answer.peak.total, step: answer.peak };
    answer.rows = data.lists[rows].map((at) => {
      const [name, kind, ...numbers] = data.rows[at];
      return { id: at, name: this.words(name), kind: this.words(kind), ...this.columns(numbers, data.columns) };
    });
    answer.tasks = data.lists[tasks].map((at) => this.task(data.tasks[at]));
    answer.shared = play >= 0; // by several devices, whose step is played
    if (answer.shared) answer.played = new LAYOUTS.LayoutStep(answer.tasks, data.plays[play], data.degrees, (number) => this.value(number));
    return answer;
  }

  // Quantities by name: of each its value, and its formula's number.
  named(list, names) {
    const quantities = {};
    this.data.lists[list].forEach((number, place) => {
      if (number >= 0) quantities[names[place]] = { value: this.value(number), number };
    });
    return quantities;
  }

  // Formulas' numbers, and their values, by column.
  columns(numbers, names) {
    const named = Object.fromEntries(numbers.map((number, place) => [names[place], number]));
    return { numbers: named, values: Object.fromEntries(Object.entries(named).map(([name, n]) => [name, this.value(n)])) };
  }

  // What one rank holds, has alive at most in each phase, and sends. place: its number along a pipeline.
  rank(place, quantities, persistent, levels, sums, course) {
    const { data } = this;
    const phases = [];
    const there = Object.fromEntries(data.lists[persistent].map((number, place) => [data.persistent[place], number]));
    for (const level of data.lists[levels]) {
      const [phase, layer, rounds, ...numbers] = data.levels[level];
      const numbersOf = { ...there, ...Object.fromEntries(numbers.map((number, place) => [data.lines[place], number])) };
      let total = 0n;
      for (const line in numbersOf) total += this.value(numbersOf[line]);
      const name = this.words(phase);
      const best = phases.find((each) => each.phase === name);
      if (best && best.total >= total) continue;
      const step = { phase: name, layer: this.words(layer), rounds: this.words(rounds), total, numbers: numbersOf };
      if (best) Object.assign(best, step);
      else phases.push(step);
    }
    for (const step of phases)
      step.lines = Object.fromEntries(Object.entries(step.numbers).map(([line, n]) => [line, this.value(n)]));
    return {
      place, course: data.courses[course], there, phases, peak: phases.reduce((a, b) => (b.total > a.total ? b : a)),
      quantities: this.named(quantities, data.rankQuantities),
      sums: data.lists[sums].map((at) => {
        const [axis, operation, dtype, ...numbers] = data.sums[at];
        return {
          axis: this.words(axis), operation: this.words(operation), dtype: this.words(dtype),
          ...this.columns(numbers, data.sumColumns),
        };
      }),
    };
  }

  // What is alive at each moment of a step, every round of what repeats by itself: of a rank's course, in doubles.
  // Of more rounds than are wanted the first and the last stand for all: what is in between comes and goes alike.
  steps(rank, most) {
    const { data } = this;
    const level = data.lines.map((line) => Number(this.value(rank.there[line])));
    const steps = [];
    const changed = (moment, side) => {
      const changes = data.moments[moment];
      for (let at = 3; at < changes.length; at += 2)
        if (changes[at] % 2 === side) level[changes[at] >> 1] += Number(this.value(changes[at + 1]));
    };
    const play = (items, rounds) => {
      for (const item of items) {
        if (!Array.isArray(item)) {
          changed(item, 0);
          steps.push({ moment: item, rounds, level: [...level] });
          changed(item, 1);
          continue;
        }
        const more = Number(this.value(item[0]));
        const whole = steps.length + (more + 1) * item[1].length <= most;
        for (let n = 0; n <= more; n += 1) {
          const before = [...level];
          play(item[1], rounds.concat(n));
          if (whole || n || more < 2) continue;
          level.forEach((size, line) => (level[line] += (more - 1) * (size - before[line])));
          n = more - 1;
        }
      }
    };
    play(rank.course, []);
    return steps.map(({ moment, rounds, level: alive }) => {
      const [phase, layer] = data.moments[moment];
      return { phase: this.words(phase), layer: this.words(layer), rounds, alive };
    });
  }

  // A kernel of a layer: its numbers are all its launches', and happen so many times in a step.
  task([layer, phase, law, again, ...numbers]) {
    const values = numbers.map((number) => this.value(number));
    const times = values.pop();
    return {
      layer: this.words(layer), phase: this.words(phase), law: this.words(law), again: this.words(again) !== "",
      numbers, times, values, arguments: values.map(Number),
    };
  }
}

// Seconds of a step on a machine, by the laws of its kernels: what the device takes, or the host to start them; of several
// devices as it is played, or why there are none. Doubles, as in Python; kernels' numbers are exact in them below 2^53.
function timeOn(answer, machine) {
  const shared = answer.shared ? LAYOUTS.timeOf(answer, machine) : null;
  if (shared?.why) return { machine, why: shared.why };
  const phases = ["forward", "backward", "update"].map((phase) => ({ phase, device: 0, least: 0, launches: 0 }));
  let useful = 0;
  let peak = 0;
  const typical = parametersOf(machine, null);
  const tasks = (shared ? shared.tasks : answer.tasks).map((task, place) => {
    const [seconds, least] = shared ? [shared.kernels[place], shared.floors[place]] : LAWS[machine.laws[task.law]](typical, ...task.arguments);
    const [flops, read, written, launches, rows, m, n, k] = task.arguments;
    const times = Number(task.times);
    const phase = phases.find((each) => each.phase === task.phase);
    phase.device += times * seconds;
    phase.least += times * least;
    phase.launches += times * launches;
    const units = machine.peaks[task.law] ?? 0;
    peak = Math.max(peak, units);
    if (!task.again && m !== undefined) {
      const attention = task.law.startsWith("attention");
      useful += times * (attention ? flops : launches * 2 * rows * m * n * k);
    }
    const compute = flops / (units || machine.vectorPeak);
    const memory = (read + written) / machine.bandwidth;
    const waits = 2 * launches * machine.start > seconds;
    const bound = waits ? "overhead" : compute > memory ? "compute" : "memory";
    return { ...task, seconds: times * seconds, flops: times * flops, bytes: times * (read + written), bound };
  });
  for (const phase of phases) {
    phase.host = shared ? shared.hostOf(phase.phase) : typical[machine.launch] * phase.launches;
    phase.seconds = shared ? shared.secondsOf(phase.phase) : Math.max(phase.device, phase.host);
  }
  const sum = (of) => phases.reduce((total, phase) => total + phase[of], 0);
  const seconds = shared ? shared.seconds : sum("seconds");
  const least = shared ? shared.least : sum("least");
  peak ||= machine.vectorPeak;
  return { machine, phases, tasks, shared, seconds, least, device: sum("device"), peak,
    mfu: (shared ? shared.useful : useful) / (peak * seconds), samplesPerSecond: Number(answer.quantities.samples.value) / seconds };
}

// What a machine's laws are of, with typical constants, or with one of them at an end of its range.
function parametersOf(machine, end) {
  return machine.parameters.map(([typical, ends]) => ends[end] ?? typical);
}

// Seconds that about four of five measured runs fall between. Constants are independent of each other: the logarithms of
// their effects add up in squares. No run is faster than the datasheet allows.
function rangeOf(time) {
  const { machine, tasks, phases, shared } = time;
  function secondsAt(end) {
    if (shared) return shared.secondsAt(end);
    const parameters = parametersOf(machine, end);
    const device = Object.fromEntries(phases.map(({ phase }) => [phase, 0]));
    for (const task of tasks)
      device[task.phase] += Number(task.times) * LAWS[machine.laws[task.law]](parameters, ...task.arguments)[0];
    return phases.reduce((sum, { phase, launches }) => sum + Math.max(device[phase], parameters[machine.launch] * launches), 0);
  }
  const ends = new Set(machine.parameters.flatMap(([, ends]) => Object.keys(ends).map(Number)));
  const seconds = time.seconds;
  let [faster, slower] = [0, 0];
  for (const constant of new Set([...ends].map((end) => end >> 1))) {
    const pair = [2 * constant, 2 * constant + 1].map((end) => (ends.has(end) ? secondsAt(end) : seconds));
    faster += Math.log(seconds / Math.min(...pair, seconds)) ** 2;
    slower += Math.log(Math.max(...pair, seconds) / seconds) ** 2;
  }
  const range = { low: Math.max(time.least, seconds * Math.exp(-Math.sqrt(faster))), high: seconds * Math.exp(Math.sqrt(slower)) };
  return shared ? shared.widened(range.low, seconds, range.high) : range;
}

// Numbers for people, as costmodel prints them.

function rounded(number, digits) {
  const scaled = number * 10 ** digits;
  if (Number.isInteger(number * 2 ** (digits + 1)) && scaled % 1 === 0.5) {
    const below = Math.floor(scaled); // halfway: to the even digit
    return ((below % 2 ? below + 1 : below) / 10 ** digits).toFixed(digits);
  }
  return number.toFixed(digits);
}
function scaledBy(value, base, units, digits) {
  let number = Number(value);
  let step = 0;
  while (step < units.length - 1 && number >= base - 0.05) {
    number /= base;
    step += 1;
  }
  if (!step) return `${value} ${units[0]}`.trimEnd();
  if (number > 1e7 * base) return `${number.toExponential(digits - 1)} ${units[step]}`;
  const exponent = Number(number.toExponential(digits - 1).split("e")[1]);
  return `${rounded(number, Math.max(1, digits - 1 - exponent))} ${units[step]}`;
}
const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"];
const DECIMAL = ["", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q"];
const showBytes = (value) => scaledBy(value, 1024, BINARY, 3);
const showFlops = (value) => scaledBy(value, 1000, DECIMAL.map((prefix) => `${prefix}FLOP`), 4);
const showCount = (value) => scaledBy(value, 1000, DECIMAL, 4);
function showSeconds(seconds) {
  const [unit, factor] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6]].find(([, least]) => seconds >= 0.9995 * least) ?? ["ns", 1e-9];
  const number = seconds / factor;
  return `${rounded(number, number < 9.995 ? 2 : number < 99.95 ? 1 : 0)} ${unit}`;
}
const showExact = (value) => value.toLocaleString("en-US");
