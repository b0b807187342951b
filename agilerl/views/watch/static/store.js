// A run as the page holds it: generations by columns, who descends from whom, and where each member is drawn.

export const NO_SOURCE = -1;
const QUANTILES = [0, 0.1, 0.5, 0.9, 1];

// The value below which a share of sorted values is, interpolated between its two neighbours; NaN without values.
export function quantile(sorted, share) {
  if (!sorted.length) return NaN;
  const place = share * (sorted.length - 1);
  const [low, high] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
  return low === high ? low : low + (place - Math.floor(place)) * (high - low);
}

// Curves [steps, values] over the union of their steps, each between its ends; their mean and standard deviation where
// all of them are.
export function overlay(curves) {
  const drawn = curves.filter(([steps]) => steps.length);
  const steps = [...new Set(drawn.flatMap(([own]) => own))].sort((a, b) => a - b);
  const series = drawn.map(([own, values]) => {
    let at = 0;
    return steps.map((step) => {
      if (step < own[0] || step > own.at(-1)) return null;
      while (at + 2 < own.length && own[at + 1] <= step) at += 1;
      if (own.length === 1) return values[0];
      const share = (step - own[at]) / (own[at + 1] - own[at]);
      return values[at] + share * (values[at + 1] - values[at]);
    });
  });
  const columns = steps.map((_, at) => series.map((values) => values[at]));
  const mean = columns.map((values) => (values.includes(null) ? null : values.reduce((sum, value) => sum + value) / values.length));
  const deviation = columns.map((values, at) => {
    if (mean[at] === null) return null;
    const squares = values.reduce((sum, value) => sum + (value - mean[at]) ** 2, 0);
    return values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : 0;
  });
  return { steps, series, mean, deviation };
}

export class Run {
  constructor() {
    this.clear();
    this.facts = {};
    this.now = null;
    this.log = [];
  }

  clear() {
    this.generations = [];
    this.parents = new Map(); // id -> id of its parent, null for a founder
    this.kinds = new Map(); // id -> kind of its birth
    this.texts = new Map(); // id -> what its birth changed
    this.bornIn = new Map();
    this.log = [];
    this.details = new Map();
    this.hyperparameters = [];
    this.maxMembers = 0;
    this.low = Infinity;
    this.high = -Infinity;
    this.lowest = Infinity;
    this.version = (this.version || 0) + 1; // of content that replaced other content
  }

  addBirths(columns) {
    columns.ids.forEach((id, at) => {
      this.parents.set(id, columns.parents[at]);
      this.kinds.set(id, columns.names[columns.kinds[at]]);
      this.bornIn.set(id, columns.generations[at]);
      if (columns.texts[at]) this.texts.set(id, columns.texts[at]);
    });
  }

  addGenerations(list) {
    for (const content of list) {
      const last = this.generations.at(-1);
      if (last && content.number <= last.number) {
        while (this.generations.length && this.generations.at(-1).number >= content.number) this.generations.pop();
        this.version += 1;
      }
      this.generations.push(this.placed(content));
    }
  }

  // Columns as typed arrays, with the row of each member: in the order of their parents, so that edges do not cross.
  placed(content) {
    const before = this.generations.at(-1);
    const count = content.ids.length;
    const ids = Float64Array.from(content.ids);
    const source = new Int32Array(count).fill(NO_SOURCE);
    const index = new Map();
    for (let at = 0; at < count; at += 1) {
      index.set(ids[at], at);
      if (content.parents[at] >= 0 && !this.parents.has(ids[at])) this.parents.set(ids[at], content.parents[at]);
      if (before) {
        let from = before.index.get(ids[at]);
        if (from === undefined) from = before.index.get(this.parents.get(ids[at]));
        if (from !== undefined) source[at] = from;
      }
    }
    const order = Array.from({ length: count }, (_, at) => at);
    const key = (at) => (source[at] === NO_SOURCE ? Infinity : before.row[source[at]]);
    const isOther = (at) => (source[at] !== NO_SOURCE && before.ids[source[at]] === ids[at] ? 0 : 1);
    order.sort((a, b) => {
      const [first, second] = [key(a), key(b)];
      return first === second ? isOther(a) - isOther(b) || ids[a] - ids[b] : first - second;
    });
    const row = new Int32Array(count);
    order.forEach((at, place) => { row[at] = place; });
    const fitness = Float64Array.from(content.fitness, (value) => (value === null ? NaN : value));
    const sorted = fitness.filter((value) => value === value).sort();
    const quantiles = QUANTILES.map((share) => quantile(sorted, share));
    if (sorted.length) {
      this.low = Math.min(this.low, quantiles[1]);
      this.lowest = Math.min(this.lowest, quantiles[0]);
      this.high = Math.max(this.high, quantiles[4]);
    }
    this.maxMembers = Math.max(this.maxMembers, count);
    const hp = {};
    for (const [name, values] of Object.entries(content.hp)) {
      hp[name] = Array.isArray(values) ? Float64Array.from(values, (value) => (value === null ? NaN : value)) : values;
      if (!this.hyperparameters.includes(name)) this.hyperparameters.push(name);
    }
    return { ...content, ids, index, source, row, order, fitness, quantiles, hp, count };
  }

  value(generation, name, at) {
    const values = generation.hp[name];
    return values === null || values === undefined ? NaN : typeof values === "number" ? values : values[at];
  }

  // [index of the generation, index of the member] from the founder to the best member, in the generation of its score.
  winnerPath() {
    const winner = this.now ? this.now.winner : null;
    let at = NO_SOURCE;
    let number = this.generations.length - 1;
    for (; number >= 0 && winner !== null; number -= 1) {
      if (this.generations[number].number > winner.generation) continue;
      at = this.generations[number].index.get(winner.id) ?? NO_SOURCE;
      break;
    }
    const path = [];
    for (; at !== NO_SOURCE && number >= 0; number -= 1) {
      path.push([number, at]);
      at = this.generations[number].source[at];
    }
    return path.reverse();
  }

  leader() {
    const path = this.winnerPath();
    if (!path.length) return null;
    const [number, at] = path.at(-1);
    const generation = this.generations[number];
    return { id: generation.ids[at], generation: generation.number, fitness: generation.fitness[at], held: generation.confirmation };
  }

  fitnessRange() {
    if (!(this.high >= this.low)) return [0, 1];
    const span = this.high - this.low;
    const low = this.low - this.lowest > 1.5 * span ? this.low : this.lowest; // single failures do not flatten the rest
    return low === this.high ? [low - 1, this.high + 1] : [low, this.high];
  }
}

export function short(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  if (value !== 0 && (Math.abs(value) < 1e-2 || Math.abs(value) >= 1e6)) {
    const [mantissa, exponent] = value.toExponential(2).split("e");
    return `${mantissa.replace(/\.?0+$/, "")}e${Number(exponent)}`;
  }
  return String(Number(value.toPrecision(digits)));
}

export function count(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return String(Math.round(value));
}

export function clock(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const whole = Math.round(seconds);
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  return `${hours ? `${hours}:` : ""}${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1e9 ? `${(value / 1e9).toFixed(1)} GB` : `${Math.round(value / 1e6)} MB`;
}
