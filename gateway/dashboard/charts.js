// Lines and stacked areas over time, drawn as SVG at the width that there is.

import { clock, drawn, element } from "./numbers.js";

const HEIGHT = 150;
const LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 20;
const SHORT_SECONDS = 600; // below it minutes do not tell times apart
const LONGEST_GAP = 3; // points without a value that a line is drawn across

// Draws `points` ({time, ...}) into a figure. series: [{key, name, colour}], values may be null.
// options: title, format(value), top (of the axis; else the largest value), stacked.
export function chart(figure, points, series, options) {
  const width = Math.max(figure.clientWidth - 2 * parseFloat(getComputedStyle(figure).paddingLeft), 200);
  const scale = scaleOf(points, series, options, width);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img" });
  svg.setAttribute("aria-label", summary(points, series, options));
  axes(svg, scale, options, width);
  if (options.stacked) areas(svg, points, series, scale);
  else series.forEach((each) => line(svg, points, each, scale));
  const caption = element("figcaption", {}, element("b", {}, options.title));
  const values = series.map((each) => element("span", {}));
  series.forEach((each, i) => caption.append(
    element("span", { class: "key" }, element("span", { class: `swatch ${each.colour}` }), each.name, values[i])));
  const show = (point) => series.forEach((each, i) => {
    values[i].textContent = point && point[each.key] !== null ? options.format(point[each.key]) : "–";
  });
  show(latest(points, series));
  follow(svg, points, scale, show, () => show(latest(points, series)));
  if (!points.length) svg.append(drawn("text", { x: LEFT + 10, y: HEIGHT / 2 }, options.none ?? "nothing yet"));
  figure.replaceChildren(caption, svg);
}

function latest(points, series) {
  return points.findLast((point) => series.some((each) => point[each.key] !== null)) ?? null;
}

function scaleOf(points, series, options, width) {
  const first = points.length ? points[0].time : 0;
  const last = points.length ? points[points.length - 1].time : 1;
  const sums = points.map((point) => {
    const values = series.map((each) => point[each.key] ?? 0);
    return options.stacked ? values.reduce((a, b) => a + b, 0) : Math.max(...values);
  });
  const top = options.top ?? rounded(Math.max(...sums, 0));
  const span = Math.max(last - first, 1);
  return {
    first, last, top,
    x: (time) => LEFT + ((time - first) / span) * (width - LEFT - RIGHT),
    y: (value) => HEIGHT - BOTTOM - (Math.min(value, top) / top) * (HEIGHT - TOP - BOTTOM),
  };
}

function rounded(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value) * power;
}

function axes(svg, scale, options, width) {
  for (const part of [0, 0.5, 1]) {
    const y = scale.y(part * scale.top);
    svg.append(drawn("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }));
    svg.append(drawn("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, options.format(part * scale.top)));
  }
  if (scale.first) {
    const isShort = scale.last - scale.first < SHORT_SECONDS;
    svg.append(drawn("text", { x: LEFT, y: HEIGHT - 4 }, clock(scale.first, isShort)));
    svg.append(drawn("text", { x: width - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, clock(scale.last, isShort)));
  }
}

function line(svg, points, each, scale) {
  let path = "", gap = LONGEST_GAP + 1, run = 0, end = null;
  const dot = () => {
    if (run === 1) svg.append(drawn("circle", { class: each.colour, r: 2.5, cx: end[0], cy: end[1] }));
  };
  for (const point of points) {
    const value = point[each.key];
    if (value === null) {
      gap += 1;
      continue;
    }
    const isNew = gap > LONGEST_GAP;
    if (isNew) dot();
    run = isNew ? 1 : run + 1;
    gap = 0;
    end = [scale.x(point.time), scale.y(value)];
    path += `${isNew ? "M" : "L"}${end[0].toFixed(1)} ${end[1].toFixed(1)}`;
  }
  dot();
  svg.append(drawn("path", { class: `line ${each.colour}`, d: path }));
}

function areas(svg, points, series, scale) {
  const below = points.map(() => 0);
  for (const each of series) {
    const base = points.map((point, i) => `${scale.x(point.time).toFixed(1)} ${scale.y(below[i]).toFixed(1)}`);
    points.forEach((point, i) => { below[i] += point[each.key] ?? 0; });
    const top = points.map((point, i) => `${scale.x(point.time).toFixed(1)} ${scale.y(below[i]).toFixed(1)}`);
    if (points.length) svg.append(drawn("path", { class: each.colour, d: `M${top.join("L")}L${base.reverse().join("L")}Z` }));
  }
}

function follow(svg, points, scale, show, rest) {
  const cursor = drawn("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const near = points.reduce((best, point) =>
      best && Math.abs(scale.x(best.time) - x) <= Math.abs(scale.x(point.time) - x) ? best : point, null);
    if (!near) return;
    cursor.setAttribute("x1", scale.x(near.time));
    cursor.setAttribute("x2", scale.x(near.time));
    cursor.setAttribute("visibility", "visible");
    show(near);
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    rest();
  });
}

function summary(points, series, options) {
  const now = latest(points, series);
  if (!now) return `${options.title}: nothing yet`;
  const parts = series.map((each) => `${each.name} ${now[each.key] === null ? "none" : options.format(now[each.key])}`);
  return `${options.title}, latest: ${parts.join(", ")}`;
}
