// The page: events of the server go into a `Run`, and what has changed is drawn piece by piece, between frames.
import { FitnessChart, HyperparameterChart, SeedsChart } from "./charts.js";
import { Lineage } from "./lineage.js";
import * as panels from "./panels.js";
import { Run, short } from "./store.js";

const BUDGET_MS = 7; // of drawing in one frame
const { element } = panels;

class Drawing {
  constructor() {
    this.waiting = new Map();
    this.isAsked = false;
    this.visible = new WeakMap();
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        this.visible.set(entry.target, entry.isIntersecting);
        if (entry.isIntersecting) this.ask();
      }
    }, { rootMargin: "200px" });
  }

  watch(node) { this.observer.observe(node); }

  // Draw later; of several requests with one name the last is done. Charts out of sight wait until they are seen.
  later(name, draw, node = null) {
    this.waiting.set(name, { draw, node });
    this.ask();
  }

  forget() { this.waiting.clear(); }

  ask() {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => this.frame());
  }

  frame() {
    this.isAsked = false;
    const begun = performance.now();
    for (const [name, { draw, node }] of [...this.waiting]) {
      if (node && this.visible.get(node) === false) continue;
      this.waiting.delete(name);
      draw();
      if (performance.now() - begun > BUDGET_MS) break;
    }
    const isLeft = [...this.waiting.values()].some(({ node }) => !node || this.visible.get(node) !== false);
    if (isLeft) this.ask();
  }
}

async function post(path, content) {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) });
  const result = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error(result.error);
  return result;
}

const drawing = new Drawing();
const steering = new panels.Steering(post);
let source = null;
let shown = null; // the page of a run

class RunPage {
  constructor(key) {
    this.key = key;
    this.run = new Run();
    element("range").replaceChildren();
    element("hyperparameters").replaceChildren();
    element("fitness").replaceChildren();
    for (const id of ["log", "pending", "members", "held", "film", "constant", "members-note", "training"]) {
      element(id).replaceChildren();
      delete element(id).dataset.key;
    }
    delete element("lineage-legend").dataset.key;
    panels.clearTiles();
    this.fitness = new FitnessChart(element("fitness"), this.run);
    this.lineage = new Lineage(fresh("lineage"), this.run, element("range"), (id) => this.select(id));
    this.charts = new Map();
    drawing.watch(element("fitness"));
    drawing.watch(element("lineage"));
  }

  select(id) {
    if (this.run.generations.at(-1).index.has(id)) element("steer").elements.member.value = id;
  }

  take(name, data) {
    const { run } = this;
    if (name === "reset") { run.clear(); this.drop(); }
    if (name === "run") run.facts = data;
    if (name === "births") run.addBirths(data);
    if (name === "generations") run.addGenerations(data.list);
    if (name === "members") run.details = new Map(data.rows.map(([id, slot, score, env_steps, updates, loss, mutation, network]) => [id, { slot, score, env_steps, updates, loss, mutation, network }]));
    if (name === "log") run.log.push(...data.lines);
    if (name === "now") run.now = data;
    this.draw(name);
  }

  drop() {
    this.fitness.destroy();
    for (const { chart } of this.charts.values()) chart.destroy();
    this.charts.clear();
    element("hyperparameters").replaceChildren();
  }

  draw(name = "all") {
    const { run } = this;
    const is = (...names) => name === "all" || names.includes(name);
    if (is("run")) drawing.later("headline", () => panels.headline(run, this.key));
    if (is("run", "now", "generations")) drawing.later("tiles", () => panels.tiles(run));
    if (run.now && is("now")) {
      drawing.later("training", () => panels.training(run));
      drawing.later("film", () => panels.film(run, this.key, post), element("film"));
      drawing.later("pending", () => panels.pending(run));
    }
    if (is("run", "log")) drawing.later("log", () => panels.log(run), element("log"));
    if (is("run", "generations", "reset")) {
      drawing.later("steering", () => steering.show(run, this.key));
      drawing.later("held", () => panels.held(run), element("held"));
    }
    const winner = run.now ? `${run.now.winner?.id}.${run.now.winner?.generation}/${run.now.progress.training.join()}/${run.now.progress.phase === ""}` : "";
    if (is("generations", "reset", "run") || (name === "now" && winner !== this.winner)) {
      this.winner = winner;
      drawing.later("fitness", () => { this.fitness.draw(); element("fitness-note").textContent = run.generations.length ? this.fitness.note : "The curve begins when the first generation ends."; }, element("fitness"));
      drawing.later("lineage", () => this.lineage.draw(), element("lineage"));
      drawing.later("hyperparameters", () => this.hyperparameters());
    }
    if (is("generations", "members", "births", "run")) drawing.later("members", () => panels.members(run, (id) => steering.choose(id)), element("members"));
  }

