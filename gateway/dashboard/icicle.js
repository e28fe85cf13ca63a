// The trees as an icicle: a bar for each node, as wide as the tokens of it and of all below it.

import { count, drawn, element, seconds } from "./numbers.js";

const ROW = 24;
const NARROWEST = 1.5; // pixels; narrower bars are not drawn, only counted
const AGES = [["in use", -1], ["under 10 s", 10], ["under 1 min", 60], ["under 10 min", 600], ["under 1 hour", 3600], ["older", Infinity]];
const TENANT_COLOURS = 8;

export class Icicle {
  constructor(parts) {
    this.parts = parts; // tree, detail, legend, out, size, tenant: elements
    this.colour = "recency";
    this.trees = [];
    this.path = []; // keys from a tree to the bar that fills the width
    this.focused = null; // the key of the bar that has the keyboard
    this.isHeld = false; // somebody looks at a bar: it stays where it is
    parts.out.addEventListener("click", () => this.zoomOut());
    parts.tenant.addEventListener("change", () => { this.path = []; this.draw(); });
    parts.tree.addEventListener("keydown", (event) => this.key(event));
    parts.tree.addEventListener("pointerenter", () => { this.isHeld = true; });
    parts.tree.addEventListener("pointerleave", () => { this.isHeld = false; });
  }

  show(inspection) {
    if (this.isHeld || this.parts.tree.contains(document.activeElement)) return;
    this.isComplete = inspection ? inspection.is_complete : true;
    this.trees = inspection ? inspection.trees.filter((tree) => tree.nodes.length).map(rooted) : [];
    this.trees.sort((a, b) => b.weight - a.weight);
    this.rankTenants();
    this.offerTenants();
    this.draw();
  }

  use(colour) {
    this.colour = colour;
    this.draw();
  }

  rankTenants() {
    const sums = new Map();
    for (const tree of this.trees) sums.set(tree.tenant, (sums.get(tree.tenant) ?? 0) + tree.weight);
    const names = [...(this.ranks ?? new Map()).keys()].filter((name) => sums.has(name)); // keep their colours
    const fresh = [...sums.keys()].filter((name) => !names.includes(name)).sort((a, b) => sums.get(b) - sums.get(a));
    this.ranks = new Map([...names, ...fresh].map((name, rank) => [name, rank]));
  }

  offerTenants() {
    const { tenant } = this.parts, chosen = tenant.value;
    const names = [...this.ranks.keys()].sort();
    const options = names.map((name) => element("option", { value: name }, name));
    tenant.replaceChildren(element("option", { value: "" }, "all"), ...options);
    tenant.value = names.includes(chosen) ? chosen : "";
  }

  draw() {
    const { tree, out, size } = this.parts;
    const wanted = this.parts.tenant.value;
    const shown = this.trees.filter((each) => !wanted || each.tenant === wanted);
    const top = this.zoomed(shown);
    const width = tree.clientWidth || 300;
    out.disabled = this.path.length === 0;
    this.bars = [];
    this.nHidden = 0;
    place(top, 0, width, 0, null, this);
    const nNodes = shown.reduce((sum, each) => sum + each.nNodes, 0);
    size.textContent = `${count(nNodes)} nodes in ${count(shown.length)} trees` +
      (this.isComplete === false ? ", the first of more" : "") +
      (this.nHidden ? `; ${count(this.nHidden)} too narrow to draw` : "");
    this.legend(shown);
    if (!this.bars.length) {
      tree.replaceChildren(element("p", { class: "empty" }, "Nothing is cached yet."));
      return;
    }
    const height = (Math.max(...this.bars.map((bar) => bar.depth)) + 1) * ROW;
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "tree", "aria-label": "Cached prefixes" });
    const first = this.bars.find((bar) => bar.node.key === this.focused) ?? this.bars[0];
    for (const bar of this.bars) svg.append(this.drawBar(bar, bar === first));
    tree.replaceChildren(svg);
  }

  zoomed(shown) {
    let level = shown;
    const kept = [];
    for (const key of this.path) {
      const found = level.find((node) => node.key === key);
      if (!found) break;
      kept.push(key);
      level = found.children;
      if (kept.length === this.path.length) return [found];
    }
    this.path = kept;
    return kept.length ? this.zoomed(shown) : shown;
  }

  drawBar(bar, isFirst) {
    const { node, x, width, depth } = bar;
    const item = drawn("g", {
      role: "treeitem", tabindex: isFirst ? 0 : -1, "aria-level": depth + 1, "aria-label": described(node),
    });
    bar.item = item;
    item.append(drawn("rect", { class: this.colourOf(node), x, y: depth * ROW, width, height: ROW, rx: 2 }));
    const text = fitting(node, width);
    if (text) item.append(drawn("text", { x: x + 5, y: depth * ROW + 16 }, text));
    item.addEventListener("pointerenter", () => { this.parts.detail.textContent = described(node); });
    item.addEventListener("focus", () => {
      this.focused = node.key;
      this.parts.detail.textContent = described(node);
    });
    item.addEventListener("click", () => this.zoomTo(node));
    return item;
  }

  colourOf(node) {
    if (this.colour === "recency") return `r${ageOf(node)}`;
    return `t${Math.min(this.ranks.get(node.tenant) ?? TENANT_COLOURS, TENANT_COLOURS)}`;
  }

  legend(shown) {
    const entry = (colour, text) => element("li", {}, element("span", { class: `swatch ${colour}` }), text);
    const tenants = new Set(shown.map((each) => each.tenant));
    const named = [...this.ranks].filter(([name]) => tenants.has(name));
    const entries = this.colour === "recency"
      ? AGES.map(([text], age) => entry(`r${age}`, text))
      : named.filter(([, rank]) => rank < TENANT_COLOURS).map(([name, rank]) => entry(`t${rank}`, name));
    if (this.colour === "tenant" && named.some(([, rank]) => rank >= TENANT_COLOURS)) entries.push(entry("t8", "others"));
    this.parts.legend.replaceChildren(...entries);
  }

  zoomTo(node) {
    this.path = node.key === this.path[this.path.length - 1] ? this.path.slice(0, -1) : pathOf(node);
    this.focused = node.key;
    this.redrawWithFocus();
  }

  zoomOut() {
    this.path = this.path.slice(0, -1);
    this.draw();
  }

  redrawWithFocus() {
    const had = this.parts.tree.contains(document.activeElement);
    this.draw();
    if (had) this.bars.find((bar) => bar.node.key === this.focused)?.item.focus();
  }

  key(event) {
    const bar = this.bars.find((each) => each.item === document.activeElement);
    if (!bar) return;
    const target = this.neighbour(bar, event.key);
    if (event.key === "Enter" || event.key === " ") this.zoomTo(bar.node);
    else if (event.key === "Escape") { this.path = this.path.slice(0, -1); this.redrawWithFocus(); }
    else if (!target) return;
    event.preventDefault();
    if (target) {
      bar.item.setAttribute("tabindex", -1);
      target.item.setAttribute("tabindex", 0);
      target.item.focus();
    }
  }

  neighbour(bar, key) {
    const row = this.bars.filter((each) => each.depth === bar.depth).sort((a, b) => a.x - b.x);
    const at = row.indexOf(bar);
    if (key === "ArrowRight") return row[at + 1];
    if (key === "ArrowLeft") return row[at - 1];
    if (key === "ArrowUp") return this.bars.find((each) => each.node === bar.above);
    if (key === "ArrowDown") return this.bars.find((each) => each.above === bar.node);
    return undefined;
  }
}

