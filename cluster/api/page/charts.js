// Line charts over the last minutes, drawn as SVG.

const WIDTH = 360, HEIGHT = 140, LEFT = 40, RIGHT = 6, TOP = 8, BOTTOM = 18;
const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

// `lines` maps a class to values, one per moment of `times` (seconds), null where nothing was read.
export function chart(svg, times, lines, span) {
  const most = Math.max(1e-9, ...Object.values(lines).flat().filter((value) => value !== null));
  const now = times.at(-1) ?? 0;
  const x = (at) => LEFT + (1 - (now - at) / span) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
  const foot = HEIGHT - BOTTOM;
  const parts = [
    element("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: foot, y2: foot }),
    element("line", { class: "axis", x1: LEFT, x2: LEFT, y1: TOP, y2: foot }),
    element("text", { x: LEFT - 4, y: TOP + 8, "text-anchor": "end" }, shown(most)),
    element("text", { x: LEFT - 4, y: foot, "text-anchor": "end" }, "0"),
    element("text", { x: LEFT, y: HEIGHT - 4 }, `${Math.round(span / 60)} min ago`),
    element("text", { x: WIDTH - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, "now"),
  ];
  const last = [];
  for (const [name, values] of Object.entries(lines)) {
    for (const run of runs(times, values)) {
      const points = run.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`);
      parts.push(element("polyline", { class: name, points: points.join(" ") }));
    }
    const latest = values.at(-1);
    if (latest !== null && latest !== undefined) last.push(`${name} ${shown(latest)}`);
  }
  if (last.length > 1) {
    parts.push(element("text", { x: WIDTH - RIGHT, y: TOP + 8, "text-anchor": "end" }, last.join(", ")));
  }
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("aria-label", last.length ? `now ${last.join(", ")}` : "nothing yet");
  svg.replaceChildren(...parts);
}

function runs(times, values) {
  const found = [[]];
  values.forEach((value, index) => {
    if (value === null) found.push([]);
    else found.at(-1).push([times[index], value]);
  });
  return found.filter((run) => run.length);
}

function shown(value) {
  return value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(2);
}
