// Everything on the page that is text: tiles, tables, messages, the form of steering, the list of runs.
import { bytes, clock, count, short } from "./store.js";

const PAGE = 50; // rows of the table of members
const MAX_LINES = 300;
const ACTIONS = {
  set: ["give a hyperparameter a value", "name", "value"],
  pin: ["give a hyperparameter a value that mutation leaves alone, in descendants too", "name", "value"],
  unpin: ["let mutation change a pinned hyperparameter again", "name"],
  clone: ["copy the member over the worst one", "one"],
  remove: ["end the member", "one"],
  protect: ["keep the member through selection", "one"],
  unprotect: ["let selection end a protected member again", "one"],
  evaluate: ["play held-out episodes with the member now"],
  stop: ["end the run after this generation", "none"],
};

export const element = (id) => document.getElementById(id);

export function make(tag, content = "", properties = {}) {
  const node = Object.assign(document.createElement(tag), properties);
  if (content !== "") node.append(content);
  return node;
}

function text(node, content) {
  if (node.textContent !== content) node.textContent = content;
}

// --- headline --------------------------------------------------------------------------------------------------------

export function headline(run, key) {
  const facts = run.facts;
  text(element("title"), `${facts.algo} on ${facts.env_id}`);
  const status = element("status");
  text(status, facts.status);
  status.className = `status ${facts.status}`;
  document.title = `${facts.status === "running" ? "▶ " : ""}${facts.algo} on ${facts.env_id} · agilerl`;
  const parts = [facts.path, `seed ${facts.seed}`, facts.device, facts.scheme ? `evolution: ${facts.scheme}` : "", facts.started ? `started ${facts.started.replace("T", " ").replace("Z", " UTC")}` : ""];
  text(element("subtitle"), parts.filter(Boolean).join(" · "));
  const notes = {
    interrupted: `The run was interrupted, or its process is gone. To go on: ${facts.resume || "agilerl resume"}`,
    failed: `The run failed: ${facts.error || "see its output"}`,
    gone: "The directory of the run has vanished. The page shows what it last read, and goes on if the directory comes back.",
    unknown: "run.json cannot be read; the page shows what else there is.",
  };
  text(element("note"), notes[facts.status] || "");
  element("note").hidden = !notes[facts.status];
}

const ORDER = ["best", "target", "generation", "speed", "time left at most", "training steps", "machine"];
const tileNodes = new Map();

function tile(name, value, more, style = "", share = null, place = name) {
  let node = tileNodes.get(place);
  if (!node) {
    node = make("div", "", { className: "tile" });
    node.append(make("div", name, { className: "name" }), make("div", "", { className: "value" }), make("div", "", { className: "bar", hidden: true }), make("div", "", { className: "more" }));
    node.children[2].append(make("i"));
    node.style.order = ORDER.indexOf(place);
    tileNodes.set(place, node);
    element("tiles").append(node);
  }
  text(node.children[0], name);
  node.className = `tile ${style}`;
  text(node.children[1], value);
  node.children[2].hidden = share === null;
  if (share !== null) node.children[2].firstChild.style.transform = `scaleX(${share})`;
  text(node.children[3], more);
}

export function clearTiles() {
  tileNodes.clear();
  element("tiles").replaceChildren();
}