// A tree of an inspection as a bar over its nodes; `weight` is in tokens, with all below.
function rooted(tree, index) {
  const root = {
    key: `${index}:${tree.tenant}`, tenant: tree.tenant, tree, own: 0, weight: 0, children: [], up: null, nNodes: tree.nodes.length,
  };
  const made = [];
  for (const node of tree.nodes) { // parents come before children
    const up = node.parent === null ? root : made[node.parent];
    const bar = { key: `${index}:${node.id}`, tenant: tree.tenant, tree, node, own: node.n_tokens, weight: node.n_tokens, children: [], up };
    made.push(bar);
    up.children.push(bar);
  }
  for (const bar of made.slice().reverse()) bar.up.weight += bar.weight;
  for (const bar of [root, ...made]) bar.children.sort((a, b) => b.weight - a.weight);
  return root;
}

function place(nodes, x, width, depth, above, view) {
  const total = above ? above.weight : nodes.reduce((sum, node) => sum + node.weight, 0);
  for (const node of nodes) {
    const own = total ? (width * node.weight) / total : 0;
    if (own < NARROWEST) {
      view.nHidden += 1;
      continue;
    }
    view.bars.push({ node, x, width: own, depth, above });
    place(node.children, x, own, depth + 1, node, view);
    x += own;
  }
}

function pathOf(node) {
  return node === null ? [] : [...pathOf(node.up), node.key];
}

function ageOf(node) {
  if (!node.node) return Math.min(...node.children.map(ageOf));
  const idle = node.node.idle_seconds;
  return idle === null ? 0 : Math.max(1, AGES.findIndex(([, limit]) => idle < limit));
}

function nameOf(tree) {
  return [
    tree.tenant,
    tree.published ? `after ${tree.published}` : "",
    tree.adapter ? `adapter ${tree.adapter}` : "",
    tree.has_salt ? "salted" : "",
    tree.is_current ? "" : "invalidated",
  ].filter(Boolean).join(" · ");
}

function fitting(node, width) {
  const text = node.node ? count(node.own) : nameOf(node.tree);
  const room = Math.floor((width - 8) / 7);
  if (text.length <= room) return text;
  return node.node || room < 4 ? "" : `${text.slice(0, room - 1)}…`;
}

function described(node) {
  if (!node.node) return `${nameOf(node.tree)}: ${count(node.weight)} tokens in ${count(node.nNodes)} nodes`;
  const { start_token, n_tokens, pins, hits, idle_seconds, is_retained } = node.node;
  const use = idle_seconds === null ? `in use by ${count(pins)}` : `last used ${seconds(idle_seconds)} ago`;
  return `${nameOf(node.tree)}: ${n_tokens.toLocaleString("en")} tokens from ${start_token.toLocaleString("en")}, ` +
    `${count(node.weight)} with all below, ${count(hits)} hits, ${use}${is_retained ? ", kept on request" : ""}`;
}
