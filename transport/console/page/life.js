// A request's life as parts of a bar, and as the dialog that tells all of it.

import { WAITING, PREFILLING, DECODING, DISPLACED, ENDED } from "./state.js";
import { element, span, brief, count, some, mean, ticks } from "./text.js";

// parts returns the parts of a running request's life up to now, as [from, to, colour] in
// microseconds since its arrival. Only what is certain is drawn: where it lost its place before and
// got it back is part of the decoding.
export function parts(r, now) {
  const since = (t) => Math.max(t - r.arrival, 0), age = since(now);
  const list = [[0, r.scheduled ? since(r.scheduled) : age, "queue"]];
  if (!r.scheduled) return list;
  const displaced = r.state === DISPLACED;
  const still = displaced ? since(r.last || r.scheduled) : r.state === ENDED ? since(r.last || r.scheduled) : age;
  list.push([since(r.scheduled), r.first ? since(r.first) : Math.max(still, since(r.scheduled)), "prefill"]);
  if (r.first) list.push([since(r.first), Math.max(still, since(r.first)), "decode"]);
  if (displaced) list.push([still, age, "lost"]);
  else if (r.state === ENDED) list.push([still, age, "deliver"]);
  return list;
}

// pastParts is the same for a finished request.
export function pastParts(d) {
  const since = (t) => Math.max(t - d.arrival, 0), end = since(d.finished);
  const list = [];
  if (d.outcome === "refused") return list;
  if (d.queued || d.scheduled) list.push([0, d.scheduled ? since(d.scheduled) : end, "queue"]);
  if (d.scheduled) list.push([since(d.scheduled), d.first ? since(d.first) : end, "prefill"]);
  if (d.first) list.push([since(d.first), end, "decode"]);
  if (d.delivered > d.finished) list.push([end, since(d.delivered), "deliver"]);
  return list;
}

const stateNames = { [WAITING]: "waiting", [PREFILLING]: "prefill", [DECODING]: "decoding", [DISPLACED]: "lost its place", [ENDED]: "delivering" };

// stateName says what a running request does.
export function stateName(r) {
  if (r.state === PREFILLING && r.first) return "computing again";
  return stateNames[r.state] ?? "starting";
}

const names = { queue: "In the queue", prefill: "Prefill", decode: "Decode", lost: "Without its place", deliver: "Delivery" };

const causes = [
  ["queue_capacity", "no free sequence slot", "queue"], ["queue_kv", "no free KV cache blocks", "queue"],
  ["prefill_of_others", "prompts of others in its steps", "prefill"], ["preemption", "lost its cache blocks to others", "lost"],
  ["device_restart", "the device was restarted", "lost"], ["slow_client", "delivery to the client", "deliver"],
];

// tell returns what the dialog says of a request, running (at the time now) or finished.
export function tell(r, now, bounds) {
  const list = r.running ? parts(r, now) : pastParts(r);
  const end = Math.max(...list.map((p) => p[1]), 1);
  const out = element("div");
  out.append(summary(r, now));
  if (r.gone) out.append(element("p", { className: "message" }, "It runs no longer, and what became of it is not known: the server was started anew, or more has ended since than it remembers."));
  if (r.message) out.append(element("p", { className: "message" }, `${r.status}${r.code ? " " + r.code : ""}: ${r.message}`));
  if (r.events) {
    out.append(element("h3", {}, "Timeline"), ...eventful(r, r.running ? (now - r.arrival) / 1000 : 0));
  } else if (list.length > 0) {
    out.append(element("h3", {}, "Timeline"), picture([list], end), table(r, list));
  }
  const slow = r.running ? null : slowed(r);
  if (slow) out.append(element("h3", {}, "What slowed it"), slow);
  const gaps = between(r, bounds);
  if (gaps) out.append(element("h3", {}, "Time between its tokens"), gaps);
  out.append(element("h3", {}, "Facts"), facts(r));
  return out;
}

function definition(term, value) {
  return element("div", {}, element("dt", {}, term), element("dd", {}, value));
}

function summary(r, now) {
  const dl = element("dl", { className: "summary" });
  const at = (to, from) => (to && from ? (to - from) / 1000 : -1);
  if (r.running) {
    dl.append(
      definition("now", r.gone ? "not known" : stateName(r)), definition("age", span(at(now, r.arrival))),
      definition("tokens", r.max ? `${count(r.tokens)} of ${count(r.max * r.seqs)}` : count(r.tokens)),
      definition("queue", span(at(r.scheduled, r.queued))), definition("first token", span(at(r.first, r.arrival))),
      definition("between tokens", r.tokens > r.seqs ? span((r.last - r.first) / 1000 / (r.tokens / r.seqs - 1)) : "–"));
    return dl;
  }
  dl.append(
    definition("outcome", `${r.outcome} (${r.status})`), definition("total", span(r.total)), definition("tokens", `${count(r.prompt)} + ${count(r.tokens)}`),
    definition("queue", span(r.queue)), definition("first token", span(r.ttft)), definition("between tokens", span(r.between)));
  return dl;
}