export function tiles(run) {
  const { facts, now } = run;
  if (!now) return;
  const { progress, load } = now;
  const leader = run.leader();
  const test = facts.test;
  const confirmed = run.generations.filter((generation) => generation.confirmation !== null);
  const held = confirmed.length ? Math.max(...confirmed.map((generation) => generation.confirmation)) : null;
  if (test) tile("score of the best agent", short(test.mean), `${short(test.ci95[0])} to ${short(test.ci95[1])}, ${test.episodes} held-out episodes`, "lead", null, "best");
  else if (leader && leader.held !== null) tile("best so far, held-out", short(leader.held), `member ${leader.id}, generation ${leader.generation}; fitness ${short(leader.fitness)}`, "lead", null, "best");
  else tile("best so far, fitness", leader ? short(leader.fitness) : "–", leader ? `member ${leader.id}, generation ${leader.generation}` : "the first generation has not ended yet", "lead", null, "best");
  if (typeof facts.target === "number") {
    const reached = test ? test.mean >= facts.target : held !== null && held >= facts.target;
    tile("target", short(facts.target), held === null ? "not yet tested on held-out episodes" : `held-out ${short(held)} at best`, reached ? "good" : "");
  }
  const last = run.generations.at(-1);
  const isRunning = facts.status === "running";
  const total = progress.generations === null ? "" : ` of ${Math.max(progress.generations, run.generations.length, isRunning ? progress.generation : 0)}`;
  const number = isRunning ? progress.generation : run.generations.length;
  const doing = progress.phase === "evaluating" ? `evaluating for ${Math.round(progress.idle_seconds)} s` : progress.share === null ? "training" : `training, ${Math.round(100 * progress.share)} %`;
  const ended = facts.stopped || facts.status;
  tile("generation", `${number}${total}`, isRunning ? doing : ended, "", isRunning ? progress.share ?? 0 : null);
  const each = progress.max_env_steps ? `${count(progress.env_steps)} of ${count(progress.max_env_steps)} per member` : `${count(progress.env_steps)} per member`;
  if (isRunning) tile("speed", `${count(progress.steps_per_second)} steps/s`, each);
  else tile("speed", last && last.seconds ? `${count(last.env_steps / last.seconds)} steps/s` : "–", each);
  const total_s = progress.seconds + (progress.seconds_left ?? 0);
  tile("time left at most", isRunning ? clock(progress.seconds_left) : "–", `elapsed ${clock(progress.seconds)}`, "", isRunning && progress.seconds_left !== null ? progress.seconds / (total_s || 1) : null);
  tile("training steps", count(progress.population_env_steps), `${count(last ? last.evaluation_env_steps : 0)} for evaluation`);
  const memory = load.memory === null ? "" : `memory ${bytes(load.memory)} of ${bytes(load.memory_total)}`;
  const ours = load.run_memory === null ? "" : `the run: ${load.run_cores === null ? "" : `${load.run_cores.toFixed(1)} cores, `}${bytes(load.run_memory)}`;
  tile("machine", load.cpu === null ? "–" : `CPU ${Math.round(100 * load.cpu)} %`, [`${load.cores} cores`, memory, ours].filter(Boolean).join(" · "));
}

export function training(run) {
  const { progress, damaged, complete } = run.now;
  let words = "";
  if (progress.phase) {
    const ids = progress.training.slice(0, 12).join(", ") + (progress.training.length > 12 ? `, … (${progress.training.length})` : "");
    const going = progress.going_on ? `${progress.going_on} ${progress.going_on === 1 ? "goes" : "go"} on from the last generation` : "";
    const fresh = progress.training.length ? `new: ${ids}` : "";
    words = `${progress.phase === "evaluating" ? "Evaluating" : "Training now"}: ${[fresh, going].filter(Boolean).join("; ") || "the founders"}.`;
  }
  if (!complete) words += ` Reading the run: ${run.generations.length} generations so far.`;
  if (damaged) words += ` ${damaged} damaged ${damaged === 1 ? "line was" : "lines were"} skipped.`;
  text(element("training"), words.trim());
}

// --- members ---------------------------------------------------------------------------------------------------------

const view = { sort: "fitness", isDown: true, page: 0 };

