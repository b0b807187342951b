// A page without a browser: the nodes and the canvas that the live view draws on, and what it wrote there.
class Node {
  constructor() { Object.assign(this, { children: [], style: {}, dataset: {}, textContent: "", hidden: false, width: 0, height: 0, clientWidth: 600 }); }
  append(...parts) { for (const part of parts) { if (part instanceof Node) this.children.push(part); else this.textContent += part; } }
  replaceChildren(...parts) { this.children = []; this.append(...parts); }
  get firstChild() { return this.children[0]; }
  querySelector(name) { return (this[name] ??= new Node()); }
  addEventListener() {}
  setAttribute() {}
  getContext() { return canvas; }
}
export const drawn = { arcs: 0, texts: [] };
const canvas = new Proxy({}, {
  get: (_, name) => (...given) => { if (name === "arc") drawn.arcs += 1; if (name === "fillText") drawn.texts.push(given[0]); },
  set: () => true,
});
const nodes = new Map();
export const node = (id) => { if (!nodes.has(id)) nodes.set(id, new Node()); return nodes.get(id); };
Object.assign(globalThis, {
  document: { getElementById: node, createElement: () => new Node(), documentElement: null },
  matchMedia: () => ({ matches: false }), getComputedStyle: () => ({ getPropertyValue: () => "#000" }),
  devicePixelRatio: 1, Path2D: class { moveTo() {} lineTo() {} bezierCurveTo() {} },
});
export const textOf = (part) => part.textContent + part.children.map(textOf).join("");
export const tiles = () => Object.fromEntries(node("tiles").children.map((tile) => [tile.children[0].textContent, [tile.children[1].textContent, tile.children[3].textContent]]));
