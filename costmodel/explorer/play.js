// A step of a layout on the cluster of a machine, played by what Python wrote of it.

const CEILING = "ceiling";

// What the laws of a machine are of in a layout, with typical constants or with one of them at an end of its range.
function modelOf(machine, layout, tier, end = null) {
  const parameters = parametersOf(machine, end);
  const constants = Object.fromEntries(Object.entries(machine.constants).map(([name, number]) => [name, parameters[number]]));
  const starts = machine.starts[layout.tp > 1 ? 1 : 0].map((number) => (tier === CEILING ? 0 : parameters[number]));
  return { machine, tier, parameters, constants, launch_seconds: starts[0], start_seconds: starts };
}

// Of the host to start each task's kernel once.
const hostSeconds = (tasks, model) => tasks.map(({ starts }) => starts.reduce((all, each, kind) => all + each * model.start_seconds[kind], 0));

ProgramSet.prototype.play = function (player, name, model, seconds, last = true) {
  const program = item(this.programs, name);
  const sums = (of) => program.rows.map((row) => row.reduce((all, [task, share]) => all + share * of[task], 0));
  Object.assign(player, { input_sums_beside: model.stack.input_sums_beside, blocking: model.stack.blocking });
  player.play(program, sums(seconds), sums(hostSeconds(this.tasks, model)), seconds, last);
};

class Pipeline extends PipelineWork {
  // stages: programs of each. endings: of each rank what it does after its passes. messages: what a stage hands to the next, if any does.
  // blocking_sends: whether a rank waits for that.
  constructor(schedule, stages, endings, messages, blocking_sends) {
    super();
    const ranks = endings.map((_, rank) => ({ rank, stages: schedule.stages_of(rank) }));
    Object.assign(this, { schedule, ranks, endings, messages, blocking_sends, stages: new Dict(enumerate(stages)), kinds: [...new Set(stages)] });
  }

  ending_of({ rank }) {
    return this.endings[rank];
  }

  handed() {
    return this.messages;
  }
}

// The step of a layout. tasks: its kernels. played: what Python wrote of it. names: of its degrees. value: gives that of
// a formula by number.
class LayoutStep {
  constructor(tasks, played, names, value) {
    const of = (number) => Number(value(number));
    const [[runtime, sp, training, overlaps, experts_beside, sums_beside, blocking, input_sums_beside], degrees, microBatches, contractions, sets, [kind, ...order]] = played;
    this.layout = new Layout();
    degrees.forEach((number, place) => (this.layout[names[place]] = number < 0 ? null : of(number)));
    Object.assign(this.layout, { runtime, sp });
    Object.assign(this, { training, contractions: of(contractions), stack: { experts_beside, sums_beside, blocking, input_sums_beside } });
    const message = ([operation, axis, dtype, devices, elements, bytes]) =>
      Object.assign(new Message(operation, axis, of(devices), of(elements), dtype), { bytes: of(bytes) });
    const event = ([kind, ...parts]) => {
      if (kind === "Repeated") return new Repeated(parts[0].map(event), of(parts[1]));
      if (kind === "Sending") parts[2] = message(parts[2]);
      if (kind === "Parts") parts[4] = parts[4].map(([part, sent]) => [part, message(sent)]);
      return new { Stretch, Sending, Arrival, Drain, Parts }[kind](...parts);
    };
    const program = ([name, events, rows, ready]) => [name, {
      events: events.map(event), ready: ready.map(of),
      rows: rows.map((row) => row.map(([task, count, times, happenings]) => [task, times === undefined ? count : (count * of(times)) / of(happenings)])),
    }];
    let before = 0;
    const made = sets.map(([kind, starts, programs]) => {
      const own = starts.map((each) => ({ ...tasks[before], starts: each.map(of), times: Number(tasks[before++].times) }));
      const times = ({ machine, tier, parameters }) =>
        own.map((task) => LAWS[machine.laws[task.law]](parameters, ...task.arguments)[tier === CEILING ? 1 : 0]);
      return Object.assign(new { RankWork, StageWork, ProgramSet }[kind](), {
        tasks: own, table: { times }, programs: new Dict(programs.map(program)), overlaps, alone: false, micro_batches: of(microBatches),
      });
    });
    const all = (numbers) => numbers.map((number) => made[number]);
    if (kind === "RankWork") [this.work] = all(order);
    else if (kind === "StagedPass") {
      const stages = all(order[0]);
      this.work = Object.assign(new StagedPass(), { stages, tasks: stages.flatMap((stage) => stage.tasks) });
    } else {
      const [stages, endings, schedule, perRank, handed, blocking_sends] = order;
      const runs = new SCHEDULES[schedule](this.layout.pp, perRank, of(microBatches));
      this.work = new Pipeline(runs, all(stages), all(endings), handed.map(message), blocking_sends);
    }
  }

  // Of a pipeline, what the rank does that has most to do on a machine.
  show(model) {
    const { work } = this;
    if (work instanceof Pipeline) work.shown = work.busiest(new Dict(work.kinds.map((kind) => [kind, kind.busy(kind.kernel_seconds(model))])));
  }

  // Seconds of each task's kernel, and the step as it was played.
  on(model) {
    const cluster = Object.assign(new Cluster(), model.machine.cluster);
    const prices = new Prices(new CollectiveModel(cluster, model.constants, model.tier), this.layout);
    return this.work.step({ ...model, stack: this.stack }, (message) => prices.__call__(message));
  }
}

// The step of an answer on a machine; why there is none, if there is none.
function timeOf({ played }, machine) {
  if (machine.cluster.why) return machine.cluster;
  const { layout } = played;
  try {
    Object.assign(new Cluster(), machine.cluster).place(layout);
  } catch (error) {
    return { why: error.message };
  }
  const model = modelOf(machine, layout, "typical");
  played.show(model);
  const [kernels, step] = played.on(model);
  const [floors, least] = played.on(modelOf(machine, layout, CEILING));
  const { tasks, shown } = played.work;
  const host = hostSeconds(tasks, model);
  return {
    tasks, kernels, floors, sums: step.sums, seconds: step.seconds, least: least.seconds, bubble: step.bubble, devices: layout.devices, rank: shown?.rank,
    hostOf: (phase) => tasks.reduce((all, task, at) => all + (task.phase === phase ? task.times * host[at] : 0), 0),
    secondsOf: (phase) => step.phases.get(phase, 0),
    useful: layout.share * played.contractions,
    exposed: step.sums.reduce((all, each) => all + each.exposed, 0),
    secondsAt: (end) => played.on(modelOf(machine, layout, "typical", end))[1].seconds,
    widened(low, typical, high) {
      const settings = { layout, training: played.training };
      const shared = { collectives: step.sums, optional: step.optional };
      const own = { low, typical, high };
      return { low: Math.max(least.seconds, faster_end(own, shared, settings)), high: slower_end(own, shared) };
    },
  };
}
