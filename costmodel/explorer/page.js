// The page: what is set, and what is shown of it. All text goes through textContent; nothing is fetched.

const DATA = JSON.parse(document.getElementById("data").textContent);
const [FORMULAS_AND_LAWS, TABLES] = inflated(Uint8Array.from(atob(document.getElementById("packed").textContent), (sign) => sign.charCodeAt(0))).split("\0");
const { models: TABLES_OF_MODELS, machines: MACHINES } = JSON.parse(TABLES);
DATA.machines = MACHINES;
TABLES_OF_MODELS.forEach((tables, place) => Object.assign(DATA.models[place], tables));
const code = document.createElement("script"); // whose digest is in the page's policy
code.textContent = FORMULAS_AND_LAWS;
document.head.append(code);
const OF_TRAINING = new Set(DATA.training);
const LINES = Object.keys(DATA.colours);
const PREFIX = "memory.";
const NAMES = {
  params: "Parameters", trainable_params: "Trained parameters", active_params: "Parameters a token meets",
  "flops.forward": "Forward", "flops.backward": "Backward", "flops.total": "Forward and backward",
  "flops.recomputed": "Recomputed in backward", "flops.hardware": "All that the hardware does",
  masters: "master copies", optimizer: "optimizer state", casts: "casts of weights", counters: "step counters (host)",
  host: "offloaded (host)",
  cache: "keys and values kept", inputs: "inputs", buffers: "buffers", weights: "weights", gradients: "gradients",
  activations: "activations", temporaries: "temporaries",
};
const COLUMNS = [
  ["params", "parameters", showCount, "parameters"],
  ["forward_flops", "forward", showFlops, "FLOP"],
  ["backward_flops", "backward", showFlops, "FLOP"],
  ["recomputed_flops", "recomputed", showFlops, "FLOP"],
  ["activation_bytes", "kept", showBytes, "bytes"],
  ["cast_bytes", "casts kept", showBytes, "bytes"],
  ["forward_bytes", "moved", showBytes, "bytes"],
];
const OPTIONAL = new Set(["recomputed_flops", "cast_bytes"]);
const AREAS = [
  ["FLOPs, forward and backward", ["forward_flops", "backward_flops", "recomputed_flops"], showFlops],
  ["parameters", ["params"], showCount],
  ["kept for backward", ["activation_bytes"], showBytes],
  ["moved forward", ["forward_bytes"], showBytes],
];
const DEPTHS = ["by part", "by part, two levels", "every layer"];
// Of parts in the map: muted, so that they are not taken for the colours of memory.
const PALETTE = ["#a9b8cc", "#d3bd9f", "#b5c7ab", "#c9b3c9", "#c4c4b0", "#b0c9cb", "#d6b8b0", "#c6c9ce"];
const NARROW = window.matchMedia("(max-width: 60rem)");

