// The live page: it follows the server's stream and draws what it says, once for each frame at most.

import { Stream } from "./stream.js";
import { State, PREFILLING } from "./state.js";
import { parse, orders } from "./search.js";
import { Rows } from "./rows.js";
import { parts, pastParts, stateName, tell } from "./life.js";
import { spark, bars, field, forget, size } from "./draw.js";
import { span, brief, rate, count, some, element, renew, say, ticks } from "./text.js";

const $ = (id) => document.getElementById(id);
const state = new State();
const narrow = matchMedia("(max-width: 700px)");
let phone = narrow.matches; // kept, since to ask is to lay the page out
narrow.addEventListener("change", () => { phone = narrow.matches; due(true); });

// For whoever wants to know whether the page keeps up.
const stats = window.troupe = { frames: 0, draws: 0, drawTime: 0, longestDraw: 0, running: 0, finished: 0 };

// ---- what is kept in the tab, where that is allowed

function recall(store, name) {
  try { return window[store].getItem(name) ?? ""; } catch { return ""; }
}

function remember(store, name, value) {
  try {
    if (value) window[store].setItem(name, value); else window[store].removeItem(name);
  } catch { /* then it is asked for again */ }
}

// ---- the connection

const stream = new Stream("console/api/stream", {
  frame(f) {
    stats.frames++;
    state.apply(f);
    if (f.hello) greet(f.hello);
    due();
  },
  state(name, text) {
    $("link").dataset.state = name;
    say($("link"), text);
    if (name !== "waiting") stale = name === "lost"; // while it connects again, still
    due();
  },
  refused() {
    remember("sessionStorage", "troupe-key", "");
    $("link").dataset.state = "lost";
    say($("link"), "no key");
    signIn("That key is not known here.");
  },
});

let stale = false; // what is shown is not of now

function connect() {
  const key = recall("sessionStorage", "troupe-key");
  $("forget").hidden = key === "";
  if (key === "" && document.documentElement.dataset.key === "needed") {
    say($("link"), "no key");
    signIn("");
  } else {
    stream.start(key);
  }
}

function signIn(wrong) {
  say($("login-wrong"), wrong);
  $("login").returnValue = "";
  if (!$("login").open) $("login").showModal();
  $("key").value = "";
  $("key").focus();
}

// There is nothing behind it: Escape, which a browser lets one prevent but once, opens it anew.
$("login").addEventListener("cancel", (e) => e.preventDefault());
$("login").addEventListener("close", () => $("login").returnValue || signIn(""));
$("login-form").addEventListener("submit", (e) => {
  e.preventDefault();
  remember("sessionStorage", "troupe-key", $("key").value.trim());
  const key = $("key").value.trim();
  $("key").value = "";
  $("login").close("key");
  $("forget").hidden = false;
  stream.start(key);
});
$("forget").addEventListener("click", () => {
  remember("sessionStorage", "troupe-key", "");
  stream.stop();
  state.reset(state.hello);
  due();
  connect();
});

// Nobody looks at a page that is hidden for long.
let hiddenTimer = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) {
    hiddenTimer = setTimeout(() => { stream.stop(); say($("link"), "asleep"); $("link").dataset.state = "waiting"; }, 60000);
  } else if ($("link").dataset.state !== "live" && !$("login").open) {
    connect();
  }
});

function greet(h) {
  say($("model"), h.model || "–");
  say($("device"), h.device ? `${h.device}${h.kind === "sim" ? "" : ` (${h.kind})`}` : "–");
  say($("version"), h.version || "–");
  $("model").title = h.model;
  $("device").title = h.device;
  document.title = `${h.model} · Troupe console`;
}

// ---- theme and pause

const themes = ["auto", "dark", "light"];

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
  say($("theme"), "Theme: " + theme);
  remember("localStorage", "troupe-theme", theme === "auto" ? "" : theme);
  forget();
  due(true);
}

