// Curves by generation: uPlot draws axes and single lines, the many thin lines of members are one path beneath them.
import { NO_SOURCE, count, overlay, short } from "./store.js";

const MAX_SEGMENTS = 5000; // of member lines in one chart
const LOG_RATIO = 20;

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function axis(values) {
  return {
    stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("line"), width: 1, size: 4 },
    font: "11px system-ui, sans-serif", ...values,
  };
}

// Round values of a logarithmic axis: 1, 2 and 5 times powers of ten, powers alone where those are enough.
function logSplits(low, high) {
  const splits = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const digit of Math.log10(high / low) > 2.5 ? [1] : [1, 2, 5]) splits.push(Number(`${digit}e${power}`));
  }
  return splits.filter((value) => value >= low && value <= high);
}

class Chart {
  constructor(element, run, height) {
    this.element = element;
    this.run = run;
    this.height = height;
    this.plot = null;
    this.note = "";
  }

  get width() { return Math.max(200, Math.floor(this.element.clientWidth)); }

  destroy() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }

  draw() {
    if (!this.run.generations.length) { this.destroy(); return; }
    const data = this.data();
    this.path = this.run.winnerPath();
    if (!this.plot) {
      this.plot = new uPlot(this.options(), data, this.element);
    } else {
      if (this.plot.width !== this.width) this.plot.setSize({ width: this.width, height: this.height });
      this.plot.setData(data);
    }
  }

  numbers() { return this.run.generations.map((generation) => generation.number); }

  common(series, range, more = {}) {
    const values = (_, splits) => splits.map((value) => (value === null ? "" : short(value)));
    return {
      width: this.width, height: this.height, series,
      legend: { live: true, markers: { show: false } },
      cursor: { y: false, drag: { x: true, y: false }, sync: { key: "generations" } },
      padding: [8, 10, 0, 0],
      scales: { x: { time: false }, y: { range, ...more } },
      axes: [axis({ size: 26, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }), axis({ size: 52, values, ...(more.distr === 3 ? { splits: (_, __, low, high) => logSplits(low, high), filter: (_, splits) => splits } : {}) })],
      hooks: { drawAxes: [(plot) => this.beneath(plot)] },
    };
  }

  // Segments from parent to child. Where there are too many, every n-th member of a generation, and their number is said.
  memberLines(plot, value) {
    const { generations } = this.run;
    const [first, last] = [plot.scales.x.min, plot.scales.x.max];
    const each = Math.max(4, Math.floor(MAX_SEGMENTS / Math.max(1, generations.length)));
    const path = new Path2D();
    let isThinned = false;
    for (let number = 1; number < generations.length; number += 1) {
      const [before, generation] = [generations[number - 1], generations[number]];
      if (generation.number < first || before.number > last) continue;
      const stride = Math.max(1, Math.ceil(generation.count / each));
      isThinned = isThinned || stride > 1;
      const [left, right] = [plot.valToPos(before.number, "x", true), plot.valToPos(generation.number, "x", true)];
      for (let at = 0; at < generation.count; at += stride) {
        const from = generation.source[at];
        if (from === NO_SOURCE) continue;
        const [start, end] = [value(before, from), value(generation, at)];
        if (!(start === start && end === end)) continue;
        path.moveTo(left, plot.valToPos(start, "y", true));
        path.lineTo(right, plot.valToPos(end, "y", true));
      }
    }
    this.clipped(plot, (context) => {
      context.strokeStyle = colour("faint");
      const isFew = this.run.maxMembers <= 12;
      context.globalAlpha = isFew ? 0.75 : 0.4;
      context.lineWidth = (isFew ? 1.3 : 1) * devicePixelRatio;
      context.stroke(path);
    });
    return isThinned;
  }

  clipped(plot, draw) {
    const context = plot.ctx;
    context.save();
    context.beginPath();
    context.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
    context.clip();
    draw(context);
    context.restore();
  }

  rule(plot, value, name, text) {
    const at = plot.valToPos(value, "y", true);
    if (!(at >= plot.bbox.top && at <= plot.bbox.top + plot.bbox.height)) return;
    this.clipped(plot, (context) => {
      context.strokeStyle = context.fillStyle = colour(name);
      context.lineWidth = devicePixelRatio;
      context.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
      context.beginPath();
      context.moveTo(plot.bbox.left, at);
      context.lineTo(plot.bbox.left + plot.bbox.width, at);
      context.stroke();
      if (text) {
        context.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
        const isAbove = at - plot.bbox.top > 16 * devicePixelRatio;
        context.textBaseline = isAbove ? "bottom" : "top";
        context.textAlign = "left";
        context.fillText(text, plot.bbox.left + 6 * devicePixelRatio, at + (isAbove ? -2 : 4) * devicePixelRatio);
      }
    });
  }

  // The line of the best member and its ancestors, by generation; null where it is not.
  winnerLine(value) {
    const line = new Array(this.run.generations.length).fill(null);
    for (const [number, at] of this.run.winnerPath()) {
      const here = value(this.run.generations[number], at);
      line[number] = here === here ? here : null;
    }
    return line;
  }
}