const $ = (id) => document.getElementById(id);
const models = DATA.models.map((data, place) => new Model(data, FORMULAS[place]));
const state = { model: 0, values: {}, choices: {}, other: null, budget: "24 GiB", machine: -1, area: 0, depth: 1 };
const controls = {};
let now = null; // the last answer
let pinned = null; // that of the setting compared with
let shown = null; // makes what the dock shows
let clock = null; // seconds of the last answer on the chosen machine
let pending = 0; // timer of the link
let speaking = 0; // timer of what is said
let frame = 0; // the next time that the page is drawn
let moved = null; // the size whose slider was moved last
let drawing = 0; // timer of what is drawn once nothing moves

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name === "class") element.className = value;
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
const model = () => models[state.model];
const data = () => model().data;
// So many units as pixels that a picture is drawn over: its letters are as large as others.
const widthOf = (id, most) => Math.min(most, $(id).clientWidth || most);
function picture(tag, attributes, ...children) {
  const element = document.createElementNS("http:" + "//www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const decoding = () => model().mode(state.choices) === "decode";
const prefilling = () => model().mode(state.choices) === "prefill";
const meaningOf = (size) => (size.name === "seq" && decoding() ? "tokens kept before" : size.meaning);
// What a choice is about, and where what is chosen is from.
const meaningOfChoice = (choice) => [choice.meaning, choice.sources[state.choices[choice.name]]].filter(Boolean).join(" ");
const optionsOf = (labels) => labels.map((label, place) => h("option", { value: String(place) }, label));

// ---- Controls

function begin(values, choices) {
  state.values = Object.fromEntries(data().sizes.map((size) => [size.name, values?.[size.name] ?? size.value]));
  state.choices = Object.fromEntries(data().choices.map((choice) => [choice.name, choices?.[choice.name] ?? 0]));
}

function sizeControl(size, number) {
  const id = `size-${number}`;
  const field = h("input", { type: "text", inputmode: "numeric", id, "aria-describedby": `${id}-error` });
  const slider = h("input", {
    type: "range", min: "0", max: String(size.stops.length - 1), step: "1", "aria-label": `${size.meaning}, slider`,
  });
  const error = h("p", { class: "error", id: `${id}-error`, hidden: true });
  const name = h("span", {}, size.meaning);
  const label = h("label", { for: id }, name, " ", h("i", {}, ...symbol(size.symbol)));
  field.addEventListener("input", () => {
    const text = field.value.replace(/[\s,_]/g, "");
    state.values[size.name] = /^\d{1,15}$/.test(text) ? Number(text) : NaN;
    soon();
  });
  field.addEventListener("blur", () => showSizes());
  slider.addEventListener("input", () => {
    state.values[size.name] = reachable(size, Number(slider.value));
    moved = size;
    soon();
  });
  controls[size.name] = { field, slider, error, size, name };
  return h("div", { class: "size" }, label, field, slider, error);
}

// The stop that a slider goes to: the nearest to where it was put at which there is an answer.
function reachable(size, place) {
  const before = size.stops.indexOf(state.values[size.name]);
  const forward = before < 0 || place >= before ? 1 : -1;
  for (let step = 0; step < size.stops.length; step += 1) {
    for (const at of [place + forward * step, place - forward * step]) {
      const stop = size.stops[at];
      if (stop !== undefined && stop !== state.values[size.name]) {
        if (model().leaf({ ...state.values, [size.name]: stop }, state.choices).leaf) return stop;
      } else if (stop !== undefined && at === place) return stop;
    }
  }
  return size.stops[place];
}

// A choice between whole numbers, such as the stages of a pipeline, is a slider.
const numeric = (choice) => choice.labels.length > 1 && choice.labels.every((label) => /^\d+$/.test(label));

function choiceSlider(choice, id) {
  const shown = h("output", { for: id });
  const slider = h("input", { type: "range", id, min: "0", max: String(choice.labels.length - 1), step: "1" });
  const show = () => {
    shown.textContent = choice.labels[state.choices[choice.name]];
    slider.value = String(state.choices[choice.name]);
    slider.setAttribute("aria-valuetext", shown.textContent);
  };
  slider.addEventListener("input", () => {
    state.choices[choice.name] = Number(slider.value);
    show();
    soon();
  });
  show();
  return h("div", { class: "size", id: `${id}-row` }, h("label", { for: id }, choice.meaning.replace(/\.$/, ""), " ", h("i", {}, choice.name)), shown, slider);
}

// How many devices there are: of more the axis with samples of its own takes them.
function devicesControl() {
  const axis = SAMPLERS.find((each) => each in state.values || data().choices.some((choice) => choice.name === each));
  const degrees = axis in state.values ? data().sizes.find((size) => size.name === axis).stops
    : axis ? data().choices.find((choice) => choice.name === axis).labels.map(Number) : [];
  const shown = h("output", { for: "devices-slider" });
  if (!axis) {
    controls.devices = { show: () => (shown.textContent = showExact(devicesOf())) };
    return h("div", { class: "size" }, h("span", {}, "devices"), shown);
  }
  const slider = h("input", { type: "range", id: "devices-slider", min: "0", max: String(degrees.length - 1), step: "1" });
  slider.addEventListener("input", () => {
    const at = Number(slider.value);
    if (axis in state.values) state.values[axis] = degrees[at];
    else state.choices[axis] = at;
    soon();
  });
  controls.devices = {
    show() {
      shown.textContent = showExact(devicesOf());
      slider.value = String(Math.max(0, degrees.indexOf(degree(axis))));
      slider.setAttribute("aria-valuetext", shown.textContent);
      const own = data().choices.findIndex((choice) => choice.name === axis);
      if (own >= 0 && $(`choice-${own}`)) {
        $(`choice-${own}`).value = String(state.choices[axis]);
        $(`choice-${own}-row`).querySelector("output").textContent = String(degree(axis));
      }
    },
  };
  return h("div", { class: "size" }, h("label", { for: "devices-slider" }, "devices, by ", h("i", {}, axis)), shown, slider);
}

function showSizes() {
  controls.devices?.show();
  for (const { field, slider, error, size, name } of Object.values(controls).filter((control) => control.size)) {
    name.textContent = meaningOf(size);
    slider.setAttribute("aria-label", `${meaningOf(size)}, slider`);
    const value = state.values[size.name];
    const least = size.stops[0];
    const most = size.stops[size.stops.length - 1];
    const wrong = !(value >= least && value <= most) || (size.discrete && !size.stops.includes(value));
    error.hidden = !wrong;
    error.textContent = wrong
      ? `${Number.isNaN(value) ? "Not a whole number" : "Not in this page"}: ${stopsText(size)}`
      : "";
    field.setAttribute("aria-invalid", String(wrong));
    if (document.activeElement !== field && !Number.isNaN(value)) field.value = showExact(value);
    if (!wrong) {
      const nearest = size.stops.reduce(
        (best, stop, at) => (Math.abs(stop - value) < Math.abs(size.stops[best] - value) ? at : best), 0);
      slider.value = String(nearest);
      slider.setAttribute("aria-valuetext", showExact(value));
    }
  }
}

const stopsText = (size) => size.discrete ? listed(size.stops.map(showExact)) : `from ${showExact(size.stops[0])} to ${showExact(size.stops[size.stops.length - 1])}`;
const listed = (words) => words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} or ${words[words.length - 1]}`;

// Decoding takes one token more than are kept before: where the context has no room for it, fewer are kept.
function makeRoom() {
  const size = data().sizes.find((each) => each.name === "seq");
  const answers = (seq) => model().leaf({ ...state.values, seq }, state.choices).leaf;
  if (!decoding() || !size || answers(state.values.seq)) return;
  const stop = size.stops.filter((each) => each < state.values.seq).reverse().find(answers);
  if (stop !== undefined) state.values.seq = stop;
}

function buildControls() {
  for (const name of Object.keys(controls)) delete controls[name];
  const form = $("controls");
  const ofBatch = (size) => size.setting !== "";
  const ofLayout = (each) => [...AXES, "ep", "vpp"].includes(each.name);
  const groups = [
    ["Batch", data().sizes.filter((size) => ofBatch(size) && !ofLayout(size))],
    ["Devices", data().sizes.filter(ofLayout)],
    ["Model", data().sizes.filter((size) => !ofBatch(size))],
  ];
  const degrees = data().choices.filter((choice) => ofLayout(choice) && numeric(choice));
  const fieldsets = groups
    .filter(([title, sizes]) => sizes.length || (title === "Devices" && laidOut()))
    .map(([title, sizes]) =>
      h("details", { open: title !== "Model" || !NARROW.matches }, h("summary", {}, title),
        ...(title === "Devices" ? [devicesControl()] : []),
        ...sizes.map((size) => sizeControl(size, data().sizes.indexOf(size))),
        ...(title === "Devices" ? degrees.map((choice) => choiceSlider(choice, `choice-${data().choices.indexOf(choice)}`)) : [])));
  const choices = data().choices.filter((choice) => choice.labels.length > 1 && !degrees.includes(choice));
  const settings = h("details", { open: !NARROW.matches }, h("summary", {}, "Settings"));
  for (const choice of choices) {
    const id = `choice-${data().choices.indexOf(choice)}`;
    const select = h("select", { id, title: choice.meaning }, ...optionsOf(choice.labels));
    select.value = String(state.choices[choice.name]);
    select.addEventListener("change", () => {
      state.choices[choice.name] = Number(select.value);
      if (choice.name === "mode") makeRoom();
      meaning.textContent = meaningOfChoice(choice);
      update();
    });
    const meaning = h("p", { class: "meaning" }, meaningOfChoice(choice));
    settings.append(h("div", { class: "choice", id: `${id}-row` }, h("label", { for: id }, choice.name), select, meaning));
  }
  for (const [name, value] of Object.entries(data().fixed))
    settings.append(h("div", { class: "choice" }, h("span", {}, name), h("span", {}, value)));
  if (DATA.machines.length) {
    const machine = h("select", { id: "machine" }, h("option", { value: "-1" }, "none"),
      ...optionsOf(DATA.machines.map((each) => each.name)));
    machine.value = String(state.machine);
    machine.addEventListener("change", () => {
      state.machine = Number(machine.value);
      const chosen = DATA.machines[state.machine];
      if (chosen) $("budget").value = state.budget = memoryText(chosen.memory);
      update();
    });
    settings.append(h("div", { class: "choice" }, h("label", { for: "machine" }, "machine"), machine));
  }
  const budget = h("input", { type: "text", id: "budget", list: "budgets", size: 9 });
  budget.value = state.budget;
  const budgets = h("datalist", { id: "budgets" });
  for (const size of [8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 192]) budgets.append(h("option", { value: `${size} GiB` }));
  budget.addEventListener("input", () => {
    state.budget = budget.value;
    update();
  });
  settings.append(h("div", { class: "choice" }, h("label", { for: "budget" }, "budget"), budget, budgets));
  fieldsets.splice(1, 0, settings);
  form.replaceChildren(...fieldsets);
}

function memoryText(bytes) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["GB", 1e9], ["MiB", 2 ** 20]])
    if (Number.isInteger(bytes / size)) return `${bytes / size} ${unit}`;
  return `${bytes} B`;
}

// Bytes of a text such as "24 GiB" or "24 GB"; null for anything else.
function bytesOf(text) {
  const found = /^\s*(\d{1,12})(?:\.(\d{1,6}))?\s*([kmgtp]?)(i?)b\s*$/i.exec(text);
  if (!found) return null;
  const [, whole, part = "", prefix, binary] = found;
  const unit = (binary ? 1024n : 1000n) ** BigInt(" kmgtp".indexOf(prefix.toLowerCase() || " "));
  return (BigInt(whole + part) * unit) / 10n ** BigInt(part.length);
}

// ---- Formulas

function symbol(text) {
  const [head, ...below] = text.split("_");
  return below.length ? [head, h("sub", {}, below.join("_"))] : [head];
}

// A formula's own text for people: letters by their symbols, or by their values.
function* math(text, numbers) {
  const letters = Object.fromEntries(data().sizes.map((size) => [size.letter, size]));
  const quotientValues = numbers ? model().formulas.q() : {};
  const tokens = text.match(/\d+n|[A-Za-z_]\w*|\*\*|[-+*(),]/g) ?? [];
  for (let at = 0; at < tokens.length; at += 1) {
    const token = tokens[at];
    if (token === "**") {
      yield h("sup", {}, tokens[at + 1].slice(0, -1));
      at += 1;
    } else if (token === "*") yield numbers ? " × " : "·";
    else if (token === "+" || token === "-") yield at && tokens[at - 1] !== "(" && tokens[at - 1] !== "," ? ` ${token === "-" ? "−" : "+"} ` : "−";
    else if (token === ",") yield ", ";
    else if (/^\d/.test(token)) yield showExact(BigInt(token.slice(0, -1)));
    else if (token in letters) {
      const size = letters[token];
      yield numbers
        ? showExact(state.values[size.name])
        : h("span", { class: "letter", title: meaningOf(size) }, ...symbol(size.symbol));
    } else if (token in quotientValues) yield showExact(quotientValues[token]);
    else yield token;
  }
}

// What the rounded quotients in some formulas are.
function quotients(texts) {
  const source = String(model().made);
  const found = new Map();
  const look = (text) => {
    for (const name of text.match(/\bq\d+\b/g) ?? []) {
      if (found.has(name)) continue;
      const definition = new RegExp(`[;}\\]]?${name}=([^;]*);`).exec(source)?.[1];
      if (definition) {
        look(definition);
        found.set(name, definition);
      }
    }
  };
  texts.forEach(look);
  return found;
}

// A formula's text with its rounded quotients written out.
function writtenOut(text) {
  const named = quotients([text]);
  return text.replace(/\bq\d+\b/g, (name) => (named.has(name) ? writtenOut(named.get(name)) : name));
}

// A product of letters, numbers and quotients of letters as its factors in words; null for anything else.
function factorsInWords(text) {
  const names = Object.fromEntries(data().sizes.map((size) => [size.letter, meaningOf(size).replace(/ \(.*\)$/, "")]));
  const word = (name) => names[name] ?? (/^\d+n$/.test(name) ? showExact(BigInt(name.slice(0, -1))) : null);
  const factors = [];
  for (const [factor] of text.matchAll(/floor\([^)]*\)|\w+\*\*\d+n|[^*]+|\*/g)) {
    if (factor === "*") continue;
    const [, n, d] = /^floor\((\w+),(\w+)\)$/.exec(factor) ?? [];
    const [, base, power] = /^(\w+)\*\*(\d)n$/.exec(factor) ?? [];
    const words = n ? word(n) && word(d) && `(${word(n)} ÷ ${word(d)})` : base ? word(base) : word(factor);
    if (!words) return null;
    for (let times = 0; times < Number(power ?? 1); times += 1) factors.push(words);
  }
  return factors;
}
const inWords = (factors) => (factors.length === 1 ? factors[0].replace(/^\((.*)\)$/, "$1") : factors.join(" × ")) || "1";

// A condition in words where it is a plain one: whether one size divides another, or sums of products are compared.
function conditionWords({ relation, number, outcome }) {
  const text = writtenOut(model().text(number));
  const several = (words) => /s$/.test(words) && !/^number of|[×+÷]/.test(words);
  const divides = /^mod\((.+),(\w+)\)$/.exec(text);
  if (divides && relation === "zero") {
    const [whole, part] = divides.slice(1).map((each) => factorsInWords(each)).map((each) => each && inWords(each));
    const verb = several(part ?? "") ? (outcome ? "divide" : "do not divide") : outcome ? "divides" : "does not divide";
    return whole && part ? `${part} ${verb} ${whole}` : null;
  }
  const terms = text.match(/[+-]?(floor\(\w+,\w+\)|[^+-])+/g) ?? [];
  const [more, less] = [(sign) => sign !== "-", (sign) => sign === "-"].map((side) =>
    terms.filter((term) => side(term[0])).map((term) => factorsInWords(term.replace(/^[+-]/, ""))));
  if (terms.length > 3 || terms.join("") !== text || [...more, ...less].includes(null)) return null;
  if (more.length === 1 && less.length === 1)
    for (const factor of [...more[0]])
      if (less[0].includes(factor)) for (const side of [more[0], less[0]]) side.splice(side.indexOf(factor), 1);
  let [left, right] = [more, less].map((side) => side.map(inWords).join(" + ") || "0");
  const turned = /^[\d,]+$/.test(left) && relation !== "value";
  if (turned) [left, right] = [right, left];
  const is = several(left) ? "are" : "is";
  if (relation === "value") return less.length ? null : `${left} ${is} ${showExact(outcome)}`;
  if (relation === "zero") return `${left} ${is}${outcome ? "" : " not"} ${right}`;
  const [than, most] = turned ? ["less than", "at least"] : ["more than", "at most"];
  return `${left} ${is} ${outcome ? than : most} ${right}`;
}

// The sizes that a condition is about, in words.
function sizesOf({ number }) {
  const letters = new Set(writtenOut(model().text(number)).match(/[A-Za-z_]\w*/g));
  const words = data().sizes.filter((size) => letters.has(size.letter)).map((size) => meaningOf(size));
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}

function conditionText({ relation, number, outcome }) {
  const sign = relation === "value" ? `= ${outcome}` : relation === "zero" ? (outcome ? "= 0" : "≠ 0") : outcome ? "> 0" : "≤ 0";
  return [...math(writtenOut(model().text(number)), false), ` ${sign}`];
}

// parts: [label, number of the formula, how many times]; a sum of several is written part by part.
function showFormula({ what, unit, parts, value, note, show, result: given }) {
  const used = parts.filter(([, number]) => model().value(number) !== 0n);
  const lines = [];
  const result = given ?? `${showExact(value)} ${unit}${show && value >= 1000n ? ` = ${show(value)}` : ""}`;
  lines.push(h("p", {}, h("span", { class: "what" }, `${what}: `), result, used.length > 1 && !given ? `, the sum of ${used.length} parts` : ""));
  if (used.length <= 1) {
    const number = (used[0] ?? parts[0])?.[1];
    if (number !== undefined) {
      lines.push(h("p", { class: "math" }, "= ", ...math(model().text(number), false)));
      if (used.length) lines.push(h("p", { class: "math" }, "= ", ...math(model().text(number), true)));
    }
  } else {
    for (const [label, number] of used.slice(0, 12))
      lines.push(
        h("p", { class: "math" }, `${label}: `, ...math(model().text(number), false), " = ", ...math(model().text(number), true),
          ` = ${showExact(model().value(number))}`));
    if (used.length > 12) lines.push(h("p", { class: "soft" }, `and ${used.length - 12} more, each in the table`));
  }
  const named = quotients(used.map(([, number]) => model().text(number)));
  if (named.size)
    lines.push(h("p", { class: "soft" }, "where ", ...[...named].flatMap(([name, text], at) =>
      [at ? "; " : "", `${name} = `, ...math(text, false), " = ", ...math(text, true), ` = ${showExact(model().formulas.q()[name])}`])));
  if (note) lines.push(h("p", { class: "soft" }, note));
  lines.push(...holds());
  $("formula").replaceChildren(...lines);
}

// Where a formula holds: in words what can be said so, all else folded away.
let unfolded = false;
function holds() {
  const words = now.path.map(conditionWords);
  const plain = [...new Set(words.filter(Boolean))];
  const raw = now.path.filter((_, at) => !words[at]);
  const lines = [h("p", { class: "soft" }, `This holds within the ranges of the sliders${plain.length ? `, where ${plain.join("; ")}` : ""}${raw.length ? `, and on ${raw.length} more ${raw.length > 1 ? "conditions" : "condition"} that ${raw.length > 1 ? "are" : "is"} met here` : ""}.`)];
  if (raw.length) {
    const folded = h("details", { class: "soft", open: unfolded }, h("summary", {}, "the conditions as they are checked"),
      h("p", {}, ...raw.flatMap((step, at) => [at ? "; " : "", ...conditionText(step)])));
    folded.addEventListener("toggle", () => (unfolded = folded.open));
    lines.push(folded);
  }
  return lines;
}

function explainable(element, make) {
  element.classList.add("has-formula");
  element.formula = make;
  return element;
}

function lookAt(event) {
  const element = event.target.closest?.(".has-formula");
  if (!element || !now) return;
  shown = element.formula;
  $("formula").setAttribute("aria-live", event.type === "focusin" ? "polite" : "off");
  redraw();
}
function redraw() {
  if (!shown || !now) return;
  model().set(state.values);
  showFormula(shown());
}

const ofQuantity = (quantity, what, show, unit) => () => {
  const found = now.quantities[quantity];
  return { what, unit, show, value: found.value, parts: [["", found.number]] };
};
const ofPeak = (step) => () => {
  const at = step();
  const place = at.rounds ? `${at.layer} (round ${at.rounds})` : at.layer;
  return {
    what: `memory alive in ${at.phase} of ${place || "the input"}`, unit: "bytes", show: showBytes, value: at.total,
    parts: LINES.map((line) => [NAMES[line], at.numbers[line]]),
    note: at === now.peak ? "The peak is the most of all steps: this step has it here." : "The step with the most alive in this phase.",
  };
};

// ---- Answer

const spared = (value) => (value < 0n ? -value : value);
function ratio(value, other) {
  if (value === other) return "the same";
  if (other === 0n || value === 0n) return "";
  const times = Number(value) / Number(other);
  return `${times >= 1 ? "×" : "÷"} ${(times >= 1 ? times : 1 / times).toPrecision(3)}`;
}
const against = (value, other, show) =>
  pinned ? `pinned ${show(other)}${value === other ? "" : ` (${ratio(value, other)})`}` : "";

function card(id, title) {
  const parts = { value: h("div", { class: "value" }), exact: h("div", { class: "exact" }), other: h("div", { class: "other" }) };
  const element = h("article", { class: "card", id: `card-${id}`, tabindex: "0" }, h("h3", {}, title), ...Object.values(parts));
  return { element, ...parts };
}
const cards = {};
function buildCards() {
  cards.params = card("params", "Parameters");
  cards.flops = card("flops", "FLOPs of a step");
  cards.peak = card("peak", "Peak memory");
  cards.fits = card("fits", "Memory budget");
  cards.time = card("time", "Time of a step");
  explainable(cards.params.element, ofQuantity("params", "parameters", showCount, "parameters"));
  explainable(cards.flops.element, ofQuantity("flops.total", "FLOPs, forward and backward", showFlops, "FLOP"));
  explainable(cards.peak.element, ofPeak(() => now.peak));
  explainable(cards.fits.element, ofPeak(() => now.peak));
  $("cards").replaceChildren(...Object.values(cards).map((each) => each.element));
}

function showCards() {
  const value = (quantity) => now.quantities[quantity].value;
  const other = (quantity) => pinned?.quantities[quantity].value;
  for (const [id, quantity, show, unit] of [
    ["params", "params", showCount, ""],
    ["flops", "flops.total", showFlops, " FLOP"],
    ["peak", "memory.peak", showBytes, " bytes"],
  ]) {
    cards[id].value.textContent = show(value(quantity));
    cards[id].exact.textContent = `${showExact(value(quantity))}${unit}`;
    cards[id].other.textContent = against(value(quantity), other(quantity), show);
  }
  const budget = bytesOf(state.budget);
  const fits = budget !== null && now.peak.total <= budget;
  cards.fits.element.classList.toggle("fits", fits);
  cards.fits.element.classList.toggle("over", budget !== null && !fits);
  cards.fits.value.textContent = budget === null ? "–" : `${fits ? "fits" : "does not fit"}`;
  cards.fits.exact.textContent =
    budget === null
      ? "write a budget such as 24 GiB"
      : `${state.budget.trim()}: ${showBytes(spared(budget - now.peak.total))} ${fits ? "to spare" : "too much"}`;
  cards.fits.other.textContent =
    pinned && budget !== null ? `pinned ${pinned.peak.total <= budget ? "fits" : "does not fit"}` : "";
}

function showBars() {
  const budget = bytesOf(state.budget);
  const totals = [...now.phases, ...(pinned ? [pinned.peak] : [])].map((step) => step.total);
  const most = totals.reduce((a, b) => (b > a ? b : a), 1n);
  const far = budget !== null && budget > 3n * most;
  const whole = budget === null || far ? (most * 5n) / 4n : most > budget ? (most * 21n) / 20n : (budget * 21n) / 20n;
  const share = (value) => `${(100 * Number(value)) / Number(whole)}%`;
  const rows = now.phases.map((step) => ["phase", step.phase, step, () => now.phases.find((each) => each.phase === step.phase) ?? now.peak]);
  rows.push(["peak", "peak", now.peak, () => now.peak]);
  if (pinned) rows.push(["peak pinned", "pinned peak", pinned.peak, null]);
  const focused = [...$("bars").querySelectorAll(".bar-row")].indexOf(document.activeElement);
  const bars = rows.map(([kind, name, step, make]) => {
    const fill = h("div", { class: "fill" });
    fill.style.width = share(step.total);
    for (const line of LINES) {
      if (!step.lines[line]) continue;
      const piece = h("span", { title: `${NAMES[line]} ${showBytes(step.lines[line])}` });
      piece.style.width = `${(100 * Number(step.lines[line])) / Number(step.total)}%`;
      piece.style.background = DATA.colours[line];
      fill.append(piece);
    }
    const track = h("div", { class: "track" }, fill);
    if (budget !== null && !far) {
      const mark = h("div", { class: "budget" });
      mark.style.left = share(budget);
      track.append(mark);
    }
    const row = h("div", { class: `bar-row ${kind}` }, h("div", { class: "name" }, name), track, h("div", { class: "total" }, showBytes(step.total)));
    row.setAttribute("role", "img");
    row.setAttribute("aria-label", `${name}: ${showBytes(step.total)}`);
    row.tabIndex = -1;
    return make ? explainable(row, ofPeak(make)) : row;
  });
  bars[Math.min(Math.max(0, focused), bars.length - 1)].tabIndex = 0;
  const scale = h("div", { class: "budget-scale" }, h("div", {}));
  if (budget !== null) {
    const label = h("span", {}, far ? `budget ${state.budget.trim()}, far right →` : `budget ${state.budget.trim()}`);
    const at = far ? 1 : Number(budget) / Number(whole);
    label.className = at > 0.8 ? "end" : at < 0.2 ? "start" : "";
    label.style.left = `${100 * at}%`;
    scale.firstChild.append(label);
  }
  $("bars").replaceChildren(scale, ...bars);
  if (focused >= 0) bars[Math.min(focused, bars.length - 1)].focus();
  const kept = decoding() ? now.quantities.kv_bytes_per_token.value : 0n;
  const place = now.peak.rounds ? `${now.peak.layer} (round ${now.peak.rounds})` : now.peak.layer;
  $("memory-lead").textContent =
    `Peak: ${showBytes(now.peak.total)}, in ${now.peak.phase} of ${place || "the input"}. Each bar is the step of a phase with the most alive.`
    + (kept ? ` Of each sample ${showBytes(kept)} of keys and values stay for every token.` : "");
}

const WORDS = new Set(["kind", "phase", "type", "over", "by"]); // heads of columns of words
// Put a table whose numbers can be reached with arrow keys into an element, or other numbers into the one there.
// rows: [head, ...cells], a head a text or [text, colour], a cell [text, what its formula is, class].
function fill(holder, caption, heads, rows, sums = new Set()) {
  const shape = JSON.stringify([heads, rows.map((row) => [row[0], row.length]), [...sums]]);
  if (holder.shape !== shape) {
    const lines = rows.map(([head, ...cells], at) => {
      const [text, colour] = [head].flat();
      const dot = colour ? [h("span", { class: "dot" })] : [];
      for (const each of dot) each.style.background = colour;
      return h("tr", sums.has(at) ? { class: "sum" } : {}, h("th", { scope: "row" }, ...dot, text),
        ...cells.map(() => h("td", { tabindex: "-1" })));
    });
    holder.replaceChildren(h("table", {}, h("caption", { class: "skip" }, caption),
      h("thead", {}, h("tr", {}, ...heads.map((title) => h("th", { scope: "col", class: WORDS.has(title) ? "word" : "" }, title)))),
      h("tbody", {}, ...lines)));
    holder.shape = shape;
    holder.cells = lines.map((line) => [...line.querySelectorAll("td")]);
    const first = holder.cells[0]?.[0];
    if (first) first.tabIndex = 0;
  }
  rows.forEach(([, ...cells], at) => cells.forEach(([text, make, kind], place) => {
    const cell = holder.cells[at][place];
    cell.dataset.head = heads[place + 1];
    if (cell.textContent !== text) cell.textContent = text;
    const name = [kind, make ? "has-formula" : ""].filter(Boolean).join(" ");
    if (cell.className !== name) cell.className = name;
    cell.formula = make;
  }));
  stack(holder);
}

// A table that is wider than its place has its rows one below another, each number under its own head: none is cut.
function stack(holder) {
  holder.classList.remove("stacked");
  holder.classList.toggle("stacked", holder.scrollWidth > holder.clientWidth + 1);
}

// Of the page's batches the largest whose peak is within so many bytes, 0 if none is, and whether the page has no larger one.
function requestsWithin(memory) {
  const stops = data().sizes.find((size) => size.name === "batch")?.stops ?? [state.values.batch];
  const fits = (batch) => {
    const found = model().at({ ...state.values, batch }, state.choices);
    return !("why" in found) && found.peak.total <= memory;
  };
  const most = stops[stops.length - 1];
  let [low, high] = [0, most + 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (fits(middle)) low = middle;
    else high = middle;
  }
  model().set(state.values);
  return { count: low, all: low === most };
}
const requestsText = ({ count, all }) => `${showExact(count)}${all ? " or more" : ""}`;

// What as many requests at a time as fit a machine get: a token of each in so many seconds, so many tokens a second of all.
function servedBy(machine) {
  const fit = requestsWithin(BigInt(machine.memory));
  if (!fit.count) return { fit };
  const found = model().at({ ...state.values, batch: fit.count }, state.choices);
  const time = timeOn(found, machine);
  model().set(state.values);
  return { fit, time, rate: time.why ? "–" : showCount(Math.round(fit.count / time.seconds)) };
}
function showRequests() {
  $("requests").hidden = !decoding() || !clock;
  if ($("requests").hidden) return;
  const { fit, time, rate } = servedBy(clock.machine);
  $("requests").textContent = `Requests that fit the ${memoryText(clock.machine.memory)} of ${clock.machine.name} at once, with ${showExact(state.values.seq)} tokens kept of each: `
    + `${requestsText(fit)}.`
    + (time && !time.why ? ` So many together are served ${rate} tokens/s: a token of each every ${showSeconds(time.seconds)} (${rangeText(rangeOf(time))}).` : "");
}

// Every machine with its own memory as the budget, and its seconds, which take longer to work out.
function showMachines(timed) {
  const step = prefilling() ? "first token" : "a step";
  const heads = ["machine", "memory", "the peak", "to spare", "full", step, "four of five runs", ...(decoding() ? ["requests that fit", "their tokens/s"] : [])];
  fill($("machines-table"), "Each machine's own memory against the peak, and seconds of a step", heads, DATA.machines.map((machine) => {
    const time = timed ? timeOn(now, machine) : null;
    const served = timed && decoding() ? servedBy(machine) : null;
    const seconds = (show) => [time ? (time.why ? "–" : show(time)) : "…"];
    const memory = BigInt(machine.memory);
    const spare = memory - now.peak.total;
    return [machine.name, [memoryText(machine.memory)], [spare >= 0n ? "fits" : "does not fit", ofPeak(() => now.peak)],
      [spare >= 0n ? showBytes(spare) : `−${showBytes(-spare)}`], [`${((100 * Number(now.peak.total)) / machine.memory).toFixed(0)}%`],
      seconds((each) => showSeconds(each.seconds)), seconds((each) => rangeText(rangeOf(each))),
      ...(decoding() ? [[served ? requestsText(served.fit) : "…"], [served ? served.rate ?? "–" : "…"]] : [])];
  }));
}

// ---- Memory over a step

const MOST_STEPS = 20000;
const COLUMNS_DRAWN = 480;
const PHASE_DRAWN = { recompute: "backward" }; // happens in turn with it

// Every moment of a step, every round of what repeats: what is alive by category, from below. Of more moments than are
// drawn each column is the one of them with the most.
function showCourse() {
  const there = LINES.filter((line) => line in now.peak.lines);
  const comes = data().lines;
  const still = there.map((line) => (comes.includes(line) ? 0 : Number(now.peak.lines[line])));
  const steps = model().steps(now.rank, MOST_STEPS).map((step) => {
    const alive = there.map((line, at) => (comes.includes(line) ? step.alive[comes.indexOf(line)] : still[at]));
    return { ...step, alive, total: alive.reduce((sum, size) => sum + size, 0) };
  });
  const together = Math.ceil(steps.length / COLUMNS_DRAWN);
  const columns = [];
  steps.forEach((step, at) => {
    const column = Math.floor(at / together);
    if (!columns[column] || step.total > columns[column].total) columns[column] = { ...step, at };
  });
  const peak = columns.reduce((a, b) => (b.total > a.total ? b : a));
  const budget = bytesOf(state.budget);
  const within = budget !== null && Number(budget) < 1.5 * peak.total;
  const [width, height, left, bottom, above] = [widthOf("course-picture", 960), 260, 74, 22, 30];
  const most = Math.max(peak.total, within ? Number(budget) : 0) * 1.02;
  const across = (at) => left + (at / columns.length) * (width - left - 4);
  const up = (size) => height - bottom - (size / most) * (height - bottom - above);
  const parts = [];
  const tick = 2 ** Math.floor(Math.log2(most / 3));
  for (let size = tick; size <= most; size += tick)
    parts.push(picture("line", { class: "grid", x1: left, x2: width - 4, y1: up(size), y2: up(size) }),
      picture("text", { x: left - 6, y: up(size) + 4, "text-anchor": "end" }, showBytes(BigInt(Math.round(size)))));
  const below = columns.map(() => 0);
  there.forEach((line, at) => {
    if (!columns.some((column) => column.alive[at])) return;
    const edge = columns.map((column, place) => [below[place], (below[place] += column.alive[at])]);
    const corner = (place, size) => `${across(place).toFixed(1)} ${up(size).toFixed(1)}`;
    const high = edge.map(([, size], place) => `${corner(place, size)}L${corner(place + 1, size)}`);
    const low = edge.map(([size], place) => `${corner(place + 1, size)}L${corner(place, size)}`).reverse();
    parts.push(picture("path", { fill: DATA.colours[line], d: `M${[...high, ...low].join("L")}Z` }));
  });
  const name = (step) => PHASE_DRAWN[step.phase] ?? step.phase;
  columns.forEach((column, at) => {
    if (at && name(column) === name(columns[at - 1])) return;
    const end = columns.findIndex((other, place) => place > at && name(other) !== name(column));
    const wide = across(end < 0 ? columns.length : end) - across(at);
    if (at) parts.push(picture("line", { class: "phase", x1: across(at), x2: across(at), y1: above, y2: height - bottom }));
    if (wide > 7 * name(column).length) parts.push(picture("text", { x: across(at) + wide / 2, y: height - 6, "text-anchor": "middle" }, name(column)));
  });
  if (within) parts.push(picture("line", { class: "limit", x1: left, x2: width - 4, y1: up(Number(budget)), y2: up(Number(budget)) }),
    picture("text", { class: "named", x: width - 6, y: up(Number(budget)) - 4, "text-anchor": "end" }, `budget ${state.budget.trim()}`));
  const place = columns.indexOf(peak) + 0.5;
  const end = place > columns.length * 0.6 ? "end" : "start";
  parts.push(picture("circle", { cx: across(place), cy: up(peak.total), r: 4 }),
    picture("text", { class: "named", x: across(place) + (end === "end" ? -8 : 8), y: 12, "text-anchor": end },
      `peak ${showBytes(now.peak.total)}, ${now.peak.phase} of ${now.peak.layer || "the input"}`));
  const cursor = picture("line", { class: "cursor", y1: above, y2: height - bottom, visibility: "hidden" });
  const described = `What is alive at each of ${showExact(steps.length)} moments of ${degree("pp") > 1 ? "the heaviest rank's" : "a"} step`
    + (together > 1 ? `, of every ${together} the one with the most` : "");
  const svg = picture("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0",
    "aria-label": `${described}. The peak is ${showBytes(now.peak.total)}, in ${now.peak.phase} of ${now.peak.layer || "the input"}. Arrow keys tell of others.` }, ...parts, cursor);
  let looked = columns.indexOf(peak);
  const look = (at) => {
    looked = Math.min(Math.max(at, 0), columns.length - 1);
    const step = columns[looked];
    cursor.setAttribute("x1", across(looked + 0.5));
    cursor.setAttribute("x2", across(looked + 0.5));
    cursor.setAttribute("visibility", "visible");
    const round = step.rounds.length ? `, round ${step.rounds.map((each) => showExact(each + 1)).join(" of round ")}` : "";
    const alive = there.map((line, number) => [NAMES[line], step.alive[number]]).filter(([, size]) => size).reverse();
    $("course-said").textContent = `${showExact(step.at + 1)} of ${showExact(steps.length)}: ${step.phase} of ${step.layer || "the input"}${round}: `
      + `${showBytes(BigInt(step.total))}, of which ${alive.map(([what, size]) => `${what} ${showBytes(BigInt(size))}`).join(", ")}.`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * width;
    look(Math.floor(((x - left) / (width - left - 4)) * columns.length));
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (!step) return;
    event.preventDefault();
    look(looked + step);
  });
  $("course-lead").textContent = `${described}.`;
  $("course-said").textContent = "";
  const legend = there.filter((line, at) => columns.some((column) => column.alive[at])).reverse().map((line) => {
    const dot = h("span", { class: "dot" });
    dot.style.background = DATA.colours[line];
    return h("span", {}, dot, NAMES[line]);
  });
  const focused = $("course-picture").contains(document.activeElement);
  $("course-picture").replaceChildren(svg, h("p", { class: "legend" }, ...legend));
  if (focused) svg.focus();
}

// The peak at every stop of the slider that was moved last, all else as it is.
function showCurve() {
  const size = data().sizes.find((each) => each === moved);
  const points = [];
  for (const stop of size?.stops ?? []) {
    const found = model().at({ ...state.values, [size.name]: stop }, state.choices);
    if (!found.why) points.push([stop, found.peak.total]);
  }
  model().set(state.values);
  $("curve").hidden = points.length < 2;
  if (points.length < 2) return;
  const budget = bytesOf(state.budget);
  const most = Math.max(...points.map(([, peak]) => Number(peak)));
  const within = points.filter(([, peak]) => budget !== null && peak <= budget);
  const last = within[within.length - 1];
  $("curve-lead").textContent = `Peak memory by ${meaningOf(size)}, all else as it is: ${showBytes(points[0][1])} at ${showExact(points[0][0])}, `
    + `${showBytes(points[points.length - 1][1])} at ${showExact(points[points.length - 1][0])}.`
    + (budget === null ? "" : last ? ` The largest stop within ${state.budget.trim()} is ${showExact(last[0])}.` : ` None is within ${state.budget.trim()}.`);
  const [width, height, margin] = [widthOf("curve-picture", 704), 200, 24];
  const [low, high] = [Math.log(points[0][0]), Math.log(points[points.length - 1][0])];
  const across = (stop) => margin + ((Math.log(stop) - low) / (high - low)) * (width - 2 * margin);
  const up = (peak) => height - margin - (Number(peak) / most) * (height - 2 * margin);
  const parts = [picture("polyline", { points: points.map(([stop, peak]) => `${across(stop)},${up(peak)}`).join(" ") })];
  if (budget !== null && Number(budget) <= most)
    parts.push(picture("line", { x1: margin, x2: width - margin, y1: up(budget), y2: up(budget) }));
  if (points.some(([stop]) => stop === state.values[size.name]))
    parts.push(picture("circle", { cx: across(state.values[size.name]), cy: up(now.peak.total), r: 5 }));
  parts.push(picture("text", { x: margin, y: height - 6 }, showExact(points[0][0])),
    picture("text", { x: width - margin, y: height - 6, "text-anchor": "end" }, showExact(points[points.length - 1][0])),
    picture("text", { x: margin, y: 14 }, showBytes(BigInt(most))));
  $("curve-picture").replaceChildren(picture("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": $("curve-lead").textContent }, ...parts));
}

// ---- Devices

const AXES = DATA.axes.filter((axis) => axis !== "ep"); // whose degrees multiply; experts are spread over ranks of these
const SAMPLERS = ["fsdp", "dp"];

// The degree of an axis as it is set, or as it is for the whole page.
function degree(axis) {
  if (axis in state.values) return state.values[axis];
  const choice = data().choices.find((each) => each.name === axis);
  return Number(choice ? choice.labels[state.choices[axis]] : data().fixed[axis] ?? 1);
}
const devicesOf = () => AXES.reduce((product, axis) => product * degree(axis), 1);
const laidOut = () => [...AXES, "ep"].some((axis) => axis in state.values || axis in data().fixed || axis in state.choices);

function showDevices() {
  const count = devicesOf();
  $("devices").hidden = !laidOut();
  if ($("devices").hidden) return;
  const { ranks, rank } = now;
  const name = (one) => (ranks.length > 1 ? `stage rank ${one.place}` : "every rank");
  const degrees = [...AXES, "ep"].filter((axis) => degree(axis) > 1).map((axis) => `${axis} ${degree(axis)}`);
  const idle = now.quantities["pipeline.idle"];
  const busy = now.quantities["pipeline.busy"];
  const parts = [
    `${showExact(count)} ${count === 1 ? "device" : "devices"}${degrees.length ? `: ${degrees.join(" × ")}` : ""}.`,
    ranks.length > 1
      ? `${count > ranks.length ? `Each of ${ranks.length} kinds of rank is ${showExact(count / ranks.length)} devices alike. ` : ""}The heaviest is ${name(rank)}, with ${showBytes(rank.peak.total)}; memory above is that rank's, parameters and FLOPs below are the whole model's.`
      : count > 1 ? "All ranks are alike; memory above is of one, parameters and FLOPs below are the whole model's." : "",
  ];
  if (idle) {
    const share = Number(idle.value) / Number(idle.value + busy.value);
    parts.push(`Bubble: a rank waits ${(100 * share).toFixed(1)}% of a step (${showExact(idle.value)} of ${showExact(idle.value + busy.value)} units, ` +
      "a forward pass of a stage being one and a backward pass two), if stages took equally long and sending took no time.");
  } else if (degree("pp") > 1) parts.push("The one batch goes through the stages in turn, so at any moment one of them works.");
  if (DATA.machines.length && state.machine < 0 && count > 1) parts.push("For seconds choose a machine in the settings: its devices are joined as in the cluster that is ready of it.");
  $("devices-lead").textContent = parts.filter(Boolean).join(" ");
  const budget = bytesOf(state.budget);
  const most = ranks.reduce((a, one) => (one.peak.total > a ? one.peak.total : a), budget ?? 1n);
  $("rank-bars").replaceChildren(...(ranks.length > 1 ? ranks : []).map((one) => {
    const fill = h("div", { class: "fill" });
    fill.style.width = `${(95 * Number(one.peak.total)) / Number(most)}%`;
    for (const line of LINES) {
      if (!one.peak.lines[line]) continue;
      const piece = h("span", { title: `${NAMES[line]} ${showBytes(one.peak.lines[line])}` });
      piece.style.width = `${(100 * Number(one.peak.lines[line])) / Number(one.peak.total)}%`;
      piece.style.background = DATA.colours[line];
      fill.append(piece);
    }
    const track = h("div", { class: "track" }, fill);
    if (budget !== null) {
      const mark = h("div", { class: "budget" });
      mark.style.left = `${(95 * Number(budget)) / Number(most)}%`;
      track.append(mark);
    }
    const row = h("div", { class: `bar-row${one === rank ? " peak" : ""}`, role: "img", tabindex: "-1", "aria-label": `${name(one)}: ${showBytes(one.peak.total)}` },
      h("div", { class: "name" }, name(one)), track, h("div", { class: "total" }, showBytes(one.peak.total)));
    return explainable(row, ofPeak(() => now.ranks[one.place].peak));
  }));
  const of = (one, quantity, what, show, unit) => [show(one.quantities[quantity].value), () => {
    const { value, number } = now.ranks[one.place].quantities[quantity];
    return { what: `${what} of ${name(one)}`, unit, show, value, parts: [["", number]] };
  }];
  const memory = ["weights", "gradients", "optimizer", "activations"];
  fill($("ranks-table"), "Ranks that differ", ["rank", ...(ranks.length > 1 ? ["in flight"] : []), "parameters", "FLOPs", ...memory.map((line) => NAMES[line]), "peak", "sent"],
    ranks.map((one) => [
      name(one),
      ...(ranks.length > 1 ? [of(one, "in_flight", "micro-batches in flight", showExact, "")] : []),
      of(one, "params", "parameters", showCount, "parameters"), of(one, "flops", "FLOPs", showFlops, "FLOP"),
      ...memory.map((line) => of(one, `memory.${line}`, NAMES[line], showBytes, "bytes")),
      [showBytes(one.peak.total), ofPeak(() => now.ranks[one.place].peak)],
      of(one, "collectives.wire_bytes", "bytes sent", showBytes, "bytes"),
    ]));
  $("sums-lead").textContent = rank.sums.length
    ? "bytes: of the whole tensor over all ranks of the axis; sent: by this rank, around a ring, so 2(n−1)/n of an all-reduce, (n−1)/n of what is gathered, scattered or exchanged."
    : "Nothing: there are no collectives.";
  const cell = (at, column, what, show, unit) => [show(rank.sums[at].values[column]), () => {
    const sum = now.rank.sums[at];
    return { what, unit, show, value: sum.values[column], parts: [["", sum.numbers[column]]] };
  }];
  const sums = rank.sums.map((sum, at) => {
    const what = `${sum.axis} ${sum.operation}`;
    return [what, [sum.dtype, null, "word"], cell(at, "devices", `${what}, devices`, showExact, ""), cell(at, "times", `${what}, times`, showExact, ""),
      cell(at, "bytes", `${what}, bytes`, showBytes, "bytes"), cell(at, "wire_bytes", `${what}, sent`, showBytes, "bytes")];
  });
  const all = (column) => rank.sums.reduce((sum, each) => sum + each.values[column], 0n);
  if (sums.length) sums.push(["total", ["", null, "word"], [""], [showExact(all("times"))], [showBytes(all("bytes"))], [showBytes(all("wire_bytes"))]]);
  fill($("sums-table"), "Collectives by axis and operation", ["collectives", "type", "devices", "times", "bytes", "sent"], sums, new Set([sums.length - 1]));
}

function shareText(part, whole) {
  if (!part || !whole) return "–";
  const share = Number(part) / Number(whole);
  return part === whole ? "100%" : share < 0.0005 ? "<0.1%" : `${(100 * share).toFixed(1)}%`;
}

const rangeText = ({ low, high }) => `${showSeconds(low)} to ${showSeconds(high)}`;

function showMemory() {
  const heads = ["", "at the peak", "share", "all of it", ...(pinned ? ["pinned, at its peak"] : [])];
  const quantity = (line) => now.quantities[PREFIX + line];
  const lines = [...LINES].reverse().filter((line) => now.peak.lines[line] || quantity(line).value);
  const rows = lines.map((line) => {
    return [
      [NAMES[line], DATA.colours[line]],
      [showBytes(now.peak.lines[line]), () => ({
        what: `${NAMES[line]} at the peak`, unit: "bytes", show: showBytes, value: now.peak.lines[line],
        parts: [["", now.peak.numbers[line]]],
      }), now.peak.lines[line] ? "" : "zero"],
      [shareText(now.peak.lines[line], now.peak.total)],
      [showBytes(quantity(line).value), ofQuantity(PREFIX + line, `memory.${line}`, showBytes, "bytes"), quantity(line).value ? "" : "zero"],
      ...(pinned ? [[showBytes(pinned.peak.lines[line])]] : []),
    ];
  });
  rows.push(["peak", [showBytes(now.peak.total), ofPeak(() => now.peak)], ["100%"], [""],
    ...(pinned ? [[showBytes(pinned.peak.total)]] : [])]);
  const sums = new Set([rows.length - 1]);
  for (const line of ["counters", "host"])
    if (quantity(line).value)
      rows.push([NAMES[line], ["–"], ["–"], [showBytes(quantity(line).value), ofQuantity(PREFIX + line, `memory.${line}`, showBytes, "bytes")],
        ...(pinned ? [[""]] : [])]);
  fill($("memory-table"), "Memory by purpose: at the peak, and all of it whenever it is alive", heads, rows, sums);
}

function showFlopsTable() {
  const value = (name) => now.quantities[name].value;
  const rows = [];
  const add = (name, label, columns) => {
    const cells = columns.flatMap(([quantity, show, unit]) =>
      quantity === null
        ? [[""], ...(pinned ? [[""]] : [])]
        : [[`${show(value(quantity))}`, ofQuantity(quantity, quantity, show, unit), value(quantity) ? "" : "zero"],
           ...(pinned ? [[show(pinned.quantities[quantity].value)]] : [])]);
    rows.push([label, ...cells]);
  };
  for (const name of ["params", "trainable_params", "active_params"])
    if (name === "params" || value(name) !== value("params"))
      add(name, NAMES[name], [[name, showCount, "parameters"], [null]]);
  for (const part of ["forward", "backward", "total", "recomputed", "hardware"]) {
    const both = value(`flops.${part}`) || value(`pointwise_flops.${part}`);
    const recomputes = value("flops.recomputed") || value("pointwise_flops.recomputed");
    if (part === "forward" || part === "total" || (both && (part === "backward" || recomputes)))
      add(part, NAMES[`flops.${part}`], [[`flops.${part}`, showFlops, "FLOP"], [`pointwise_flops.${part}`, showFlops, "FLOP"]]);
  }
  const two = (head, other) => (pinned ? [head, other] : [head]);
  const heads = [...two("count or FLOPs", "pinned"), ...two("pointwise", "pinned pointwise")];
  fill($("flops-table"), "Parameters and FLOPs", ["", ...heads], rows);
}

// ---- Seconds

const BOUNDS = { compute: "#3b8fd1", memory: "#e0702a", overhead: "#2aa876" };
const PHASE = { forward: "forward and loss", backward: "backward", update: "optimizer" };

function showTime() {
  const machine = DATA.machines[state.machine];
  const timed = machine ? timeOn(now, machine) : null;
  clock = timed?.why ? null : timed;
  $("time").hidden = cards.time.element.hidden = !timed;
  $("requests").hidden = true;
  for (const id of ["sent-table", "time-table", "roofline", "kernel-table"]) $(id).hidden = !clock;
  if (timed?.why) {
    $("time-lead").textContent = `No seconds here: ${timed.why}. Ask in a shell: ${asShell()}`;
    cards.time.value.textContent = "–";
    cards.time.exact.textContent = "see below";
    cards.time.other.textContent = "";
  }
  if (!clock) return;
  const each = "seq" in state.values ? (decoding() ? 1 : state.values.seq) : 1;
  const rateOf = (seconds) => showCount(Math.round((Number(now.quantities.samples.value) * each) / seconds));
  const rate = `${rateOf(clock.seconds)} ${"seq" in state.values ? "tokens" : "samples"}/s`;
  const range = rangeOf(clock);
  cards.time.element.querySelector("h3").textContent = prefilling() ? "Time to first token" : decoding() ? "Time of a token" : "Time of a step";
  cards.time.value.textContent = showSeconds(clock.seconds);
  cards.time.exact.textContent = `${rangeText(range)}; ${rate}, MFU ${(100 * clock.mfu).toFixed(0)}%`;
  const other = pinned ? timeOn(pinned, machine) : null;
  cards.time.other.textContent = other && !other.why ? `pinned ${showSeconds(other.seconds)} (${ratio(clock.seconds, other.seconds)})` : "";
  const batch = state.values.batch ?? Number(data().fixed.batch);
  const prompts = batch === 1 ? "a prompt" : `${showExact(batch)} prompts that are read at once`;
  const what = prefilling() ? `The first token of ${prompts}` : decoding() ? "A token" : "A step";
  $("time-lead").textContent =
    `${what} typically takes ${showSeconds(clock.seconds)} on ${machine.name} (stack ${DATA.stack}); about four of five measured runs fall between `
    + `${showSeconds(range.low)} and ${showSeconds(range.high)}, and by the datasheet alone none takes less than ${showSeconds(clock.least)}. `
    + `That is ${rate}, four of five times ${rateOf(range.high)} to ${rateOf(range.low)}. `
    + (clock.shared ? `Of it a device waits ${waitText(clock.shared.exposed)} for collectives${staged() ? `, and ${waitText(clock.shared.bubble)} for other stages: the bubble of the schedule, played with what each stage takes` : ""}. ` : "")
    + (staged() ? `Phases, collectives and kernels are those of stage rank ${clock.shared.rank}, whose kernels take longest. ` : "")
    + "These are estimates in floating point, unlike all else here: kernels and drivers differ.";
  showSent();
  fill($("time-table"), "Seconds of each phase", ["", "a step", "device", "host", "by the datasheet", "kernels"], [
    ...clock.phases.filter((phase) => phase.launches).map((phase) => [PHASE[phase.phase], [showSeconds(phase.seconds)], [showSeconds(phase.device)],
      [showSeconds(phase.host)], [showSeconds(phase.least)], [showExact(phase.launches)]]),
    ["all", [showSeconds(clock.seconds)], [showSeconds(clock.device)], [""], [showSeconds(clock.least)], [""]],
  ], new Set([clock.phases.filter((phase) => phase.launches).length]));
  showRoofline();
  const found = new Map();
  for (const task of clock.tasks) {
    const key = `${task.layer} ${task.phase}`;
    if (!found.has(key)) found.set(key, { layer: task.layer, phase: task.phase, seconds: 0, flops: 0, bytes: 0, most: task });
    const row = found.get(key);
    row.seconds += task.seconds;
    row.flops += task.flops;
    row.bytes += task.bytes;
    if (task.seconds > row.most.seconds) row.most = task;
  }
  const rows = [...found.values()].sort((a, b) => b.seconds - a.seconds);
  const shown = rows.slice(0, 12);
  fill($("kernel-table"), "Layers that take the most time of the device", ["layer", "phase", "device", "share", "arithmetic", "memory", "bound by"],
    shown.map((row) => {
      const make = () => ofTask(clock.tasks.filter((task) => task.layer === row.layer && task.phase === row.phase), row);
      return [row.layer, [PHASE[row.phase], null, "word"], [showSeconds(row.seconds), make], [`${((100 * row.seconds) / clock.device).toFixed(1)}%`],
        [row.flops ? `${showFlops(Math.round(row.flops / row.seconds))}/s` : "–"], [`${showCount(Math.round(row.bytes / row.seconds))}B/s`], [row.most.bound]];
    }));
}

// Whether ranks of a pipeline wait for each other.
const staged = () => clock.shared?.rank !== undefined;
const waitText = (seconds) => `${showSeconds(seconds)} (${shareText(seconds, clock.seconds)})`;

// What a rank's collectives take on their links, and what of it the device waits for, other stages among them.
function showSent() {
  const found = new Map();
  for (const { message, price, times, exposed } of clock.shared?.sums ?? []) {
    const name = `${message.axis} ${message.operation}`;
    const row = found.get(name) ?? { times: 0, seconds: 0, exposed: 0, link: price.queue, how: new Set() };
    found.set(name, Object.assign(row, { times: row.times + times, seconds: row.seconds + times * price.seconds, exposed: row.exposed + exposed }));
    row.how.add(price.algorithm);
  }
  $("sent-table").hidden = !found.size;
  const rows = [...found].map(([name, row]) => [name, [showExact(Math.round(row.times))], [showSeconds(row.seconds)], [showSeconds(row.exposed)],
    [row.link, null, "word"], [[...row.how].join(", "), null, "word"]]);
  if (staged()) rows.push(["other stages", [""], [""], [showSeconds(clock.shared.bubble)], ["", null, "word"], ["", null, "word"]]);
  fill($("sent-table"), "Seconds of collectives by axis and operation", ["collectives", "times", "seconds", "waited for", "over", "by"], rows);
}

// What a layer asks of the machine: the formulas that its seconds follow from.
function ofTask(tasks, row) {
  return {
    what: `${row.layer}, ${PHASE[row.phase]}`, result: `${showSeconds(row.seconds)} of the device, from these numbers of its kernels`,
    parts: tasks.flatMap((task) => [["FLOP", task.numbers[0]], ["bytes read", task.numbers[1]], ["bytes written", task.numbers[2]]]),
  };
}

// Every kernel by its FLOPs a byte and its FLOP/s, under what the machine can do at most; area is the share of time.
const tick = (value) => (value < 1 ? String(value) : showCount(value).replace(/\.0+(?= |$)/, ""));
function showRoofline() {
  const [width, height, left, bottom] = [widthOf("roofline", 960), 300, 58, 34];
  const { machine } = clock;
  const dots = clock.tasks.filter((task) => task.flops && task.bytes && task.seconds)
    .map((task) => ({ task, x: task.flops / task.bytes, y: task.flops / task.seconds }));
  const ceiling = Math.max(clock.peak, machine.vectorPeak);
  const low = Math.floor(Math.log10(Math.min(0.05, ...dots.map((dot) => dot.x))));
  const high = Math.ceil(Math.log10(Math.max((4 * ceiling) / machine.bandwidth, ...dots.map((dot) => dot.x))));
  const top = Math.ceil(Math.log10(ceiling));
  const floor_ = Math.max(top - 6, Math.floor(Math.log10(machine.bandwidth * 10 ** low)));
  const across = (x) => left + ((Math.log10(x) - low) / (high - low)) * (width - left - 8);
  const up = (y) => height - bottom - ((Math.log10(y) - floor_) / (top - floor_)) * (height - bottom - 12);
  const svg = picture;
  const parts = [];
  for (let at = low; at <= high; at += 1)
    parts.push(svg("line", { class: "grid", x1: across(10 ** at), x2: across(10 ** at), y1: 12, y2: height - bottom }),
      svg("text", { x: across(10 ** at), y: height - bottom + 15, "text-anchor": at === high ? "end" : "middle" }, tick(Number(`1e${at}`))));
  for (let at = floor_; at <= top; at += 1)
    parts.push(svg("line", { class: "grid", x1: left, x2: width - 8, y1: up(10 ** at), y2: up(10 ** at) }),
      svg("text", { x: left - 6, y: up(10 ** at) + 4, "text-anchor": "end" }, tick(10 ** at)));
  parts.push(svg("text", { x: (left + width) / 2, y: height - 3, "text-anchor": "middle" }, "FLOP a byte"),
    svg("text", { x: left + 4, y: 10 }, "FLOP/s"));
  const ridge = (rate) => Math.min(10 ** high, Math.max(10 ** low, rate / machine.bandwidth));
  for (const rate of new Set([clock.peak, machine.vectorPeak]))
    parts.push(svg("line", { class: "roof", x1: across(ridge(rate)), x2: width - 8, y1: up(rate), y2: up(rate) }),
      svg("text", { x: width - 10, y: up(rate) + (rate === ceiling && up(rate) > 18 ? -5 : 13), "text-anchor": "end" }, `${showCount(rate)}FLOP/s`));
  const start = Math.max(10 ** low, 10 ** floor_ / machine.bandwidth);
  parts.push(svg("line", { class: "roof", x1: across(start), x2: across(ridge(ceiling)), y1: up(start * machine.bandwidth), y2: up(ridge(ceiling) * machine.bandwidth) }));
  for (const { task, x, y } of dots.sort((a, b) => b.task.seconds - a.task.seconds)) {
    if (y < 10 ** floor_) continue;
    const radius = Math.max(2.5, 26 * Math.sqrt(task.seconds / clock.device));
    const dot = svg("circle", { cx: across(x), cy: up(y), r: radius, fill: BOUNDS[task.bound] },
      svg("title", {}, `${task.layer}, ${PHASE[task.phase]}: ${showSeconds(task.seconds)}, bound by ${task.bound}`));
    dot.classList.add("has-formula");
    dot.formula = () => ofTask([task], task);
    parts.push(dot);
  }
  const legend = Object.entries(BOUNDS).map(([bound, colour]) => {
    const dot = h("span", { class: "dot" });
    dot.style.background = colour;
    return h("span", {}, dot, bound === "overhead" ? "start of kernels" : bound);
  });
  const roofline = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Roofline: each kernel's FLOP a byte and FLOP/s; the table below has the largest" }, ...parts);
  $("roofline").replaceChildren(roofline, h("p", { class: "legend" }, "bound by ", ...legend));
}

// ---- Layers

function groupsOf(rows, depth) {
  if (depth > 1) return rows.map((row) => ({ name: row.name, rows: [row] }));
  const found = new Map();
  for (const row of rows) {
    const name = row.name.split(".").slice(0, depth + 1).join(".");
    if (!found.has(name)) found.set(name, { name, rows: [] });
    found.get(name).rows.push(row);
  }
  return [...found.values()];
}
const sumOf = (rows, columns) => rows.reduce((sum, row) => columns.reduce((part, column) => part + row.values[column], sum), 0n);

function ofRows(what, pick, columns, unit, show) {
  return () => {
    const rows = pick();
    const parts = rows.flatMap((row) => columns.map((column) => [row.name, row.numbers[column]]));
    return { what, unit, show, value: sumOf(rows, columns), parts };
  };
}

function showLayers() {
  const columns = COLUMNS.filter(([column]) => !OPTIONAL.has(column) || now.rows.some((row) => row.values[column]));
  const groups = groupsOf(now.rows, state.depth);
  const rows = groups.map((group) => {
    const pick = () => groupsOf(now.rows, state.depth).find((each) => each.name === group.name)?.rows ?? [];
    const repeat = group.rows.every((row) => row.values.repeat === group.rows[0].values.repeat) ? group.rows[0].values.repeat : 1n;
    const kind = group.rows.length === 1 ? group.rows[0].kind : `${group.rows.length} layers`;
    return [
      group.name, [kind, null, "word"], [repeat > 1n ? `× ${showExact(repeat)}` : ""],
      ...columns.map(([column, label, show, unit]) => {
        const value = sumOf(group.rows, [column]);
        return [value ? show(value) : "–", ofRows(`${group.name}, ${label}`, pick, [column], unit, show), value ? "" : "zero"];
      }),
    ];
  });
  rows.push(["all", ["", null, "word"], [""], ...columns.map(([column, label, show, unit]) =>
    [show(sumOf(now.rows, [column])), ofRows(label, () => now.rows, [column], unit, show)])]);
  const heads = ["layer", "kind", "repeats", ...columns.map(([, label]) => label)];
  fill($("layers-table"), "Layers, all their repeats together", heads, rows, new Set([rows.length - 1]));
}

// Rectangles of areas in proportion, as near to squares as rows of them get (Bruls, Huizing and van Wijk 2000).
function squarified(items, x, y, width, height) {
  const placed = [];
  const total = items.reduce((sum, item) => sum + item.size, 0);
  let left = [...items].sort((a, b) => b.size - a.size).map((item) => ({ item, area: (item.size / total) * width * height }));
  while (left.length) {
    const side = Math.min(width, height);
    const worst = (row, sum) => Math.max(...row.map(({ area }) => Math.max((side * side * area) / (sum * sum), (sum * sum) / (side * side * area))));
    let count = 1;
    let sum = left[0].area;
    while (count < left.length && worst(left.slice(0, count + 1), sum + left[count].area) <= worst(left.slice(0, count), sum)) {
      sum += left[count].area;
      count += 1;
    }
    const thick = sum / side;
    let along = 0;
    for (const { item, area } of left.slice(0, count)) {
      const long = area / thick;
      placed.push(width < height ? { item, x: x + along, y, w: long, h: thick } : { item, x, y: y + along, w: thick, h: long });
      along += long;
    }
    if (width < height) [y, height] = [y + thick, height - thick];
    else [x, width] = [x + thick, width - thick];
    left = left.slice(count);
  }
  return placed;
}

function showMap() {
  const map = $("map");
  const [title, columns, show] = AREAS[state.area];
  const unit = show === showBytes ? "bytes" : show === showFlops ? "FLOP" : "parameters";
  const width = map.clientWidth || 600;
  const height = map.clientHeight || 272;
  const depth = now.rows.some((row) => row.name.includes(".")) ? 1 : 0;
  const groups = groupsOf(now.rows, depth).map((group) => ({ ...group, size: Number(sumOf(group.rows, columns)) }));
  const total = sumOf(now.rows, columns);
  const tiles = [...map.children];
  let used = 0;
  const sorted = [...groups].sort((a, b) => b.size - a.size);
  for (const { item: group, x, y, w, h: high } of squarified(groups.filter((group) => group.size > 0), 0, 0, width, height)) {
    const colour = PALETTE[Math.min(sorted.indexOf(sorted.find((each) => each.name === group.name)), PALETTE.length - 1)];
    const rows = group.rows.map((row) => ({ row, size: Number(sumOf([row], columns)) })).filter((each) => each.size > 0);
    for (const { item: { row }, x: left, y: top, w: wide, h: tall } of squarified(rows, x, y, w, high)) {
      const value = sumOf([row], columns);
      if (used === tiles.length) {
        tiles.push(h("div", { class: "tile", role: "img", tabindex: used ? "-1" : "0" }));
        map.append(tiles[used]);
      }
      const tile = tiles[used];
      used += 1;
      const share = shareText(value, total);
      tile.title = `${row.name}: ${show(value)}, ${share}`;
      tile.setAttribute("aria-label", `${row.name}: ${show(value)}, ${share} of ${title}`);
      Object.assign(tile.style, { left: `${left}px`, top: `${top}px`, width: `${wide}px`, height: `${tall}px`, background: colour });
      if (wide > 54 && tall > 22) {
        const parts = row.name.split(".");
        const name = (wide > 130 ? parts.slice(-2) : parts.slice(-1)).join(".");
        tile.replaceChildren(h("b", {}, name), tall > 38 ? share : "");
      } else if (tile.firstChild) tile.replaceChildren();
      explainable(tile, ofRows(`${row.name}, ${title}`, () => now.rows.filter((each) => each.name === row.name), columns, unit, show));
    }
  }
  for (const tile of tiles.slice(used)) tile.remove();
}

// ---- The same question elsewhere

const bare = (label) => (/^\d+$/.test(label) ? label : { none: "None", true: "True", false: "False" }[label]);
const quoted = (text) => JSON.stringify(text);
function python(name, label) {
  if (name === "checkpoint" && label.includes(",")) return `(${label.split(",").map(quoted).join(", ")})`;
  if (["checkpoint", "loss"].includes(name) && label === "none") return quoted(label);
  return bare(label) ?? quoted(label);
}
const shell = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// What the question has that is not the model's own: settings and fields, as [name, label].
function asked() {
  const training = model().training(state.choices);
  const settings = Object.entries(data().fixed);
  const fields = [];
  const image = {};
  for (const size of data().sizes) {
    const value = state.values[size.name];
    if (size.setting === "image") image[size.name.split(".")[1]] = value;
    else if (size.setting) settings.push([size.name === "seq" && decoding() ? "past" : size.name, String(value)]);
    else if (value !== size.value) fields.push([size.name, String(value)]);
  }
  for (const choice of data().choices) {
    const label = choice.labels[state.choices[choice.name]];
    if (!choice.setting) {
      if (state.choices[choice.name]) fields.push([choice.name, label]);
    } else if (training || !OF_TRAINING.has(choice.name)) settings.push([choice.name, label]);
  }
  if (state.machine >= 0) {
    settings.push(["on", DATA.machines[state.machine].name]);
    if (DATA.stack !== "eager") settings.push(["stack", DATA.stack]);
  }
  if ("height" in image) settings.push(["image", [image.height, image.width]]);
  return { settings, fields };
}

function entriesOf(fields) {
  const entries = [...data().entries];
  for (const [name, label] of fields) {
    const [first, last] = name.split(":").map(Number);
    entries.fill(Number(label), first, last + 1);
  }
  return entries;
}

function asPython() {
  const { settings, fields } = asked();
  const spread = fields.filter(([name]) => /^\d+:\d+$/.test(name));
  const own = fields.filter(([name]) => !/^\d+:\d+$/.test(name));
  const derived = data().kind === "CNN" ? own.filter(([name]) => name === "width") : [];
  const plain = own.filter((field) => !derived.includes(field));
  const values = plain.map(([name, label]) => `${quoted(name)}: ${python(name, label)}`);
  if (spread.length) values.push(`"sizes": [${entriesOf(spread).join(", ")}]`);
  let from = data().name ? quoted(data().name) : "model";
  if (fields.length && data().name) from = `cm.load(${from})`;
  if (values.length) from += `.with_fields({${values.join(", ")}})`;
  for (const [name, label] of derived) from += `.vary(${quoted(name)}, ${label})`;
  const given = settings.map(([name, label]) =>
    Array.isArray(label) ? `${name}=(${label.join(", ")})` : `${name}=${python(name, label)}`);
  const before = data().name ? [] : [`# model: ${data().kind} that this page was made of`];
  return ["import costmodel as cm", "", ...before, `cm.predict(${[from, ...given].join(", ")})`].join("\n");
}