function nextTheme() {
  const now = document.documentElement.dataset.theme ?? "auto";
  setTheme(themes[(themes.indexOf(now) + 1) % themes.length]);
}

$("theme").addEventListener("click", nextTheme);
matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => { forget(); due(true); });

let paused = false;
function pause() {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", paused);
  say($("pause"), paused ? "Go on" : "Pause");
  if (!paused) due();
}
$("pause").addEventListener("click", pause);

document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]")) return;
  const writing = e.target.closest("input, select, textarea");
  if (writing) {
    if (e.key === "Escape" && writing.id === "search") { writing.value = ""; searched(); writing.blur(); }
    return;
  }
  switch (e.key) {
    case "/": $("search").focus(); break;
    case "p": pause(); break;
    case "t": nextTheme(); break;
    default: return;
  }
  e.preventDefault();
});

// ---- drawing: once for all frames that have come since

let drawing = false, forced = false;

function due(force = false) {
  forced ||= force;
  if (drawing || (paused && !forced)) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    const began = performance.now();
    draw(forced);
    forced = false;
    const took = performance.now() - began;
    stats.draws++;
    stats.drawTime += took;
    stats.longestDraw = Math.max(stats.longestDraw, took);
    stats.running = state.running.size;
    stats.finished = state.past.length;
  });
}

function draw(all) {
  drawGauges();
  drawRunning();
  drawPast(all);
  if (open && open.running) showDetail();
}

addEventListener("resize", () => due(true));

function alarm(text) {
  $("alarm").hidden = text === "";
  say($("alarm"), text);
}

function drawGauges() {
  const g = state.gauges, n = state.now, s = state.series, at = state.at;
  if (!g) return;
  $("main").dataset.stale = stale;
  alarm(stale ? `No connection to the server: what is shown is of ${new Date(state.wall + at / 1000).toLocaleTimeString()}. The page connects again by itself.` : g.unhealthy ? "The server has no working device: " + g.unhealthy : g.draining ? "The server is shutting down: it takes no new requests, and those below go on to their ends." : g.ailing ? "A part of the server has no working device: " + g.ailing : "");
  say($("g-tokens"), rate(n.tokens ?? 0));
  say($("g-tokens-sub"), `${rate(g.generated)} since the start`);
  say($("g-prompt"), rate(n.prompt ?? 0));
  say($("g-prompt-sub"), n.cached > 0 ? `and ${rate(n.cached)} from the cache` : g.cached > 0 ? `${(g.cached / (g.cached + g.computed) * 100).toFixed(0)} % of all from the cache` : "computed");
  say($("g-running"), count(g.running));
  const each = (what) => (g.engines ? ` (${g.engines.map((e) => (e.away ? "–" : count(what(e)))).join(" + ")})` : ""); // engines
  say($("g-running-sub"), `of ${some(g.requests, "request")}${state.hello.max_seqs ? `; ${count(state.hello.max_seqs)} places` : ""}${each((e) => e.running)}`);
  say($("g-waiting"), count(g.waiting));
  say($("g-waiting-sub"), (g.waiting === 0 ? (g.preemptions ? `${count(g.preemptions)} places lost so far` : "no queue") : g.no_blocks ? "for KV cache blocks" : "for a place in the batch") + (g.waiting ? each((e) => e.waiting) : ""));
  say($("g-blocks"), (n.blocks * 100).toFixed(n.blocks > 0 && n.blocks < 0.0995 ? 1 : 0));
  say($("g-blocks-sub"), `${count(g.blocks_used)} of ${count(g.blocks_total)} blocks`);
  const step = n.step ?? 0, [value, unit] = span(step).split(" ");
  say($("g-step"), value === "–" ? "0" : value);
  say($("g-step-unit"), unit ?? "ms");
  say($("g-step-sub"), n.steps > 0 ? `${rate(n.steps)} steps/s of ${some(g.iteration, "token")}` : "idle");
  $("g-waiting").closest(".gauge").dataset.alert = g.waiting > 0 && g.no_blocks;
  spark($("c-tokens"), s.tokens, "decode", at, 1);
  spark($("c-prompt"), s.prompt, "prefill", at, 1);
  spark($("c-running"), s.running, "decode", at, 1);
  spark($("c-waiting"), s.waiting, "queue", at, 1);
  spark($("c-blocks"), s.blocks, "cache", at, 1);
  spark($("c-step"), s.step, "step", at, 0.1);
}