export class FitnessChart extends Chart {
  constructor(element, run) { super(element, run, 260); }

  data() {
    const { generations } = this.run;
    const orNull = (value) => (value === value ? value : null);
    return [
      this.numbers(),
      generations.map((generation) => orNull(generation.quantiles[2])),
      this.winnerLine((generation, at) => generation.fitness[at]),
      generations.map((generation) => orNull(generation.quantiles[4])),
      generations.map((generation) => generation.confirmation),
    ];
  }

  options() {
    const value = (_, number) => short(number);
    const series = [
      { label: "generation", value: (_, number) => (number === null ? "–" : String(number)) },
      { label: "median", stroke: colour("faint"), width: 1.5, dash: [4, 4], value, points: { show: false } },
      { label: "ancestors", stroke: colour("path"), width: 1.6, value, points: { show: false } },
      { label: "best", stroke: colour("best"), width: 2.4, value, points: { show: this.run.generations.length < 40, size: 6, fill: colour("best") } },
      { label: "held-out", stroke: colour("held"), width: 0, paths: () => null, value, points: { show: true, size: 9, width: 2, fill: colour("bg") } },
    ];
    return this.common(series, () => this.range());
  }

  range() {
    let [low, high] = this.run.fitnessRange();
    const held = this.run.generations.map((generation) => generation.confirmation).filter((value) => value !== null);
    [low, high] = [Math.min(low, ...held), Math.max(high, ...held)];
    const target = this.run.facts.target;
    if (typeof target === "number" && target > high && target - low < 4 * (high - low)) high = target;
    const pad = 0.06 * (high - low);
    return [low - pad, high + pad];
  }

  beneath(plot) {
    const { generations } = this.run;
    const band = new Path2D();
    const top = (share) => (generation) => [plot.valToPos(generation.number, "x", true), plot.valToPos(generation.quantiles[share], "y", true)];
    const shown = generations.filter((generation) => generation.quantiles[0] === generation.quantiles[0]);
    shown.map(top(3)).forEach(([x, y], at) => (at ? band.lineTo(x, y) : band.moveTo(x, y)));
    [...shown].reverse().map(top(1)).forEach(([x, y]) => band.lineTo(x, y));
    this.clipped(plot, (context) => {
      context.fillStyle = colour("best");
      context.globalAlpha = 0.1;
      context.fill(band);
    });
    const isThinned = this.memberLines(plot, (generation, at) => generation.fitness[at]);
    const { target, random_play: random } = this.run.facts;
    if (typeof target === "number") this.rule(plot, target, "target", `target ${short(target)}`);
    if (typeof random === "number") this.rule(plot, random, "faint", `random play ${short(random)}`);
    const below = this.run.lowest < plot.scales.y.min ? `lowest value ${short(this.run.lowest)}, below the axis. ` : "";
    this.note = `${below}${isThinned ? "Thin lines: a sample of the members. " : ""}Band: 10 to 90 % of the members.`;
  }
}