function asShell() {
  const { settings, fields } = asked();
  if (fields.some(([name]) => /^\d+:\d+$/.test(name)))
    return "# sizes in a list are changed in a file: costmodel show MODEL > my-model.yaml";
  const words = ["costmodel", fields.length ? "sweep" : "predict", shell(data().name || "my-model.yaml")];
  for (const [name, label] of fields) words.push("--over", shell(`${name}=${label}`));
  for (const [name, label] of settings)
    words.push(`--${name.replaceAll("_", "-")}`, shell(Array.isArray(label) ? label.join("x") : label));
  return words.join(" ");
}

function buildAgain() {
  const block = (title, make) => {
    const text = h("pre", { tabindex: "0", "aria-label": title });
    const button = h("button", { type: "button" }, `Copy ${title}`);
    button.addEventListener("click", async () => {
      await copy(text.textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = `Copy ${title}`), 1500);
    });
    return { element: h("div", { class: "code" }, text, button), fill: () => (text.textContent = make()) };
  };
  const blocks = [block("Python", asPython), block("shell", asShell), block("link", () => location.href.split("#")[0] + fragment())];
  $("again").replaceChildren(...blocks.map((each) => each.element));
  return () => blocks.forEach((each) => each.fill());
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = h("textarea", {});
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}

