// The lineage on a canvas: circles and edges while there is room, else a picture with one pixel per member.
import { colour } from "./charts.js";
import { NO_SOURCE, short } from "./store.js";

const RAMP = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"];
const DARK = { "#440154": "#6b3fa0", "#46327e": "#5560b8" };
const KINDS = { rl_hp: "hyperparameter", architecture: "architecture", parameters: "parameters", activation: "activation", healed: "healed", steered: "steered", none: "unchanged" };
const MAX_SEGMENTS = 6000;
const LAST = 30; // generations of the closer view
const MAX_HEIGHT = 430;
const MARGIN = { left: 14, right: 14, top: 22, bottom: 8 };

function ramp() {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const stops = RAMP.map((stop) => (isDark && DARK[stop]) || stop).map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  const table = new Uint32Array(256);
  const texts = [];
  for (let level = 0; level < 256; level += 1) {
    const place = (level / 255) * (stops.length - 1);
    const [at, share] = [Math.min(stops.length - 2, Math.floor(place)), place - Math.min(stops.length - 2, Math.floor(place))];
    const [r, g, b] = stops[at].map((low, channel) => Math.round(low + share * (stops[at + 1][channel] - low)));
    table[level] = (255 << 24) | (b << 16) | (g << 8) | r;
    texts.push(`rgb(${r},${g},${b})`);
  }
  return { table, texts };
}

export class Lineage {
  constructor(element, run, choice, onSelect) {
    this.element = element;
    this.canvas = element.querySelector("canvas");
    this.tip = element.querySelector(".tip");
    this.run = run;
    this.view = "all";
    this.texture = document.createElement("canvas");
    this.painted = { columns: 0, version: -1, low: NaN, high: NaN };
    this.onSelect = onSelect;
    this.choose(choice);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("click", (event) => {
      const hit = this.hit(event);
      if (hit) this.onSelect(hit.generation.ids[hit.at]);
      this.hover(event);
    });
  }

