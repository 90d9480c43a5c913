// A step of a layout on the cluster of a machine, played by what Python wrote of it.

const CEILING = "ceiling";

// What the laws of a machine are of with typical constants, or with one of them at an end of its range.
function modelOf(machine, tier, end = null) {
  const parameters = parametersOf(machine, end);
  const constants = Object.fromEntries(Object.entries(machine.constants).map(([name, number]) => [name, parameters[number]]));
  const starts = machine.starts.map((number) => (tier === CEILING ? 0 : parameters[number]));
  return { machine, tier, parameters, constants, launch_seconds: starts[0], start_seconds: starts };
}

class Rank extends RankWork {
  // tasks: its kernels. played: what Python wrote of it. names: of its degrees. value: gives that of a formula by number.
  constructor(tasks, played, names, value) {
    super();
    const of = (number) => Number(value(number));
    const [[runtime, sp, training, overlaps], degrees, microBatches, contractions, starts, programs] = played;
    this.layout = new Layout();
    degrees.forEach((number, place) => (this.layout[names[place]] = number < 0 ? null : of(number)));
    Object.assign(this.layout, { runtime, sp });
    this.tasks = tasks;
    Object.assign(this, { training, overlaps, alone: false, micro_batches: of(microBatches), contractions: of(contractions) });
    this.starts = starts.map((each) => each.map(of));
    this.table = {
      times: ({ machine, tier, parameters }) =>
        tasks.map((task) => LAWS[machine.laws[task.law]](parameters, ...task.arguments)[tier === CEILING ? 1 : 0]),
    };
    const message = ([operation, axis, dtype, devices, elements, bytes]) =>
      Object.assign(new Message(operation, axis, of(devices), of(elements), dtype), { bytes: of(bytes) });
    const event = ([kind, ...parts]) => {
      if (kind === "Repeated") return new Repeated(parts[0].map(event), of(parts[1]));
      if (kind === "Sending") parts[2] = message(parts[2]);
      if (kind === "Parts") parts[4] = parts[4].map(([part, sent]) => [part, message(sent)]);
      return new { Stretch, Sending, Arrival, Drain, Parts }[kind](...parts);
    };
    this.programs = Object.fromEntries(programs.map(([events, rows, ready], place) => [["passes", "ending"][place], {
      events: events.map(event), ready: ready.map(of),
      rows: rows.map((row) => row.map(([task, count, times, happenings]) => [task, times === undefined ? count : (count * of(times)) / of(happenings)])),
    }]));
  }

  play(player, name, model, seconds, last = true) {
    const program = this.programs[name];
    const host = this.hostSeconds(model);
    const sums = (of) => program.rows.map((row) => row.reduce((all, [task, share]) => all + share * of[task], 0));
    player.play(program, sums(seconds), sums(host), seconds, last);
  }

  // Of the host to start each task's kernel once.
  hostSeconds(model) {
    return this.starts.map((many) => many.reduce((all, each, kind) => all + each * model.start_seconds[kind], 0));
  }

  // Seconds of each task's kernel, and the step as it was played.
  on(model) {
    const cluster = Object.assign(new Cluster(), model.machine.cluster);
    const prices = new Prices(new CollectiveModel(cluster, model.constants, model.tier), this.layout);
    return this.step(model, (message) => prices.__call__(message));
  }
}

// The step of an answer on a machine; why there is none, if there is none.
function timeOf({ played: rank }, machine) {
  if (!rank) return { why: "a page has none of a pipeline's stages" };
  if (machine.cluster.why) return machine.cluster;
  const { layout } = rank;
  try {
    Object.assign(new Cluster(), machine.cluster).place(layout);
  } catch (error) {
    return { why: error.message };
  }
  const model = modelOf(machine, "typical");
  const [kernels, step] = rank.on(model);
  const [floors, least] = rank.on(modelOf(machine, CEILING));
  const host = rank.hostSeconds(model);
  return {
    kernels, floors, sums: step.sums, seconds: step.seconds, least: least.seconds, devices: layout.devices,
    hostOf: (phase) => rank.tasks.reduce((all, task, at) => all + (task.phase === phase ? Number(task.times) * host[at] : 0), 0),
    secondsOf: (phase) => step.phases.get(phase, 0),
    useful: (layout.samplers / layout.devices) * rank.contractions,
    exposed: step.sums.reduce((all, each) => all + each.exposed, 0),
    secondsAt: (end) => rank.on(modelOf(machine, "typical", end))[1].seconds,
    widened(low, typical, high) {
      const time = Object.assign(new Time(), { prediction: { settings: { layout, training: rank.training } } });
      const shared = { collectives: step.sums, optional: step.optional };
      const own = { low, typical, high };
      return { low: Math.max(least.seconds, time._faster(own, shared)), high: time._slower(own, shared) };
    },
  };
}