// picture draws lanes of parts above one scale.
function picture(lanes, end) {
  const box = element("div", {}), rows = element("div", { className: "lanes", role: "img", "aria-label": "The parts of the request's life; the table below has them in words" });
  for (const list of lanes) {
    const lane = element("div", { className: "life" });
    for (const [from, to, colour, note, kind] of list) {
      if (to <= from) continue;
      lane.append(element("i", {
        className: kind ?? (colour === "deliver" ? "thin" : ""), data: { hue: colour }, title: note ?? `${names[colour]}: ${span((to - from) / 1000)}`,
        style: { left: from / end * 100 + "%", width: (to - from) / end * 100 + "%" },
      }));
    }
    rows.append(lane);
  }
  box.append(rows, scale(end));
  return box;
}

// scale writes the times below a picture that is end microseconds wide.
function scale(end) {
  const box = element("div", { className: "ticks", "aria-hidden": "true" });
  for (const t of ticks(end / 1000)) box.append(element("span", { style: { left: t * 1000 / end * 100 + "%" } }, brief(t)));
  return box;
}

function table(r, list) {
  const body = element("tbody");
  const what = {
    queue: () => (r.ahead ? `behind ${r.ahead} others` : ""),
    prefill: () => `${count(r.running ? r.prefilled : r.prompt)} prompt tokens${r.cached ? `, ${count(r.cached)} of them from the cache` : ""}`,
    decode: () => `${some(r.tokens, "token")}${r.steps ? ` in ${some(r.steps, "step")}, with ${mean(r.batch_sum / r.steps)} sequences on average` : ""}${r.preemptions ? `; lost its place ${some(r.preemptions, "time")}` : ""}`,
    lost: () => "waits to be computed again",
    deliver: () => (r.bytes ? `${count(r.bytes)} bytes` : "until the client had it all"),
  };
  for (const [from, to, colour] of list) {
    body.append(element("tr", {},
      element("td", { data: { hue: colour } }, element("span", { className: "dot" }), names[colour]),
      element("td", { className: "num" }, span(from / 1000)), element("td", { className: "num" }, span((to - from) / 1000)),
      element("td", {}, what[colour]())));
  }
  return listing(body);
}

function listing(body) {
  return element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "What happened" }, element("table", {}, element("thead", {}, element("tr", {},
    element("th", {}, "part"), element("th", { className: "num" }, "from"), element("th", { className: "num" }, "took"), element("th", {}, "what"))), body));
}

// The kinds of events, as lifecycle.EventKind names them: how each is called, and its colour.
const kinds = {
  queue: ["In the queue", "queue"], prefill: ["Prefill", "prefill"], decode: ["Decode", "decode"], stall: ["Stall", "decode", "stall"],
  preempted: ["Without its place", "lost"], recompute: ["Computed again", "prefill", "again"], several: ["Several events", "step"],
  end: ["End", "deliver"], delivered: ["Delivery", "deliver", "thin"], left_out: ["Further choices", "step"],
};

const reasons = {
  prefill_of_others: "prompts of others in its steps", bigger_batch: "a bigger batch", slow_step: "a slow step of the device", between_steps: "time lost between steps",
  kv_blocks: "others needed its cache blocks", device_restart: "the device was restarted", batcher_lost: "the scheduler was restarted",
};

// eventful shows the events that the server kept: a lane for each choice, and all of them in words.
function eventful(r, age) {
  const lanes = [], body = element("tbody"), several = r.events.some((e) => e.seq > 0);
  let end = age;
  for (const e of r.events) end = Math.max(end, (e.at ?? 0) + (e.ms ?? 0));
  for (const e of r.events) {
    const [name, colour, kind] = kinds[e.e] ?? [e.e, "step"];
    const what = words(e);
    if (e.at !== undefined) {
      const lane = lanes[e.e === "delivered" ? 0 : e.seq ?? 0] ??= [];
      lane.push([e.at * 1000, (e.at + e.ms) * 1000, colour, `${name}: ${span(e.ms)}${what ? `, ${what}` : ""}`, kind]);
    }
    body.append(element("tr", {},
      element("td", { data: { hue: kind === "stall" ? "lost" : colour } }, element("span", { className: "dot" }), name + (several && e.at !== undefined && e.e !== "delivered" ? ` · ${(e.seq ?? 0) + 1}` : "")),
      element("td", { className: "num" }, e.at === undefined ? "" : span(e.at)), element("td", { className: "num" }, e.at === undefined ? "" : span(e.ms)),
      element("td", {}, what)));
  }
  return [picture(Array.from(lanes, (l) => l ?? []), Math.max(end * 1000, 1)), listing(body)];
}