// ---- the running requests

let scale = 1e6; // microseconds that the width of a bar stands for

const live = new Rows($("live"), {
  key: (r) => r.id,
  tall: () => (phone ? 46 : 24),
  make() {
    const part = (hue, name = "") => element("i", { className: name, data: { hue } });
    return element("div", {}, element("span", { className: "id" }),
      element("span", { className: "bar" }, part("queue"), part("prefill", "track"), part("prefill"), part("decode"), part("lost")),
      element("span", { className: "num" }), element("span", { className: "num dim" }), element("span", { className: "num dim" }));
  },
  fill(row, r) {
    const [id, bar, tokens, speed, age] = row.children;
    say(id, r.ext || String(r.id));
    const want = [[0, 0], [0, 0], [0, 0], [0, 0], [0, 0]];
    for (const [from, to, colour] of parts(r, state.at)) {
      const at = { queue: 0, prefill: 1, decode: 3, lost: 4, deliver: 4 }[colour];
      want[at] = [from, to];
      // Of a prompt that is being computed, so much is done.
      if (colour === "prefill") want[2] = [from, from + (to - from) * (r.first || r.prompt === 0 ? 1 : Math.min(r.prefilled / r.prompt, 1))];
      if (at === 4) bar.children[4].dataset.hue = colour;
    }
    want.forEach(([from, to], i) => place(bar.children[i], from, to));
    say(tokens, r.state === PREFILLING && !r.first ? `${count(r.prefilled)}/${count(r.prompt)}` : r.first ? `${count(r.tokens)}${r.max ? "/" + rate(r.max * r.seqs) : ""}` : `0/${r.max ? rate(r.max * r.seqs) : "?"}`);
    say(speed, r.tokens > r.seqs && r.last > r.first ? rate((r.tokens - r.seqs) / (r.last - r.first) * 1e6) + " tok/s" : stateName(r));
    say(age, span(Math.max(state.at - r.arrival, 0) / 1000));
    const told = `${r.ext || r.id}, ${stateName(r)}, ${r.tokens} tokens`;
    if (row.told !== told) row.setAttribute("aria-label", row.told = told);
  },
  open: (r) => openDetail(r),
});

// place draws a part of a bar. It grows smoothly, but appears and shrinks at once: what was taken for
// waiting a moment ago may have been prefill.
function place(part, from, to) {
  const grows = part.to > 0 && part.from === from && to >= part.to;
  if (part.grows !== grows) part.style.transition = (part.grows = grows) ? "" : "none";
  part.from = from;
  part.to = to;
  const transform = `translateX(${Math.min(from / scale, 1) * 100}%) scaleX(${Math.max(Math.min(to / scale, 1) - Math.min(from / scale, 1), 0)})`;
  if (part.placed !== transform) part.style.transform = part.placed = transform;
}

// rescale chooses what the width of the bars stands for: a round time, above the oldest request's age.
function rescale(oldest) {
  if (oldest <= scale && oldest > scale * 0.3) return;
  const ten = 10 ** Math.floor(Math.log10(Math.max(oldest, 1e5))), target = [1, 1.5, 2, 3, 5, 7.5, 10].find((m) => m * ten >= oldest * 1.15) ?? 15;
  scale = target * ten;
}

