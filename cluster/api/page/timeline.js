// One request's life: its spans as bars, and its steps in words.

import { element } from "./charts.js";

const dialog = document.getElementById("life");

export async function openLife(id, headers) {
  const verdict = document.getElementById("life-verdict");
  verdict.textContent = "asking the engines";
  fill("life-spans", []);
  fill("life-steps", []);
  document.getElementById("life-title").textContent = id;
  dialog.showModal();
  const answer = await fetch(`/debug/requests/${encodeURIComponent(id)}`, { headers });
  const body = await answer.json();
  if (!answer.ok) {
    verdict.textContent = body.error?.message ?? `error ${answer.status}`;
    return;
  }
  const request = body.requests[0];
  document.getElementById("life-title").textContent = request.request_id;
  verdict.textContent = said(request.verdict);
  const whole = Math.max(1e-6, ...request.spans.map((span) => span.to_s));
  fill("life-spans", request.spans.map((span) => bar(span, whole)));
  fill("life-steps", request.steps.map((step) => row(`${step.at_s.toFixed(3)} s  ${step.what}`)));
}

function said(verdict) {
  return typeof verdict === "string" ? verdict : (verdict?.text ?? JSON.stringify(verdict));
}

function bar(span, whole) {
  const made = document.createElement("li");
  if (span.error) made.className = "broke";
  const name = document.createElement("span");
  name.textContent = span.error ? `${span.name}: ${span.error}` : span.name;
  const svg = element("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" });
  const left = (span.from_s / whole) * 100;
  const width = Math.max(0.4, ((span.to_s - span.from_s) / whole) * 100);
  svg.append(element("rect", { x: left, y: 0, width, height: 8 }));
  const took = document.createElement("span");
  took.textContent = `${((span.to_s - span.from_s) * 1000).toFixed(1)} ms`;
  made.append(name, svg, took);
  return made;
}

function row(text) {
  const made = document.createElement("li");
  made.textContent = text;
  return made;
}

function fill(id, rows) {
  document.getElementById(id).replaceChildren(...rows);
}