// ---- State in the link

function fragment() {
  const written = new URLSearchParams();
  if (models.length > 1) written.set("model", data().title);
  const put = (prefix, values, choices) => {
    for (const size of data().sizes) if (values[size.name] !== size.value) written.set(prefix + size.name, String(values[size.name]));
    for (const choice of data().choices)
      if (choices[choice.name]) written.set(prefix + choice.name, choice.labels[choices[choice.name]]);
  };
  put("", state.values, state.choices);
  if (state.budget !== "24 GiB") written.set("budget", state.budget);
  if (state.machine >= 0) written.set("machine", DATA.machines[state.machine].name);
  if (state.other) {
    written.set("pinned", "1");
    put("pinned.", state.other.values, state.other.choices);
  }
  return `#${written}`;
}

function readFragment() {
  const written = new URLSearchParams(location.hash.slice(1));
  const place = models.findIndex((each) => each.data.title === written.get("model"));
  state.model = Math.max(0, place);
  const read = (prefix) => {
    const values = {};
    const choices = {};
    for (const size of data().sizes) {
      const text = written.get(prefix + size.name);
      if (text !== null && /^\d{1,15}$/.test(text)) values[size.name] = Number(text);
    }
    for (const choice of data().choices) {
      const at = choice.labels.indexOf(written.get(prefix + choice.name));
      if (at >= 0) choices[choice.name] = at;
    }
    return [values, choices];
  };
  begin(...read(""));
  state.budget = written.get("budget") ?? "24 GiB";
  state.machine = DATA.machines.findIndex((each) => each.name === written.get("machine"));
  state.other = null;
  if (written.get("pinned")) {
    const now = [state.values, state.choices];
    begin(...read("pinned."));
    state.other = { values: state.values, choices: state.choices };
    [state.values, state.choices] = now;
  }
}