export function members(run, choose) {
  const generation = run.generations.at(-1);
  const table = element("members");
  if (!generation) { table.replaceChildren(); return; }
  const names = run.hyperparameters;
  const columns = ["id", "fitness", "score", "steps", "born", "change", "network", ...names];
  const cell = {
    id: (at) => generation.ids[at],
    fitness: (at) => generation.fitness[at],
    score: (at) => (run.details.get(generation.ids[at]) || {}).score,
    steps: (at) => (run.details.get(generation.ids[at]) || {}).env_steps,
    born: (at) => run.bornIn.get(generation.ids[at]),
    change: (at) => run.texts.get(generation.ids[at]) || run.kinds.get(generation.ids[at]) || "",
    network: (at) => (run.details.get(generation.ids[at]) || {}).network || "",
  };
  names.forEach((name) => { cell[name] = (at) => run.value(generation, name, at); });
  const of = cell[view.sort] || cell.fitness;
  const sign = view.isDown ? -1 : 1;
  const keyed = Array.from({ length: generation.count }, (_, at) => [of(at), at]);
  const isText = typeof keyed[0][0] === "string";
  const order = (a, b) => {
    if (isText) return sign * a[0].localeCompare(b[0]);
    const [first, second] = [a[0], b[0]].map((value) => (value === null || value === undefined || value !== value ? null : value));
    if (first === null || second === null) return (first === null) - (second === null);
    return sign * (first - second);
  };
  keyed.sort(order);
  const pages = Math.ceil(keyed.length / PAGE);
  view.page = Math.min(view.page, pages - 1);
  const shown = keyed.slice(view.page * PAGE, (view.page + 1) * PAGE).map(([, at]) => at);
  const again = () => members(run, choose);

  const key = columns.join();
  if (table.dataset.key !== key) {
    table.dataset.key = key;
    const head = make("tr");
    for (const name of columns) {
      const button = make("button", name, { type: "button" });
      button.addEventListener("click", () => {
        view.isDown = view.sort === name ? !view.isDown : name !== "id";
        [view.sort, view.page] = [name, 0];
        table.again();
      });
      head.append(make("th", button, { className: ["change", "network"].includes(name) ? "" : "r" }));
    }
    head.append(make("th"));
    table.replaceChildren(make("thead", head), make("tbody"));
  }
  table.again = again;
  [...table.querySelectorAll("thead th")].forEach((head, at) => {
    if (at < columns.length) head.setAttribute("aria-sort", columns[at] === view.sort ? (view.isDown ? "descending" : "ascending") : "none");
    if (at < columns.length) text(head.firstChild, columns[at] + (columns[at] === view.sort ? (view.isDown ? " ↓" : " ↑") : ""));
  });
  const body = table.tBodies[0];
  while (body.rows.length > shown.length) body.deleteRow(-1);
  shown.forEach((at, place) => {
    let row = body.rows[place];
    if (!row) {
      row = body.insertRow();
      columns.forEach((name) => row.append(make("td", "", { className: name === "change" ? "change" : name === "network" ? "" : "r" })));
      const button = make("button", "steer", { type: "button" });
      button.addEventListener("click", () => table.choose(Number(row.dataset.id)));
      row.append(make("td", button));
    }
    row.dataset.id = generation.ids[at];
    row.className = generation.ids[at] === run.now?.winner?.id ? "won" : "";
    columns.forEach((name, column) => {
      const value = cell[name](at);
      const words = typeof value === "string" ? value : name === "steps" ? count(value) : short(value);
      text(row.cells[column], words);
      if (name === "change" && row.cells[column].title !== words) row.cells[column].title = words;
    });
  });
  table.choose = choose;
  text(element("members-note"), `after generation ${generation.number}, ${generation.count} members`);
  pageButtons(pages, again);
}

function pageButtons(pages, again) {
  const node = element("pages");
  const key = `${view.page}/${pages}`;
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  node.replaceChildren();
  if (pages < 2) return;
  for (const [words, step] of [["before", -1], ["next", 1]]) {
    const button = make("button", words, { type: "button", className: "plain", disabled: view.page + step < 0 || view.page + step >= pages });
    button.addEventListener("click", () => { view.page += step; element("members").again(); });
    node.append(button);
  }
  node.append(`page ${view.page + 1} of ${pages}`);
}

// --- messages, held-out scores, film ---------------------------------------------------------------------------------

export function log(run) {
  const list = element("log");
  const lines = run.log.slice(-MAX_LINES).reverse();
  list.replaceChildren(...lines.map((line) => {
    const when = line.generation !== null ? `generation ${line.generation}` : line.time ? new Date(line.time * 1000).toLocaleTimeString() : "";
    const item = make("li", make("b", line.kind === "message" ? "" : `${line.kind} `), { className: line.kind });
    item.append(line.text, make("span", when ? ` · ${when}` : "", { className: "soft" }));
    return item;
  }));
  for (const note of run.facts.notes || []) list.append(make("li", note, { className: "soft" }));
  if (!list.children.length) list.append(make("li", "none so far", { className: "soft" }));
}

export function held(run) {
  const rows = run.generations.filter((generation) => generation.confirmation !== null);
  const node = element("held");
  const key = `${run.version}/${rows.length}/${run.facts.test ? run.facts.test.mean : ""}`;
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  const content = [];
  if (run.facts.test) content.push(make("p", `Closing test: ${short(run.facts.test.mean)} over ${run.facts.test.episodes} episodes.`));
  if (rows.length) {
    const table = make("table");
    const head = make("tr");
    ["generation", "best", "held-out", "episodes"].forEach((name) => head.append(make("th", name, { className: "r" })));
    table.append(head);
    for (const generation of rows.slice(-12).reverse()) {
      const row = make("tr");
      [generation.number, generation.quantiles[4], generation.confirmation, generation.episodes].forEach((value) => row.append(make("td", short(value), { className: "r" })));
      table.append(row);
    }
    content.push(table);
  } else {
    content.push(make("p", "A candidate is tested on held-out episodes once its fitness reaches the target.", { className: "soft small" }));
  }
  node.replaceChildren(...content);
}

