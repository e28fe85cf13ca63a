// Numbers as people read them, and elements without markup: text is only ever set as text.

const UNITS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

export function count(value) {
  for (const [size, unit] of UNITS) {
    if (value >= size * 10) return `${trimmed(value / size)}${unit}`;
  }
  return Math.round(value).toLocaleString("en");
}

export function percent(part, whole) {
  return whole > 0 ? `${trimmed((100 * part) / whole)} %` : "–";
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${trimmed(value * 1000)} ms`;
  if (value < 120) return `${trimmed(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return `${trimmed(value / 3600)} h`;
}

export function bytes(value) {
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= size) return `${trimmed(value / size)} ${unit}`;
  }
  return `${value} B`;
}

export function clock(epochSeconds, withSeconds) {
  const parts = { hour: "2-digit", minute: "2-digit", ...(withSeconds ? { second: "2-digit" } : {}) };
  return new Date(epochSeconds * 1000).toLocaleTimeString("en-GB", parts);
}

function trimmed(value) {
  return value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2).replace(/\.0+$|(\.\d*[1-9])0+$/, "$1");
}

export function element(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

export function drawn(name, attributes = {}, ...content) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

export function table(into, heads, rows, none) {
  if (!rows.length) {
    into.replaceChildren(element("tbody", {}, element("tr", {}, element("td", {}, none))));
    return;
  }
  const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((text) => element("td", {}, text))));
  into.replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}