  choose(choice) {
    this.choice = choice;
    for (const [view, text] of [["all", "all"], ["last", `last ${LAST}`]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.addEventListener("click", () => { this.view = view; this.press(); this.draw(); });
      button.dataset.view = view;
      choice.append(button);
    }
    this.press();
  }

  press() {
    for (const button of this.choice.children) button.setAttribute("aria-pressed", String(button.dataset.view === this.view));
    this.choice.hidden = this.run.generations.length <= LAST;
  }

  recolour() {
    this.colours = null;
    this.painted.version = -1;
  }

  level(value, low, high) {
    return Math.max(0, Math.min(255, Math.round((255 * (value - low)) / (high - low || 1))));
  }

  draw() {
    this.choice.hidden = this.run.generations.length <= LAST;
    this.colours = this.colours || ramp();
    const all = this.run.generations;
    this.first = this.view === "all" ? 0 : Math.max(0, all.length - LAST);
    const columns = all.length - this.first;
    const unborn = this.unborn();
    const rows = Math.max(1, this.run.maxMembers, unborn.length);
    const width = Math.max(200, this.element.clientWidth);
    const gap = Math.max(1, Math.min(21, (MAX_HEIGHT - MARGIN.top - MARGIN.bottom) / rows));
    const height = Math.ceil(MARGIN.top + MARGIN.bottom + gap * Math.min(rows, (MAX_HEIGHT - MARGIN.top - MARGIN.bottom) / gap));
    const scale = devicePixelRatio;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    if (!all.length && !unborn.length) return;
    const places = columns + (unborn.length ? 1 : 0);
    const step = (width - MARGIN.left - MARGIN.right) / Math.max(1, places - 1);
    const rowGap = (height - MARGIN.top - MARGIN.bottom) / rows;
    this.at = { step: Math.min(step, 110), rowGap, rows, width, height };
    this.x = (number) => MARGIN.left + (number - this.first) * this.at.step;
    this.y = (row) => MARGIN.top + (row + 0.5) * rowGap;
    const isDrawn = !all.length || (rowGap >= 5 && this.at.step >= 6 && columns * rows <= MAX_SEGMENTS);
    this.isPicture = !isDrawn;
    this.headings(context);
    if (isDrawn) this.vectors(context, unborn);
    else this.picture(context);
    if (all.length) this.say(isDrawn);
  }

  // Members that train for the first time now: a last column of empty circles.
  unborn() {
    if (!this.run.now || !this.run.now.progress.phase) return [];
    const last = this.run.generations.at(-1);
    return this.run.now.progress.training.filter((id) => !last || !last.index.has(id));
  }

  headings(context) {
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colour("soft");
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    const each = Math.max(1, Math.ceil(44 / this.at.step));
    const stride = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((size) => size >= each) || each;
    for (let number = this.first; number < this.run.generations.length; number += 1) {
      const generation = this.run.generations[number];
      if (generation.number % stride === 0) context.fillText(String(generation.number), this.x(number), 13);
    }
  }

  edge(path, number, from, at, generation, before) {
    const [x0, x1] = [this.x(number - 1), this.x(number)];
    const [y0, y1] = [this.y(before.row[from]), this.y(generation.row[at])];
    path.moveTo(x0, y0);
    if (Math.abs(y0 - y1) < 0.5) path.lineTo(x1, y1);
    else path.bezierCurveTo(x0 + 0.55 * (x1 - x0), y0, x0 + 0.45 * (x1 - x0), y1, x1, y1);
  }

  vectors(context, unborn) {
    const all = this.run.generations;
    const radius = Math.max(1.6, Math.min(this.at.rowGap * 0.4, this.at.step * 0.36, 9));
    const paths = new Map();
    for (let number = this.first + 1; number < all.length; number += 1) {
      const [before, generation] = [all[number - 1], all[number]];
      for (let at = 0; at < generation.count; at += 1) {
        const from = generation.source[at];
        if (from === NO_SOURCE) continue;
        const isSame = before.ids[from] === generation.ids[at];
        const kind = isSame ? "none" : this.run.kinds.get(generation.ids[at]) || "none";
        if (!paths.has(kind)) paths.set(kind, new Path2D());
        this.edge(paths.get(kind), number, from, at, generation, before);
      }
    }
    context.lineWidth = radius > 3 ? 1.6 : 1;
    for (const [kind, path] of paths) {
      context.strokeStyle = colour(`k-${kind}`) || colour("k-none");
      context.stroke(path);
    }
    this.winner(context, Math.max(2, Math.min(4, radius)));
    const [low, high] = this.run.fitnessRange();
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `${radius >= 8 ? 9 : 8}px system-ui, sans-serif`;
    const { winner } = this.run.now || {};
    for (let number = this.first; number < all.length; number += 1) {
      const generation = all[number];
      for (let at = 0; at < generation.count; at += 1) {
        const [x, y, fitness] = [this.x(number), this.y(generation.row[at]), generation.fitness[at]];
        const level = this.level(fitness, low, high);
        context.beginPath();
        context.arc(x, y, radius, 0, 7);
        context.fillStyle = fitness === fitness ? this.colours.texts[level] : colour("bg");
        context.fill();
        if (fitness !== fitness || (winner && generation.ids[at] === winner.id && generation.number === winner.generation)) {
          context.strokeStyle = fitness === fitness ? colour("path") : colour("k-healed");
          context.lineWidth = 1.8;
          context.stroke();
        }
        if (radius >= 7.5 && generation.ids[at] < 1000) {
          context.fillStyle = fitness !== fitness ? colour("ink") : level > 160 ? "#111" : "#fff";
          context.fillText(String(generation.ids[at]), x, y + 0.5);
        }
      }
    }
    this.future(context, unborn, radius);
  }

  future(context, unborn, radius) {
    const last = this.run.generations.at(-1);
    if (!unborn.length) return;
    const number = this.run.generations.length;
    const row = (id) => last?.row[last.index.get(this.run.parents.get(id))] ?? 1e9 + id; // founders have no parent
    const ordered = [...unborn].sort((a, b) => row(a) - row(b));
    context.setLineDash([3, 3]);
    ordered.forEach((id, place) => {
      const from = last?.index.get(this.run.parents.get(id));
      const [x, y] = [this.x(number), this.y(place)];
      context.strokeStyle = colour(`k-${this.run.kinds.get(id)}`) || colour("k-none");
      context.lineWidth = 1.4;
      if (from !== undefined) {
        const path = new Path2D();
        const [x0, y0] = [this.x(number - 1), this.y(last.row[from])];
        path.moveTo(x0 + radius, y0);
        path.bezierCurveTo(x0 + 0.55 * (x - x0), y0, x0 + 0.45 * (x - x0), y, x - radius, y);
        context.stroke(path);
      }
      context.beginPath();
      context.arc(x, y, radius, 0, 7);
      context.fillStyle = colour("bg");
      context.fill();
      context.stroke();
    });
    context.setLineDash([]);
  }

  winner(context, width) {
    const path = this.run.winnerPath().filter(([number]) => number >= this.first);
    if (!path.length) return;
    const line = new Path2D();
    path.forEach(([number, at], place) => {
      const generation = this.run.generations[number];
      if (place) this.edge(line, number, path[place - 1][1], at, generation, this.run.generations[number - 1]);
    });
    const [number, at] = path.at(-1);
    context.lineJoin = "round";
    context.strokeStyle = colour("bg");
    context.globalAlpha = this.isPicture ? 0.85 : 0;
    context.lineWidth = width + 2.5;
    context.stroke(line);
    context.globalAlpha = 1;
    context.strokeStyle = colour("path");
    context.lineWidth = width;
    context.stroke(line);
    if (this.isPicture) {
      context.beginPath();
      context.arc(this.x(number), this.y(this.run.generations[number].row[at]), 4.5, 0, 7);
      context.fillStyle = colour("path");
      context.fill();
      context.strokeStyle = colour("bg");
      context.lineWidth = 1.5;
      context.stroke();
    }
  }

  // One pixel per member; only new columns are painted unless the range of colours has changed.
  paint() {
    const all = this.run.generations;
    const [low, high] = this.run.fitnessRange();
    const rows = this.run.maxMembers;
    const isOther = this.painted.version !== this.run.version || this.painted.low !== low || this.painted.high !== high;
    if (this.texture.height !== rows || this.texture.width < all.length || isOther) {
      if (this.texture.height !== rows || this.texture.width < all.length) {
        this.texture.width = Math.max(64, 2 ** Math.ceil(Math.log2(all.length + 1)));
        this.texture.height = rows;
      }
      this.painted = { columns: 0, version: this.run.version, low, high };
    }
    const from = Math.max(0, this.painted.columns);
    if (from >= all.length) return;
    const context = this.texture.getContext("2d");
    const image = context.createImageData(all.length - from, rows);
    const pixels = new Uint32Array(image.data.buffer);
    for (let number = from; number < all.length; number += 1) {
      const generation = all[number];
      for (let at = 0; at < generation.count; at += 1) {
        const fitness = generation.fitness[at];
        const place = generation.row[at] * (all.length - from) + number - from;
        pixels[place] = fitness === fitness ? this.colours.table[this.level(fitness, low, high)] : 0xff2e22cf;
      }
    }
    context.putImageData(image, from, 0);
    this.painted.columns = all.length;
  }

  picture(context) {
    this.paint();
    const columns = this.run.generations.length - this.first;
    context.imageSmoothingEnabled = false;
    context.drawImage(
      this.texture, this.first, 0, columns, this.run.maxMembers,
      this.x(this.first) - this.at.step / 2, MARGIN.top, columns * this.at.step, this.at.height - MARGIN.top - MARGIN.bottom,
    );
    const path = this.survivors();
    context.strokeStyle = colour("bg");
    context.globalAlpha = 0.45;
    context.lineWidth = 1;
    context.stroke(path);
    context.globalAlpha = 1;
    this.winner(context, 2.5);
  }

  // Edges of the ancestors of the last generation's members; lineages meet, so they are few.
  survivors() {
    const all = this.run.generations;
    const path = new Path2D();
    let living = new Set(Array.from({ length: Math.min(all.at(-1).count, 400) }, (_, k) => Math.floor((k * all.at(-1).count) / Math.min(all.at(-1).count, 400))));
    let segments = 0;
    for (let number = all.length - 1; number > this.first && segments < MAX_SEGMENTS; number -= 1) {
      const earlier = new Set();
      for (const at of living) {
        const from = all[number].source[at];
        if (from === NO_SOURCE) continue;
        earlier.add(from);
        this.edge(path, number, from, at, all[number], all[number - 1]);
        segments += 1;
      }
      living = earlier;
    }
    return path;
  }

  say(isDrawn) {
    const kinds = new Set(this.run.kinds.values());
    const [low, high] = this.run.fitnessRange();
    const legend = document.getElementById("lineage-legend");
    const shown = Object.entries(KINDS).filter(([kind]) => isDrawn && kinds.has(kind));
    const key = JSON.stringify([short(low), short(high), shown, isDrawn]);
    if (legend.dataset.key === key) return;
    legend.dataset.key = key;
    legend.replaceChildren();
    const span = (className, text) => {
      const [outer, mark] = [document.createElement("span"), document.createElement("i")];
      mark.className = className;
      outer.append(mark, text);
      legend.append(outer);
    };
    const gradient = document.createElement("canvas");
    gradient.className = "ramp";
    gradient.width = 90;
    gradient.height = 1;
    this.colours.texts.forEach((text, level) => {
      const context = gradient.getContext("2d");
      context.fillStyle = text;
      context.fillRect((level * 90) / 256, 0, 1, 1);
    });
    const outer = document.createElement("span");
    outer.append(gradient, `fitness ${short(low)} to ${short(high)}`);
    legend.append(outer);
    for (const [kind, text] of shown) span(`k-${kind}`, text);
    span("l-line", "ancestors of the best so far");
    document.getElementById("lineage-note").textContent = isDrawn
      ? "Columns are generations. Circles are members; dashed ones train now. Point at one for its values."
      : "One pixel column per generation, one row per member, in the order of their parents. Lines: ancestors of the last generation. Point at it for values.";
  }

  hit(event) {
    if (!this.at || !this.run.generations.length) return null;
    const box = this.canvas.getBoundingClientRect();
    const number = this.first + Math.round((event.clientX - box.left - MARGIN.left) / this.at.step);
    const generation = this.run.generations[number];
    if (!generation || number < this.first) return null;
    const row = Math.floor((event.clientY - box.top - MARGIN.top) / this.at.rowGap);
    const at = generation.order[Math.max(0, Math.min(generation.count - 1, row))];
    return row >= 0 && row <= generation.count ? { generation, at, number } : null;
  }

  hover(event) {
    const hit = this.hit(event);
    this.tip.hidden = !hit;
    if (!hit) return;
    const { generation, at } = hit;
    const id = generation.ids[at];
    const parent = this.run.parents.get(id);
    const lines = [
      `member ${id}, generation ${generation.number}: ${short(generation.fitness[at])}`,
      parent === null || parent === undefined ? "founder" : `child of ${parent}, born in generation ${this.run.bornIn.get(id) ?? "?"}`,
      this.run.texts.get(id) || "",
      this.run.hyperparameters.map((name) => `${name} ${short(this.run.value(generation, name, at))}`).join(", "),
    ].filter(Boolean);
    this.tip.replaceChildren(...lines.flatMap((line, place) => (place ? [document.createElement("br"), line] : [line])));
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    this.tip.style.left = `${Math.max(0, Math.min(x + 14, box.width - this.tip.offsetWidth))}px`;
    this.tip.style.top = `${y + 16}px`;
  }
}