export function film(run, key, post) {
  const node = element("film");
  const { state, text: words, version } = run.now.film;
  const mark = `${key}/${state}/${words}/${version}`;
  if (node.dataset.key === mark) return;
  node.dataset.key = mark;
  const content = [];
  if (version) content.push(make("img", "", { src: `film?run=${encodeURIComponent(key)}&version=${version}`, alt: "an episode of the best agent" }));
  const button = make("button", state === "recording" ? "recording …" : "Record an episode", { type: "button", disabled: state === "recording" });
  button.addEventListener("click", async () => {
    button.disabled = true;
    await post(`film?run=${encodeURIComponent(key)}`, {}).catch(() => {});
  });
  content.push(button);
  if (words && state !== "recording") content.push(make("p", words, { className: `small ${state === "failed" ? "bad" : "soft"}` }));
  node.replaceChildren(...content);
}

// --- steering --------------------------------------------------------------------------------------------------------

export class Steering {
  constructor(post) {
    this.form = element("steer");
    this.key = "";
    this.post = post;
    const { action } = this.form.elements;
    Object.keys(ACTIONS).forEach((name) => action.append(make("option", name, { value: name })));
    this.form.addEventListener("input", () => this.fit());
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    this.fit();
  }

  show(run, key) {
    this.key = key;
    this.ranges = run.facts.ranges || {};
    const { name } = this.form.elements;
    const names = Object.keys(this.ranges).length ? Object.keys(this.ranges) : run.hyperparameters;
    if ([...name.options].map((option) => option.value).join() !== names.join()) {
      name.replaceChildren(...names.map((each) => make("option", each, { value: each })));
    }
    const isRunning = run.facts.status === "running";
    if (this.isRunning !== isRunning) {
      this.isRunning = isRunning;
      [...this.form.elements].forEach((field) => { field.disabled = !isRunning; });
      if (!isRunning) this.answer("", "only a run that trains takes requests");
    }
    if (isRunning && element("answer").textContent === "only a run that trains takes requests") this.answer("", "");
    this.fit();
  }

  choose(member) {
    this.form.elements.member.value = member;
    this.fit();
    this.form.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    this.form.elements.action.focus({ preventScroll: true });
  }

  fit() {
    const { action, member, name, value } = this.form.elements;
    const [meaning, ...needs] = ACTIONS[action.value];
    this.form.querySelector(".of-name").hidden = !needs.includes("name");
    this.form.querySelector(".of-value").hidden = !needs.includes("value");
    member.placeholder = needs.includes("one") ? "id" : needs.includes("none") ? "–" : "all";
    member.required = needs.includes("one");
    const range = (this.ranges || {})[name.value];
    value.placeholder = range ? `${short(range[0])} to ${short(range[1])}` : "";
    text(element("meaning"), `${meaning}.`);
  }

  answer(style, words) {
    element("answer").className = `small ${style}`;
    text(element("answer"), words);
  }

  async send() {
    const { action, member, name, value, reason } = this.form.elements;
    const needs = ACTIONS[action.value].slice(1);
    const request = { action: action.value, reason: reason.value.trim() };
    if (member.value.trim() !== "" && !needs.includes("none")) {
      request.member = /^\d+$/.test(member.value.trim()) ? Number(member.value) : member.value.trim();
    }
    if (needs.includes("name")) request.name = name.value;
    if (needs.includes("value") && value.value.trim() !== "") {
      request.value = Number.isNaN(Number(value.value)) ? value.value.trim() : Number(value.value);
    }
    try {
      await this.post(`steer?run=${encodeURIComponent(this.key)}`, request);
      this.answer("good", "waits for the end of this generation");
      reason.value = "";
    } catch (error) {
      this.answer("bad", error.message);
    }
  }
}

export function pending(run) {
  const node = element("pending");
  const key = JSON.stringify(run.now.pending);
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  node.replaceChildren(...run.now.pending.map((request) => {
    const whom = request.member === null ? "all members" : `member ${request.member}`;
    const change = [request.name, request.value].filter((part) => part !== "" && part !== null).join(" ");
    const item = make("li", make("b", `waits: ${request.action} `), { className: "steering" });
    item.append(`${whom}${change ? `, ${change}` : ""}${request.reason ? ` (${request.reason})` : ""}`);
    return item;
  }));
}

