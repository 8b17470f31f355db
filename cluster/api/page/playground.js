// Ask the model and show its answer as it comes.

import { events } from "./app.js";

const $ = (id) => document.getElementById(id);

export function playground(model, headers) {
  let stop = null;
  $("stop").addEventListener("click", () => stop?.abort());
  $("playground").addEventListener("submit", async (submitted) => {
    submitted.preventDefault();
    stop = new AbortController();
    $("ask").disabled = true;
    $("stop").disabled = false;
    try {
      await ask(model(), headers(), stop.signal);
    } catch (error) {
      $("answer-facts").textContent = error.name === "AbortError" ? "stopped" : String(error.message);
    } finally {
      $("ask").disabled = false;
      $("stop").disabled = true;
    }
  });
}

async function ask(model, headers, signal) {
  $("answer").textContent = "";
  $("answer-facts").textContent = "";
  const began = performance.now();
  const body = {
    model,
    messages: [{ role: "user", content: $("question").value }],
    temperature: Number($("temperature").value),
    max_tokens: Number($("limit").value),
    stream: true,
    stream_options: { include_usage: true },
  };
  const answer = await fetch("/v1/chat/completions", {
    method: "POST", signal, headers: { ...headers, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  let first = null;
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") break;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    const text = event.choices[0]?.delta.content;
    if (text) {
      first ??= performance.now() - began;
      $("answer").textContent += text;
    }
    if (event.usage) {
      const { prompt_tokens, completion_tokens } = event.usage;
      $("answer-facts").textContent =
        `${prompt_tokens} prompt and ${completion_tokens} output tokens, first after ` +
        `${first?.toFixed(0)} ms, all after ${(performance.now() - began).toFixed(0)} ms`;
    }
  }
}
