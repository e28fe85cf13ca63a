// Reads what the gateway shows of itself every few seconds, and draws it.

import { chart } from "./charts.js";
import { Icicle } from "./icicle.js";
import { bytes, count, element, percent, seconds, table } from "./numbers.js";

const EVERY_MS = 5000;
const MOST_POINTS = 120;
const SYSTEM = "(system)"; // owns what is published
const RECENT_SECONDS = 300;

const here = new URL(location.pathname, location.origin); // without a name and password
const source = new URL("admin/dashboard", here);
const at = (id) => document.getElementById(id);
const icicle = new Icicle({
  tree: at("tree"), detail: at("tree-detail"), legend: at("tree-legend"),
  out: at("tree-out"), size: at("tree-size"), tenant: at("tree-tenant"),
});
let latest = null;
let isPaused = false;

async function refresh() {
  if (isPaused || document.hidden) return;
  try {
    const reply = await fetch(source, { cache: "no-store", credentials: "same-origin" });
    if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
    latest = await reply.json();
    at("notice").hidden = true;
    render();
  } catch (error) {
    pill("unreachable", "bad");
    at("notice").textContent = `No news from the server: ${error.message}. What is shown is old.`;
    at("notice").hidden = false;
  }
}

function render() {
  const { engine, index, prompts, model, is_ready } = latest;
  pill(is_ready ? "ready" : "not ready", is_ready ? "good" : "bad");
  at("model").textContent = model ?? "";
  cards(engine, index, latest.trends);
  overTime(latest.trends);
  icicle.show(index);
  misses(engine.misses);
  published(prompts);
  tiers(engine);
  tenants(index);
}

function pill(text, kind) {
  const state = at("state");
  if (state.textContent !== text) state.textContent = text; // said aloud when it changes
  state.className = `pill ${kind}`;
}

function cards(engine, index, trends) {
  const recent = within(trends, RECENT_SECONDS);
  const prompt = sum(recent, "prompt_tokens"), cached = sum(recent, "cached_tokens");
  const { free, cached: kept, held } = engine.pool, all = free + kept + held;
  const perToken = index ? index.kv_bytes_per_token * index.block_size_tokens : 0;
  const first = slowest(recent);
  const made = [
    ["Hit rate, 5 min", percent(cached, prompt), `${percent(engine.cached_tokens_total, engine.prompt_tokens_total)} in all`],
    ["First token, 5 min", seconds(first.median), `95 %: ${seconds(first.p95)}`],
    ["Running", count(engine.running), `${count(engine.waiting)} waiting, ${count(engine.waiting_tokens)} tokens`],
    ["Pool filled", all ? percent(kept + held, all) : "–", all ? `of ${perToken ? bytes(all * perToken) : `${count(all)} blocks`}` : "no pool"],
    ["Tokens saved", count(engine.cached_tokens_total), `of ${count(engine.prompt_tokens_total)} read`],
    ["Blocks evicted", count(engine.evicted_blocks_total), `${count(engine.preemptions_total)} requests preempted`],
  ];
  at("cards").replaceChildren(...made.map(([name, value, more]) => element("div", { class: "card" },
    element("div", { class: "name" }, name), element("div", { class: "value" }, value), element("div", { class: "more" }, more))));
}

function overTime(trends) {
  const points = merged(within(trends, Number(at("range").value)));
  chart(at("chart-hits"), points, [{ key: "hitRate", name: "of prompt tokens", colour: "blue" }],
    { title: "Hit rate", top: 100, format: (value) => `${Math.round(value)} %` });
  chart(at("chart-first"), points, [
    { key: "median", name: "median", colour: "blue" },
    { key: "p95", name: "95 %", colour: "orange" },
  ], { title: "Time to first token", format: seconds });
  const hasPool = points.some((point) => point.free + point.cached + point.held > 0);
  chart(at("chart-pool"), hasPool ? points : [], [
    { key: "held", name: "held", colour: "area-held" },
    { key: "cached", name: "cached", colour: "area-cached" },
    { key: "free", name: "free", colour: "area-free" },
  ], { title: "Pool, blocks", stacked: true, format: count, top: hasPool ? undefined : 1, none: points.length ? "this backend has no pool" : undefined });
  chart(at("chart-queue"), points, [
    { key: "running", name: "running", colour: "blue" },
    { key: "waiting", name: "waiting", colour: "orange" },
  ], { title: "Requests", format: (value) => (value < 10 ? String(Math.round(value * 10) / 10) : count(value)) });
}

function within(trends, rangeSeconds) {
  if (!rangeSeconds || !trends.length) return trends;
  const since = latest.now - rangeSeconds;
  return trends.filter((interval) => interval.end > since);
}