// Best fitness of every seed over the steps of one member, with mean and standard deviation.
export class SeedsChart {
  constructor(element) { Object.assign(this, { element, plot: null, seeds: "" }); }

  destroy() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }

  draw(runs) {
    const shown = runs.filter((run) => run.curve[0].length);
    const { steps, series, mean, deviation } = overlay(shown.map((run) => run.curve));
    const edge = (sign) => mean.map((value, at) => (value === null ? null : value + sign * deviation[at]));
    const data = [steps, edge(-1), edge(1), ...series, mean];
    const seeds = shown.map((run) => run.seed).join();
    if (seeds !== this.seeds) this.destroy();
    this.seeds = seeds;
    if (!shown.length) return;
    const width = Math.max(200, Math.floor(this.element.clientWidth));
    if (this.plot && this.plot.width !== width) this.plot.setSize({ width, height: 300 });
    if (this.plot) this.plot.setData(data);
    else this.plot = new uPlot(this.options(shown), data, this.element);
  }

  options(runs) {
    const value = (_, number) => short(number);
    const bound = (label) => ({ label, stroke: "transparent", value, points: { show: false } });
    const line = (run) => ({ label: `seed ${run.seed}`, stroke: colour("faint"), width: 1.2, value, points: { show: false } });
    return {
      width: Math.max(200, Math.floor(this.element.clientWidth)), height: 300,
      series: [
        { label: "steps of a member", value: (_, number) => (number === null ? "–" : count(number)) },
        bound("mean − deviation"), bound("mean + deviation"), ...runs.map(line),
        { label: "mean", stroke: colour("best"), width: 2.6, value, points: { show: false } },
      ],
      bands: [{ series: [2, 1], fill: `color-mix(in srgb, ${colour("best")} 14%, transparent)` }],
      legend: { live: true, markers: { show: false } }, padding: [8, 10, 0, 0],
      scales: { x: { time: false } },
      axes: [axis({ size: 26, values: (_, splits) => splits.map(count) }), axis({ size: 52, values: (_, splits) => splits.map((each) => short(each)) })],
    };
  }
}

export class HyperparameterChart extends Chart {
  constructor(element, run, name) {
    super(element, run, 170);
    this.name = name;
    this.seen = 0;
    this.version = -1;
  }

  // Smallest and largest value so far; only new generations are looked at.
  limits() {
    if (this.version !== this.run.version || this.seen > this.run.generations.length) {
      [this.low, this.high, this.seen, this.version] = [Infinity, -Infinity, 0, this.run.version];
    }
    for (; this.seen < this.run.generations.length; this.seen += 1) {
      const values = this.run.generations[this.seen].hp[this.name];
      for (const value of typeof values === "number" ? [values] : values || []) {
        if (value < this.low) this.low = value;
        if (value > this.high) this.high = value;
      }
    }
    return [this.low, this.high];
  }

  get isConstant() {
    const [low, high] = this.limits();
    return !(high > low) || short(high) === short(low); // equal but for rounding
  }

  get isLog() { return this.low > 0 && this.high / this.low > LOG_RATIO; }

  draw() {
    this.limits();
    if (this.plot && this.wasLog !== this.isLog) this.destroy();
    this.wasLog = this.isLog;
    super.draw();
  }

  value = (generation, at) => this.run.value(generation, this.name, at);

  data() { return [this.numbers(), this.winnerLine(this.value)]; }

  options() {
    const series = [
      { label: "generation", value: (_, number) => (number === null ? "–" : String(number)) },
      { label: "best", stroke: colour("best"), width: 2.4, value: (_, number) => short(number), points: { show: false } },
    ];
    const range = () => {
      const [low, high] = this.limits();
      if (this.isLog) return [low / 1.15, high * 1.15];
      const pad = 0.08 * (high - low || Math.abs(high) || 1);
      return [low - pad, high + pad];
    };
    return this.common(series, range, this.isLog ? { distr: 3 } : {});
  }

  beneath(plot) {
    this.memberLines(plot, this.value);
    for (const limit of (this.run.facts.ranges || {})[this.name] || []) this.rule(plot, limit, "target", "");
  }
}