  hyperparameters() {
    const constant = [];
    for (const name of this.run.hyperparameters) {
      if (!this.charts.has(name)) {
        const node = panels.make("div");
        const place = panels.make("div", "", { className: "chart" });
        node.append(panels.make("h3", name), place);
        this.charts.set(name, { node, place, chart: new HyperparameterChart(place, this.run, name) });
        drawing.watch(place);
      }
      const { node, place, chart } = this.charts.get(name);
      if (chart.isConstant) {
        constant.push(`${name} ${short(chart.low)}`);
        continue;
      }
      if (!node.isConnected) element("hyperparameters").append(node);
      drawing.later(`hp ${name}`, () => chart.draw(), place);
    }
    element("constant").textContent = constant.length ? `Equal in all members so far: ${constant.join(", ")}.` : "";
  }

  // After a change of colours or of the window.
  redraw(isRecoloured) {
    if (isRecoloured) {
      this.drop();
      this.lineage.recolour();
      delete element("lineage-legend").dataset.key;
    }
    this.draw();
  }
}

// An element without the listeners of an earlier run.
function fresh(id) {
  const node = element(id).cloneNode(true);
  element(id).replaceWith(node);
  return node;
}

let isOpened = false; // the run of the training that began this page, the only one, or the only group, opens once
let seeds = null; // the chart of a group

function openList(group, chosen) {
  if (seeds) seeds.destroy();
  seeds = group === null ? null : new SeedsChart(element("seeds"));
  element("overlay").hidden = group === null;
  element("up").hidden = group === null || group === ".";
  source.addEventListener("runs", (event) => {
    const content = JSON.parse(event.data);
    panels.list(content, group);
    if (seeds) seeds.draw(content.runs);
    else chosen(content.runs);
  });
}

function openOnce(runs) {
  const run = runs.find((each) => each.focus) || runs.find((each) => each.key === ".");
  const isGroup = runs.length > 0 && runs.every((each) => each.group === ".");
  if (isOpened || !(run || isGroup)) return;
  isOpened = true;
  location.hash = run ? `run=${encodeURIComponent(run.key)}` : "group=.";
}

function open() {
  if (source) source.close();
  drawing.forget();
  if (shown) shown.drop();
  const [key, group] = ["run", "group"].map((name) => new URLSearchParams(location.hash.slice(1)).get(name));
  element("list").hidden = key !== null;
  element("run").hidden = key === null;
  element("back").hidden = key === ".";
  shown = key === null ? null : new RunPage(key);
  window.page = shown; // for the tests
  document.title = "agilerl watch";
  const query = key !== null ? `?run=${encodeURIComponent(key)}` : group !== null ? `?group=${encodeURIComponent(group)}` : "";
  source = new EventSource(`events${query}`);
  source.onopen = () => { element("lost").hidden = true; };
  source.onerror = () => {
    element("lost").hidden = false;
    if (source.readyState === EventSource.CLOSED && query) location.hash = ""; // there is no such run or group
  };
  isOpened = isOpened || query !== "";
  if (key === null) {
    openList(group, openOnce);
    return;
  }
  for (const name of ["reset", "run", "births", "generations", "members", "log", "now"]) {
    source.addEventListener(name, (event) => shown.take(name, JSON.parse(event.data)));
  }
}

let asked = 0;
addEventListener("resize", () => { clearTimeout(asked); asked = setTimeout(() => shown && shown.redraw(false), 120); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && shown.redraw(true));
addEventListener("hashchange", open);
open();
