// What the server has told: the running requests, those that have finished, and the gauges' past.

// The states of a request, as lifecycle.State numbers them.
export const WAITING = 1, PREFILLING = 2, DECODING = 3, DISPLACED = 4, ENDED = 5;

const samples = 480; // of each gauge: two minutes at four a second

export class State {
  constructor() {
    this.version = 0; // rises with each change of past
    this.reset({ kept: 4096, itl_bounds: [] });
  }

  reset(hello) {
    this.hello = hello;
    this.at = 0;
    this.gauges = null;
    this.running = new Map();
    this.past = []; // oldest first
    this.pastIDs = new Map();
    this.hidden = 0;
    this.missed = 0;
    this.version++;
    this.series = { tokens: [], prompt: [], running: [], waiting: [], blocks: [], step: [] };
    this.now = {}; // the latest of each rate
  }

  apply(f) {
    if (f.hello) {
      this.reset(f.hello);
      this.wall = f.hello.wall - f.at / 1000;
    }
    if (f.gauges) this.measure(f);
    for (const r of f.new ?? []) {
      const p = r.progress;
      delete r.progress;
      this.running.set(r.id, Object.assign(r, { seqs: r.seqs || 1, max: r.max || 0, client: r.client || "", key: r.key || "", running: true }));
      this.progress(r, p, 0);
    }
    for (const c of f.changed ?? []) {
      const r = this.running.get(c[0]);
      if (!r) continue;
      if (c.length === 3) [, r.tokens, r.last] = c;
      else this.progress(r, c, 1);
    }
    for (const id of f.gone ?? []) this.running.delete(id);
    for (const d of f.done ?? []) {
      this.running.delete(d.id);
      this.keep(d, false);
    }
    if (f.past) for (let i = f.past.length - 1; i >= 0; i--) this.keep(f.past[i], true);
    this.hidden = f.hidden ?? 0;
    this.missed += f.missed ?? 0;
  }

  progress(r, a, i) {
    [r.state, r.tokens, r.prefilled, r.queued, r.scheduled, r.first, r.last, r.preemptions, r.cached, r.engine] = a.slice(i);
  }

  keep(d, older) {
    if (this.pastIDs.has(d.id)) return;
    Object.assign(d, {
      seqs: d.seqs || 1, tokens: d.tokens || 0, cached: d.cached || 0, max: d.max || 0,
      queued: d.queued || 0, scheduled: d.scheduled || 0, first: d.first || 0, last: d.last || 0, finished: d.finished || d.arrival, delivered: d.delivered || 0,
    });
    // Milliseconds, or −1 where it never came to that.
    d.total = (d.finished - d.arrival) / 1000;
    d.queue = d.scheduled ? (d.scheduled - d.queued) / 1000 : -1;
    d.ttft = d.first ? (d.first - d.arrival) / 1000 : -1;
    let gaps = 0;
    for (let i = 1; i < (d.itl?.length ?? 0); i += 2) gaps += d.itl[i];
    d.between = gaps > 0 ? d.itl_sum / gaps / 1000 : -1;
    d.words = [d.ext, d.client, d.id, d.model, d.key, d.endpoint, d.peer, d.method, d.path, d.outcome, d.status, d.code, d.message]
      .filter((w) => w !== undefined && w !== "").join("\n").toLowerCase();
    if (older) this.past.unshift(d); else this.past.push(d);
    this.pastIDs.set(d.id, d);
    while (this.past.length > this.hello.kept) this.pastIDs.delete(this.past.shift().id);
    this.version++;
  }

  // measure makes rates of what only rises.
  measure(f) {
    const g = f.gauges, before = this.gauges, span = (f.at - this.at) / 1e6;
    const n = this.now, s = this.series;
    if (before && span > 0) {
      const steps = g.steps - before.steps;
      n.tokens = Math.max(g.generated - before.generated, 0) / span;
      n.prompt = Math.max(g.computed - before.computed, 0) / span;
      n.cached = Math.max(g.cached - before.cached, 0) / span;
      n.steps = Math.max(steps, 0) / span;
      if (steps > 0) n.step = (g.step_time - before.step_time) / steps / 1000;
      else if (g.running === 0) n.step = 0;
      push(s.tokens, f.at, n.tokens);
      push(s.prompt, f.at, n.prompt);
      push(s.step, f.at, n.step ?? 0);
    }
    n.blocks = g.blocks_total ? g.blocks_used / g.blocks_total : 0;
    push(s.running, f.at, g.running);
    push(s.waiting, f.at, g.waiting);
    push(s.blocks, f.at, n.blocks);
    this.gauges = g;
    this.at = f.at;
  }
}

function push(series, at, v) {
  series.push([at, v]);
  if (series.length > samples) series.shift();
}