// ---- All together

let fillAgain = () => {};

function refusalText(found) {
  if (found.why === "range")
    return `${meaningOf(found.size)} is outside what this page holds, ${stopsText(found.size).replace(/^from /, "")}.\n` +
      "Make another page with a wider range, or ask costmodel predict.";
  if (found.why === "refused") {
    const point = found.point?.map((value, at) => `${data().sizes[at].symbol} = ${showExact(value)}`);
    const same = found.point?.every((value, at) => value === state.values[data().sizes[at].name]);
    return `There is no answer here. ${point && !same ? `As at ${point.join(", ")}: ` : ""}${found.message}.`;
  }
  const turn = found.path[model().turn(found.path)];
  const words = conditionWords(turn);
  const sizes = sizesOf(turn);
  const where = words ? `where ${words}, as here` : `for how a condition${sizes && ` on ${sizes}`} comes out here`;
  return `This page holds no formula ${where}. Most likely there is no such model or batch: ask costmodel predict, as below.`;
}

// Draw the page before the next frame, however often it is asked for until then.
function soon() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(update);
}

// Draw what takes longer once nothing moves.
function later() {
  clearTimeout(drawing);
  drawing = setTimeout(() => {
    if (DATA.machines.length) showMachines(true);
    showRequests();
    showCourse();
    if (moved) showCurve();
  }, 200);
}