// --- list of runs ----------------------------------------------------------------------------------------------------

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const link = (words, kind, key) => make("a", words, { href: `#${kind}=${encodeURIComponent(key)}` });
const mark = (status) => make("span", status, { className: `status ${status}` });
const when = (run) => make("span", run.started.replace("T", " ").replace("Z", ""), { className: "soft" });
const scoreOf = (run) => (run.score !== null ? short(run.score) : run.best_fitness !== null ? `fitness ${short(run.best_fitness)}` : "–");
const NUMBERS = ["seed", "score", "generation", "steps of a member", "best fitness", "elapsed", "time left at most"];

function countStatus(runs) {
  const counts = new Map();
  runs.forEach((run) => counts.set(run.status, (counts.get(run.status) || 0) + 1));
  return [...counts].map(([status, number]) => `${number} ${status}`).join(", ");
}

// Mean and standard deviation of the numbers that are there, in words.
function spread(values) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  if (!known.length) return "–";
  if (known.length === 1) return short(known[0]);
  const deviation = Math.sqrt(known.reduce((sum, value) => sum + (value - mean(known)) ** 2, 0) / (known.length - 1));
  return `${short(mean(known))} ± ${short(deviation)}`;
}

function groupRow(key, runs) {
  const [first] = runs;
  const name = key === "." ? "these seeds" : key;
  return { run: link(name, "group", key), environment: first.env_id, algorithm: first.algo, seed: `${runs.length} seeds`, status: countStatus(runs), score: spread(runs.map((run) => run.score)), started: when(first) };
}

function runRow(run) {
  return { run: link(run.key === "." ? run.path : run.key, "run", run.key), environment: run.env_id, algorithm: run.algo, seed: run.seed, status: mark(run.status), score: scoreOf(run), started: when(run) };
}

function seedRow(run) {
  const { progress } = run;
  const total = progress.generations === null ? "" : ` of ${Math.max(progress.generations, progress.generation)}`;
  return {
    seed: link(run.seed, "run", run.key), status: mark(run.status), generation: `${progress.generation}${total}`, "steps of a member": count(progress.env_steps),
    "best fitness": short(Math.max(...run.curve[1])), score: scoreOf(run), elapsed: clock(progress.seconds), "time left at most": run.status === "running" ? clock(progress.seconds_left) : "–",
  };
}

// All runs, with the seeds of a group in one row; or the seeds of one group, and their mean.
export function list(content, group) {
  const { runs } = content;
  text(element("list-title"), group === null || !runs.length ? "Runs" : `${runs[0].algo} on ${runs[0].env_id}, ${runs.length} seeds`);
  text(element("root"), content.omitted ? `${content.root} · ${content.omitted} ${group === null ? "older runs" : "seeds"} are not listed` : content.root);
  const empty = element("empty");
  empty.hidden = runs.length > 0;
  text(empty, content.exists ? "No runs yet. They appear here as they begin: agilerl train CartPole-v1." : "The folder does not exist yet, or no longer. Runs appear here as they begin.");
  const table = element("runs");
  table.replaceChildren();
  if (!runs.length) return;
  let rows;
  if (group === null) {
    const shown = new Map(); // a group stands where its newest run would
    runs.forEach((run) => shown.set(run.group ?? run, [...(shown.get(run.group ?? run) || []), run]));
    rows = [...shown].map(([key, members]) => (typeof key === "string" ? groupRow(key, members) : runRow(key)));
  } else {
    const best = runs.map((run) => Math.max(...run.curve[1])); // -Infinity before the first generation
    rows = [...runs.map(seedRow), { seed: "mean", status: countStatus(runs), "best fitness": spread(best), score: spread(runs.map((run) => run.score)) }];
  }
  const columns = Object.keys(rows[0]);
  const side = (name) => ({ className: NUMBERS.includes(name) ? "r" : "" });
  const head = make("tr");
  columns.forEach((name) => head.append(make("th", name, side(name))));
  const body = make("tbody");
  for (const cells of rows) {
    const row = make("tr");
    columns.forEach((name) => row.append(make("td", cells[name] ?? "", side(name))));
    body.append(row);
  }
  table.append(make("thead", head), body);
}