function drawRunning() {
  const all = [...state.running.values()];
  let oldest = 0;
  for (const r of all) oldest = Math.max(oldest, state.at - r.arrival);
  if (all.length > 0) rescale(oldest);
  say($("running-count"), state.hidden > 0 ? `${count(all.length)}, and ${count(state.hidden)} that are too many to show` : count(all.length));
  const empty = all.length === 0;
  $("live-empty").hidden = !empty;
  $("live").hidden = empty;
  const marks = empty ? "" : ticks(scale / 1000).map(span).join("|");
  if ($("axis").marks !== marks) {
    $("axis").marks = marks;
    const box = element("div", { className: "scale" });
    if (!empty) for (const t of ticks(scale / 1000)) box.append(element("span", { style: { left: t * 1000 / scale * 100 + "%" } }, t === 0 ? "arrival" : brief(t)));
    $("axis").replaceChildren(box);
  }
  // Once there, the picture stays until clearly fewer run: what comes and goes moves the list.
  const many = all.length > (size($("field").parentElement)[1] - 20) / live.how.tall() * ($("field").hidden ? 1 : 0.7);
  $("field").hidden = !many;
  if (many) {
    field($("field"), all, (r) => parts(r, state.at), scale);
  }
  // A smooth motion costs a picture at each of the screen's frames: it is for a few.
  $("live").classList.toggle("still", all.length > 64);
  live.set(all);
}

$("field").addEventListener("click", (e) => {
  const i = Math.floor(e.offsetY / size($("field"))[1] * live.items.length);
  live.choose(i);
  $("live").focus({ preventScroll: true });
});

// ---- the finished requests

let meant = parse(""), drawnVersion = -1, drawnAt = 0, laterTimer = 0, found = [], pointed = false;

$("past").addEventListener("pointerenter", (e) => { pointed = e.pointerType === "mouse"; });
$("past").addEventListener("pointerleave", () => { pointed = false; due(); });

const past = new Rows($("past"), {
  key: (d) => d.id,
  tall: () => (phone ? 54 : 30),
  make() {
    const cell = (name) => element("span", { className: name });
    return element("div", {}, cell("id"), cell("outcome"), cell("num"), cell("num dim"), cell("num"), cell("num"), cell("num"),
      element("span", { className: "bar" }, ...["queue", "prefill", "decode", "deliver"].map((hue) => element("i", { data: { hue } }))));
  },
  fill(row, d, fresh) {
    if (!fresh && row.item === d) return; // what has finished does not change
    row.item = d;
    const [id, outcome, tokens, queue, ttft, between, total, bar] = row.children;
    const name = d.ext || d.client || [d.method, d.path].filter(Boolean).join(" ") || String(d.id);
    say(id, name);
    say(outcome, d.outcome + (d.status !== 200 ? " " + d.status : "") + (d.key ? ` · ${d.key}` : ""));
    outcome.dataset.outcome = d.outcome;
    outcome.title = d.message ?? "";
    say(tokens, d.outcome === "refused" ? "–" : `${count(d.prompt)} + ${count(d.tokens)}`);
    say(queue, span(d.queue));
    say(ttft, span(d.ttft));
    say(between, span(d.between));
    say(total, span(d.total));
    const list = pastParts(d), end = Math.max(...list.map((p) => p[1]), 1);
    for (const i of bar.children) {
      const p = list.find((p) => p[2] === i.dataset.hue);
      i.style.transform = p ? `translateX(${p[0] / end * 100}%) scaleX(${(p[1] - p[0]) / end})` : "scaleX(0)";
    }
    row.setAttribute("aria-label", `${name}, ${d.outcome} ${d.status}, ${d.tokens} tokens, total ${span(d.total)}`);
  },
  open: (d) => openDetail(d),
});