// words says what is known of an event besides its times.
function words(e) {
  const list = [];
  const add = (n, text) => n && list.push(text(n));
  if (e.e === "left_out") return `${count(e.sequences)} have no events here`;
  if (e.why) list.push(reasons[e.why] ?? e.why);
  add(e.excess_ms, (n) => `${span(n)} more than usual`);
  add(e.ahead, (n) => `${count(n)} waited before it`);
  add(e.slot_ms, (n) => `${span(n)} for want of a place${e.slots ? ` (of ${count(e.slots)})` : ""}`);
  add(e.budget_ms, (n) => `${span(n)} of that for want of tokens in the step`);
  add(e.kv_ms, (n) => `${span(n)} for want of cache blocks`);
  add(e.cached, (n) => `${count(n)} tokens in the cache`);
  add(e.prompt, (n) => `${count(n)} ${e.e === "recompute" ? "tokens again" : "prompt tokens"}`);
  add(e.output, (n) => some(n, "token"));
  add(e.steps, (n) => `${some(n, "step")}${e.batch ? ` of ${mean(e.batch)} ${e.batch === 1 ? "sequence" : "sequences"}` : ""}`);
  add(e.others, (n) => `with ${count(n)} prompt tokens of others`);
  add(e.merged, (n) => `${count(n)} more events in it`);
  return list.join(", ");
}

function slowed(r) {
  const all = causes.map(([name, text, colour]) => [(r.slowed?.[name] ?? 0) / 1000, text, colour]).filter(([ms]) => ms >= 0.005 * r.total && ms > 0);
  if (all.length === 0) return null;
  const most = Math.max(...all.map(([ms]) => ms)), box = element("div", { className: "slow" });
  for (const [ms, text, colour] of all.sort((a, b) => b[0] - a[0])) {
    box.append(element("span", {}, text),
      element("span", { className: "bar" }, element("i", { data: { hue: colour }, style: { transform: `scaleX(${ms / most})` } })),
      element("span", { className: "num" }, `${span(ms)} · ${(ms / Math.max(r.total, 1e-9) * 100).toFixed(0)} %`));
  }
  return box;
}

function between(r, bounds) {
  if (!r.itl?.length) return null;
  let all = 0;
  for (let i = 1; i < r.itl.length; i += 2) all += r.itl[i];
  const most = Math.max(...r.itl.filter((_, i) => i % 2 === 1)), box = element("div", { className: "slow" });
  for (let i = 0; i < r.itl.length; i += 2) {
    const b = r.itl[i], text = b < bounds.length ? "up to " + brief(bounds[b] / 1000) : "above " + brief(bounds[b - 1] / 1000);
    box.append(element("span", {}, text),
      element("span", { className: "bar" }, element("i", { data: { hue: "decode" }, style: { transform: `scaleX(${r.itl[i + 1] / most})` } })),
      element("span", { className: "num" }, `${count(r.itl[i + 1])} · ${(r.itl[i + 1] / all * 100).toFixed(r.itl[i + 1] < all / 100 ? 1 : 0)} %`));
  }
  return box;
}

function facts(r) {
  const dl = element("dl", { className: "facts" });
  const add = (term, value) => value !== undefined && value !== "" && value !== 0 && dl.append(definition(term, String(value)));
  add("id", r.ext || r.id);
  add("client's id", r.client);
  add("model", r.model);
  add("endpoint", r.endpoint || [r.method, r.path].filter(Boolean).join(" "));
  add("key", r.key);
  add("client", r.peer);
  add("arrived", r.wall ? new Date(r.wall).toLocaleString() : "");
  add("prompt", `${count(r.prompt)} tokens${r.cached ? `, ${count(r.cached)} cached` : ""}`);
  add("most tokens", r.max ? count(r.max) : "");
  add("choices", r.seqs > 1 ? r.seqs : "");
  add("streamed", r.stream ? "yes" : "no");
  add("engine", r.engine >= 0 ? String(r.engine) : ""); // of several
  add("lost its place", r.preemptions ? some(r.preemptions, "time") : "");
  return dl;
}