// Intervals put together so that at most MOST_POINTS are drawn: sums of counts, the most of the rest.
function merged(intervals) {
  const size = Math.max(1, Math.ceil(intervals.length / MOST_POINTS));
  const points = [];
  for (let i = 0; i < intervals.length; i += size) {
    const part = intervals.slice(i, i + size), last = part[part.length - 1];
    const prompt = sum(part, "prompt_tokens");
    points.push({
      time: last.end,
      hitRate: prompt ? (100 * sum(part, "cached_tokens")) / prompt : null,
      ...slowest(part),
      running: most(part, "running"),
      waiting: most(part, "waiting"),
      held: last.held_blocks,
      cached: last.cached_blocks,
      free: last.free_blocks,
    });
  }
  return points;
}

// The median of the intervals' medians, each as often as it has requests, and the largest 95 %.
function slowest(intervals) {
  const begun = intervals.filter((interval) => interval.first_tokens)
    .sort((a, b) => a.first_token_median_seconds - b.first_token_median_seconds);
  let left = sum(begun, "first_tokens") / 2;
  const middle = begun.find((interval) => (left -= interval.first_tokens) <= 0);
  return {
    median: middle ? middle.first_token_median_seconds : null,
    p95: begun.length ? most(begun, "first_token_p95_seconds") : null,
  };
}

function misses(reasons) {
  const rows = Object.entries(reasons).sort((a, b) => b[1] - a[1]);
  const largest = rows.length ? rows[0][1] : 1;
  const bars = rows.map(([reason, n]) => {
    const part = element("span", { class: "part" });
    part.style.width = `${(100 * n) / largest}%`;
    return element("li", {}, element("span", {}, reason.replaceAll("_", " ")),
      element("span", { class: "track" }, part), element("span", { class: "count" }, count(n)));
  });
  at("misses").replaceChildren(...(bars.length ? bars : [element("li", { class: "quiet" }, "None did.")]));
}

function published(prompts) {
  const rows = prompts.map((each) => [
    each.name, String(each.version), each.tenants ? each.tenants.join(", ") : "all", each.status,
    each.n_tokens === null ? "–" : count(each.n_tokens),
    each.n_tokens === null ? "–" : percent(each.cached_tokens, each.n_tokens),
  ]);
  table(at("published"), ["Prompt", "Version", "For", "State", "Tokens", "Cached"], rows, "None are published.");
}

function tiers(engine) {
  const known = (value) => (value === null ? "–" : bytes(value));
  const rows = Object.entries(engine.tiers).map(([name, each]) => [
    name, each.is_out ? "left out" : "in use", count(each.hit_tokens), percent(each.hit_tokens, engine.cached_tokens_total),
    known(each.used_bytes), known(each.size_bytes), bytes(each.read_bytes), bytes(each.written_bytes),
    bytes(each.waiting_bytes), bytes(each.dropped_bytes),
  ]);
  table(at("tiers"),
    ["Tier", "State", "Hit tokens", "Of all hits", "Used", "Size", "Read", "Written", "Waiting", "Dropped"],
    rows, "None are set up: what leaves the device is forgotten.");
}

function tenants(index) {
  const all = (index?.tenants ?? []).slice().sort((a, b) => b.prompt_tokens_total - a.prompt_tokens_total);
  const rows = all.map((each) => [
    each.tenant === SYSTEM ? "(published prompts)" : each.tenant, count(each.requests_total), count(each.prompt_tokens_total),
    percent(each.hit_tokens_total, each.prompt_tokens_total), count(each.cached_tokens),
    count(each.held_tokens), each.reserved_tokens ? count(each.reserved_tokens) : "–",
    each.max_tokens ? count(each.max_tokens) : "–", count(each.evicted_tokens_total),
  ]);
  table(at("tenants"),
    ["Tenant", "Requests", "Prompt tokens", "Hit rate", "Cached now", "Held now", "Reserved", "At most", "Evicted"],
    rows, "No tenant has asked yet.");
}

function sum(intervals, key) {
  return intervals.reduce((total, interval) => total + interval[key], 0);
}

function most(intervals, key) {
  return Math.max(...intervals.map((interval) => interval[key]));
}

at("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  at("pause").setAttribute("aria-pressed", String(isPaused));
  at("pause").textContent = isPaused ? "Go on" : "Pause";
  refresh();
});
at("range").addEventListener("change", () => latest && overTime(latest.trends));
for (const input of document.querySelectorAll("input[name=colour]")) {
  input.addEventListener("change", () => icicle.use(input.value));
}
document.addEventListener("visibilitychange", refresh);
let resizing = null;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => latest && (overTime(latest.trends), icicle.draw()), 150);
});
refresh();
setInterval(refresh, EVERY_MS);