// drawPast lists and counts again when something has changed, once a second at most: with thousands
// in the list that is what costs.
function drawPast(all) {
  if (drawnVersion === state.version && !all) return;
  const wait = 1000 - (performance.now() - drawnAt);
  if (!all && wait > 0 && state.past.length > 200) {
    if (!laterTimer) laterTimer = setTimeout(() => { laterTimer = 0; due(); }, wait);
    return;
  }
  // A list that moves under the pointer can't be clicked: it waits until the pointer has gone.
  if (!all && pointed && found.length > 0) {
    say($("finished-count"), `${count(found.length)}; what is new waits while the pointer is on the list`);
    return;
  }
  drawnVersion = state.version;
  drawnAt = performance.now();
  const before = found, held = past.top, by = orders[meant.order || $("order").value];
  found = state.past.filter(meant.match);
  if (by) found.sort((a, b) => by(b) - by(a)); else found.reverse();
  say($("finished-count"), (found.length === state.past.length ? count(found.length) : `${count(found.length)} of ${count(state.past.length)}`) +
    (state.missed ? `; ${count(state.missed)} came too fast to show` : ""));
  $("past-empty").hidden = found.length > 0;
  say($("past-empty"), state.past.length > 0 ? "None of them is meant by the search." : "Nothing has finished yet.");
  $("past").hidden = found.length === 0;
  // Whoever has scrolled down goes on seeing the same rows.
  if (held > 0 && !by && !all && before.length > 0) {
    const moved = found.indexOf(before[Math.min(past.first(), before.length - 1)]) - past.first();
    past.set(found);
    if (moved > 0) past.scroll(held + moved * past.how.tall());
  } else {
    past.set(found);
  }
  drawTTFT();
  drawITL();
}

function quantiles(box, list) {
  box.replaceChildren(...list.flatMap(([name, value]) => [`${name} `, element("b", {}, value), "   "]));
}

function drawTTFT() {
  const all = found.map((d) => d.ttft).filter((v) => v >= 0).sort((a, b) => a - b);
  say($("ttft-note"), all.length ? `of ${count(all.length)} listed below` : "");
  if (all.length === 0) {
    bars($("ttft"), [1], [], [], "panel");
    say($("ttft-text"), "no requests yet");
    return;
  }
  $("ttft-text").said = undefined;
  const q = (p) => all[Math.max(Math.ceil(p * all.length) - 1, 0)];
  // Steps of a tenth of a power of ten, or of a twentieth when all lie close together.
  const fine = all.at(-1) / Math.max(all[0], 1e-3) < 30 ? 20 : 10, log = (v) => Math.log10(Math.max(v, 1e-3)) * fine;
  let least = Math.floor(log(all[0])) - 1, most = Math.floor(log(all.at(-1))) + 2;
  while (most - least < 16) { least--; most++; }
  const counts = new Array(most - least).fill(0);
  for (const v of all) counts[Math.floor(log(v)) - least]++;
  const edges = [];
  for (let i = 0; i <= counts.length; i++) {
    const v = 10 ** ((i + least) / fine), ten = 10 ** Math.floor(Math.log10(v) + 1e-9), m = v / ten;
    const near = [1, 2, 5].find((n) => Math.abs(m / n - 1) < 1.13 / fine);
    edges.push(near ? brief(near * ten) : undefined);
  }
  const where = (v) => log(v) - least;
  bars($("ttft"), counts, edges, [[where(q(0.5)), "p50"], [where(q(0.99)), "p99"]], "prefill");
  quantiles($("ttft-text"), [["p50", span(q(0.5))], ["p90", span(q(0.9))], ["p99", span(q(0.99))], ["most", span(all.at(-1))]]);
}