function update() {
  const found = model().at(state.values, state.choices);
  const refused = "why" in found;
  $("refusal").hidden = !refused;
  $("results").classList.toggle("stale", refused);
  if (refused) {
    $("refusal").textContent = refusalText(found);
    for (const each of Object.values(cards)) {
      each.value.textContent = "–";
      each.exact.textContent = each.other.textContent = "";
      each.element.classList.remove("fits", "over");
    }
  }
  else {
    pinned = null;
    if (state.other) {
      const other = model().at(state.other.values, state.other.choices);
      pinned = "why" in other ? null : other;
      model().set(state.values);
    }
    now = found;
    showCards();
    showBars();
    showMemory();
    if (DATA.machines.length) showMachines(false);
    showDevices();
    later();
    showFlopsTable();
    showTime();
    showLayers();
    showMap();
    redraw();
  }
  const training = model().training(state.choices);
  data().choices.forEach((choice, number) => {
    const row = $(`choice-${number}-row`);
    const off = !training && OF_TRAINING.has(choice.name);
    row?.classList.toggle("off", off);
    if (row) row.querySelector("select, input").disabled = off;
  });
  showSizes();
  fillAgain();
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    $("said").textContent = refused ? "" : `Peak ${cards.peak.value.textContent}, ${cards.fits.value.textContent} ${state.budget}; `
      + `${cards.params.value.textContent} parameters, ${cards.flops.value.textContent} a step`;
  }, 700);
  clearTimeout(pending);
  pending = setTimeout(() => {
    try {
      history.replaceState(null, "", fragment());
    } catch {
      // some browsers refuse it on files
    }
  }, 300);
}

