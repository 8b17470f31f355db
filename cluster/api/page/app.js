// The page: reads /debug/live and shows each event; everything else is asked for when it is wanted.

import { chart } from "./charts.js";
import { openLife } from "./timeline.js";
import { playground } from "./playground.js";

const STATES = ["in_use", "leased", "reserved", "writing", "quarantined", "cached", "free"];
const SPAN_S = 300, AGAIN_MS = 1000, GONE_S = 60;
const KEY = "pdserve-key";
const $ = (id) => document.getElementById(id);

const history = { times: [], ttft50: [], ttft95: [], itl50: [], itl95: [], tokens: [] };
let model = "";

const headers = () => {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
};

// The `data` of each server-sent event of a body.
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      for (const line of part.split("\n")) {
        if (line.startsWith("data: ")) yield line.slice(6);
      }
    }
  }
}

async function follow() {
  const answer = await fetch("/debug/live", { headers: headers() });
  if (answer.status === 401 || answer.status === 403) {
    const body = await answer.json();
    $("key-form").hidden = false;
    badge(body.error.message, "bad");
    return false;
  }
  if (!answer.ok) throw new Error(`error ${answer.status}`);
  $("key-form").hidden = true;
  for await (const data of events(answer.body)) show(JSON.parse(data));
  return true;
}

async function run() {
  for (;;) {
    try {
      if (!(await follow())) return;
      badge("the balancer ended the connection", "bad");
    } catch {
      badge("no connection to the balancer, trying again", "bad");
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

function show(facts) {
  model = facts.model;
  $("model").textContent = `${facts.model}, ${facts.balancer}`;
  badge(facts.ready ? "ready" : `not ready: ${facts.reason}`, facts.ready ? "good" : "bad");
  remember(facts.beat);
  tiles(facts);
  for (const role of ["prefill", "decode"]) engines(role, facts);
  fill("flows", facts.flows.map(flow), "no request is running");
  fill("requests", facts.latest.map(request));
  fill("errors", facts.errors.map(error), "nothing");
  charts();
}

function badge(text, kind) {
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = `badge ${kind}`;
}

function remember(beat) {
  const ms = (seconds) => (seconds === null ? null : seconds * 1000);
  const now = performance.now() / 1000;
  const reading = [now, ms(beat.ttft_p50_s), ms(beat.ttft_p95_s), ms(beat.itl_p50_s), ms(beat.itl_p95_s), beat.tokens_per_s];
  Object.values(history).forEach((values, index) => values.push(reading[index]));
  while (history.times[0] < now - SPAN_S) Object.values(history).forEach((values) => values.shift());
}

function charts() {
  const { times, ttft50, ttft95, itl50, itl95, tokens } = history;
  chart($("ttft"), times, { p50: ttft50, p95: ttft95 }, SPAN_S);
  chart($("itl"), times, { p50: itl50, p95: itl95 }, SPAN_S);
  chart($("tokens"), times, { p50: tokens }, SPAN_S);
}

function tiles(facts) {
  const ms = (seconds) => (seconds === null ? "–" : `${(seconds * 1000).toFixed(0)} ms`);
  const values = {
    running: facts.requests.running, waiting: facts.requests.waiting,
    "tokens/s": facts.beat.tokens_per_s.toFixed(0),
    "first token, p95": ms(facts.beat.ttft_p95_s), "next token, p95": ms(facts.beat.itl_p95_s),
  };
  fill("tiles", Object.entries(values).map(([name, value]) => item([node("b", value), name])));
}

function engines(role, facts) {
  const here = facts.engines.filter((engine) => engine.role === role);
  const known = new Set(facts.engines.map((engine) => engine.worker));
  const gone = facts.gone.filter(
    (each) => each.role === role && !known.has(each.worker) && each.ago_s < GONE_S);
  fill(role, [...here.map(engine), ...gone.map(lost)], `no ${role} engine`);
}

function engine(facts) {
  const total = Object.values(facts.pages).reduce((sum, count) => sum + count, 0);
  const bar = node("div", "", "bar");
  const words = [];
  for (const state of STATES.filter((name) => facts.pages[name])) {
    const part = node("i", "", state);
    part.style.width = `${(facts.pages[state] / total) * 100}%`;
    bar.append(part);
    words.push(`${facts.pages[state]} ${state.replace("_", " ")}`);
  }
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", `of ${total} pages ${words.join(", ")}`);
  bar.title = words.join(", ");
  const top = node("div", "", "top");
  top.append(node("b", facts.worker), node("span", facts.state));
  const line = `${facts.running} running, ${facts.queued} waiting; ${facts.transport}; ${facts.incarnation.slice(0, 6)} at ${facts.host}`;
  return item([top, bar, node("div", line, "quiet")], facts.state);
}

function lost(facts) {
  const top = node("div", "", "top");
  top.append(node("b", facts.worker), node("span", "gone"));
  return item([top, node("div", `${facts.reason}, ${facts.ago_s.toFixed(0)} s ago`, "quiet")], "gone");
}

function flow(facts) {
  const handing = facts.handing_off ? `, ${facts.handing_off} handing off` : "";
  return item([node("b", `${facts.prefill} → ${facts.decode}`), node("div", `${facts.running} running${handing}`, "quiet")]);
}

function request(facts) {
  const row = document.createElement("tr");
  const open = node("button", facts.request_id.slice(0, 24));
  open.dataset.id = facts.id;
  const attempts = facts.attempts > 1 ? ` (attempt ${facts.attempts})` : "";
  const cells = [
    open, node("span", facts.outcome ?? "running", facts.failed ? "failed" : ""),
    `${facts.prompt_tokens} + ${facts.delivered_tokens}`,
    facts.ttft_s === null ? "–" : `${(facts.ttft_s * 1000).toFixed(0)} ms`,
    `${facts.took_s.toFixed(2)} s`, facts.workers.join(" → ") + attempts,
  ];
  for (const content of cells) {
    const cell = document.createElement("td");
    cell.append(content);
    row.append(cell);
  }
  return row;
}

function error(facts) {
  const text = `${facts.ago_s.toFixed(0)} s ago, ${facts.request_id}: ${facts.text}`;
  return item([node("span", text, facts.failed ? "failed" : "")]);
}

function node(name, text, kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function item(parts, kind = "") {
  const made = node("li", "", kind);
  made.append(...parts);
  return made;
}

// Replaces what differs, so that the focus stays where it is.
function fill(id, rows, empty = "") {
  const list = $(id);
  if (!rows.length && empty) rows = [item([node("span", empty, "quiet")])];
  rows.forEach((row, index) => {
    const old = list.children[index];
    if (!old) list.append(row);
    else if (!old.isEqualNode(row)) {
      const focused = old.contains(document.activeElement) ? document.activeElement.dataset.id : null;
      old.replaceWith(row);
      if (focused) row.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
    }
  });
  while (list.children.length > rows.length) list.lastChild.remove();
}

$("key-form").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  sessionStorage.setItem(KEY, $("key").value);
  run();
});
$("requests").addEventListener("click", (clicked) => {
  const id = clicked.target.dataset?.id;
  if (id) openLife(id, headers());
});
fill("legend", STATES.map((state) => item([node("i", "", state), state.replace("_", " ")])));
playground(() => model, headers);
run();