function drawITL() {
  const bounds = state.hello.itl_bounds, counts = new Array(bounds.length + 1).fill(0);
  let all = 0;
  for (const d of found) {
    for (let i = 0; i < (d.itl?.length ?? 0); i += 2) {
      counts[d.itl[i]] += d.itl[i + 1];
      all += d.itl[i + 1];
    }
  }
  say($("itl-note"), all ? `of ${count(all)} gaps` : "");
  if (all === 0) {
    bars($("itl"), [1], [], [], "panel");
    say($("itl-text"), "no tokens yet");
    return;
  }
  $("itl-text").said = undefined;
  let from = counts.findIndex((n) => n > 0) - 1, to = counts.findLastIndex((n) => n > 0) + 2;
  while (to - from < 8) { from--; to++; }
  from = Math.max(from, 0);
  to = Math.min(to, counts.length);
  const q = (p) => {
    let left = Math.ceil(p * all);
    const i = counts.findIndex((n) => (left -= n) <= 0);
    return i < bounds.length ? "≤ " + brief(bounds[i] / 1000) : "> " + brief(bounds.at(-1) / 1000);
  };
  const edges = [];
  for (let i = from; i <= to; i++) edges.push(i === 0 ? "0" : i <= bounds.length ? brief(bounds[i - 1] / 1000) : undefined);
  bars($("itl"), counts.slice(from, to), edges, [], "decode");
  quantiles($("itl-text"), [["p50", q(0.5)], ["p90", q(0.9)], ["p99", q(0.99)]]);
}

let searchTimer = 0;
function searched() {
  meant = parse($("search").value);
  say($("search-wrong"), meant.wrong);
  past.scroll(0);
  due(true);
}
$("search").addEventListener("input", () => { clearTimeout(searchTimer); searchTimer = setTimeout(searched, 120); });
$("search").addEventListener("keydown", (e) => {
  if (e.key === "ArrowDown" && found.length > 0) { e.preventDefault(); $("past").focus(); }
});
$("order").addEventListener("change", searched);

// ---- one request

let open = null, asking = false, eventsAt = 0;

function openDetail(r) {
  open = r;
  $("detail-body").replaceChildren(); // another's is not renewed
  showDetail();
  if (r.running || (!r.events && r.outcome !== "refused")) fetchEvents(r);
  $("detail").showModal();
  $("detail").scrollTop = 0;
  $("detail-title").focus();
}

// fetchEvents asks for what the server keeps of the request at hand. Without it the dialog shows what
// the stream told.
async function fetchEvents(r) {
  if (r !== open || asking || stale) return; // a server that was started anew has other requests of that number
  asking = true;
  eventsAt = performance.now();
  try {
    const headers = stream.key ? { Authorization: "Bearer " + stream.key } : {};
    const response = await fetch("console/api/timeline?id=" + r.id, { headers, cache: "no-store" });
    const body = response.ok ? await response.json() : null;
    if (body?.timeline) r.events = body.timeline;
  } catch { /* the stream will say that the connection is lost */ }
  asking = false;
  if (r === open) showDetail();
  else if (open && !open.events) fetchEvents(open); // another one was opened meanwhile
}

function showDetail() {
  if (open.running) {
    const now = [state.running.get(open.id), state.pastIDs.get(open.id)].find((r) => r && same(r, open));
    const known = now && now !== open; // it has finished meanwhile, or the page has connected again
    if (now && now.running) now.events ??= open.events;
    if (known) open = now;
    open.gone = !now;
    open.at = now ? state.at : open.at ?? state.at;
    if (known || now && performance.now() - eventsAt > 1000) fetchEvents(open);
  }
  say($("detail-title"), open.ext || open.client || `Request ${open.id}`);
  renew($("detail-body"), element("div", {}, tell(open, open.at, state.hello.itl_bounds)));
}

// same says whether two are one request: a server that was started anew counts from 1 again.
function same(a, b) { return a.id === b.id && a.wall === b.wall && a.ext === b.ext; }

$("detail-close").addEventListener("click", () => $("detail").close());
$("detail").addEventListener("click", (e) => e.target === $("detail") && $("detail").close());
$("detail").addEventListener("close", () => { open = null; });

setTheme(recall("localStorage", "troupe-theme") || "auto");
connect();