function open() {
  document.title = `${data().title}: costmodel explorer`;
  $("title").textContent = data().title;
  $("subtitle").textContent = `${data().kind}. Exact numbers from closed forms, worked out on this page.`;
  $("model").value = String(state.model);
  $("compare").setAttribute("aria-pressed", String(Boolean(state.other)));
  const offered = data().choices.map((choice) => `${choice.name} ${choice.labels.join(", ")}`);
  const refused = [...new Set(Object.values(data().refused))];
  $("notes").textContent = [
    `This page holds ${Object.keys(data().trees).length} combinations of ${offered.join("; ")}.`,
    ...(refused.length ? [`Left out: ${refused.join("; ")}.`] : []),
    ...data().notes,
    "Numbers are BigInt: whole, and exact at any size. Formulas are those of costmodel.predict, each with where it holds.",
  ].join(" ");
  buildControls();
  shown = moved = null;
  $("curve").hidden = true;
  buildCards();
  shown = cards.peak.element.formula;
  update();
}

function move(event) {
  const cell = event.target.closest?.("td, .tile, .bar-row");
  const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  if (!cell || !steps) return;
  let next = null;
  if (cell.tagName === "DIV") {
    next = steps[0] + steps[1] > 0 ? cell.nextElementSibling : cell.previousElementSibling;
    if (!next?.hasAttribute("tabindex")) return;
  } else {
    const line = steps[0] > 0 ? cell.parentElement.nextElementSibling : steps[0] < 0 ? cell.parentElement.previousElementSibling : cell.parentElement;
    next = line?.cells[cell.cellIndex + steps[1]];
    if (next?.tagName === "TH") next = null;
  }
  if (!next) return;
  event.preventDefault();
  cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function start() {
  $("model").append(...optionsOf(models.map((each) => each.data.title)));
  $("switch").hidden = models.length < 2;
  $("area").append(...optionsOf(AREAS.map(([title]) => title)));
  $("depth").append(...optionsOf(DEPTHS));
  $("depth").value = String(state.depth);
  fillAgain = buildAgain();
  $("model").addEventListener("change", () => {
    state.model = Number($("model").value);
    state.other = null;
    begin();
    open();
  });
  $("area").addEventListener("change", () => {
    state.area = Number($("area").value);
    showMap();
  });
  $("depth").addEventListener("change", () => {
    state.depth = Number($("depth").value);
    showLayers();
  });
  $("compare").addEventListener("click", () => {
    state.other = state.other ? null : { values: { ...state.values }, choices: { ...state.choices } };
    $("compare").setAttribute("aria-pressed", String(Boolean(state.other)));
    update();
  });
  $("reset").addEventListener("click", () => {
    begin();
    open();
  });
  document.addEventListener("pointerover", lookAt);
  document.addEventListener("focusin", lookAt);
  document.addEventListener("keydown", move);
  window.addEventListener("resize", () => {
    if (!now) return;
    showMap();
    if (clock) showRoofline();
    later();
    document.querySelectorAll(".scroll").forEach(stack);
  });
  $("fold").addEventListener("click", () => {
    const folded = $("dock").classList.toggle("folded");
    $("fold").setAttribute("aria-expanded", String(!folded));
  });
  window.addEventListener("hashchange", () => {
    if (location.hash === fragment()) return;
    readFragment();
    open();
  });
  readFragment();
  open();
}
