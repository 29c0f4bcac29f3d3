// What may be written into the search field. Words must all occur, in any order, anywhere in a
// request's texts. FIELD:WORD looks in one field, FIELD>NUMBER and FIELD<NUMBER compare, − before any
// of them excludes, and quotes keep spaces together.

// The tables have no prototype: a field is what they name, and nothing else that an object has.
const texts = {
  __proto__: null,
  id: (d) => [d.ext, d.client, String(d.id)], model: (d) => [d.model], key: (d) => [d.key], endpoint: (d) => [d.endpoint, d.path],
  outcome: (d) => [d.outcome], status: (d) => [String(d.status)], error: (d) => [d.message, d.code], peer: (d) => [d.peer], engine: (d) => [String(d.engine ?? "")],
};
const times = { __proto__: null, ttft: (d) => d.ttft, first: (d) => d.ttft, itl: (d) => d.between, between: (d) => d.between, total: (d) => d.total, queue: (d) => d.queue };
const numbers = { __proto__: null, tokens: (d) => d.tokens, prompt: (d) => d.prompt, cached: (d) => d.cached, status: (d) => d.status, preemptions: (d) => d.preemptions ?? 0, n: (d) => d.seqs };
const units = { __proto__: null, us: 1e-3, "µs": 1e-3, ms: 1, s: 1000, m: 60000, min: 60000 };

export const orders = {
  newest: null,
  slowest: (d) => d.total, ttft: (d) => d.ttft, itl: (d) => d.between, queue: (d) => d.queue, tokens: (d) => d.tokens,
};

// parse returns { match, order, wrong }: whether a request is meant, the order if the text names one,
// and what is wrong with the text, or "".
export function parse(text) {
  const tests = [];
  let order = "", wrong = "";
  for (const [, minus, quoted, word] of text.matchAll(/(-?)(?:"([^"]*)"?|(\S+))/g)) {
    const t = (quoted ?? word).toLowerCase();
    if (t === "") continue;
    if (quoted === undefined && minus === "" && t === "slowest") {
      order = "slowest";
      continue;
    }
    const [test, complaint] = quoted === undefined ? term(t) : [(d) => d.words.includes(t), ""];
    wrong ||= complaint;
    tests.push(minus ? (d) => !test(d) : test);
  }
  return { match: (d) => tests.every((t) => t(d)), order, wrong };
}

function term(t) {
  const compared = /^([a-z]+)(<=|>=|<|>|=)(.*)$/.exec(t);
  if (compared && (times[compared[1]] || numbers[compared[1]])) {
    const [, name, op, value] = compared;
    const parts = /^(\d+(?:\.\d+)?|\.\d+)([a-zµ]*)$/.exec(value);
    const unit = parts && (parts[2] === "" ? 1 : times[name] ? units[parts[2]] : undefined);
    if (!unit) {
      return [() => true, times[name] ? `${t}: want a time, as in ${name}>500 (milliseconds) or ${name}>2s` : `${t}: want a number, as in ${name}>100`];
    }
    const limit = Number(parts[1]) * unit, get = times[name] ?? numbers[name];
    const holds = { "<": (v) => v < limit, ">": (v) => v > limit, "<=": (v) => v <= limit, ">=": (v) => v >= limit, "=": (v) => v === limit }[op];
    return [(d) => get(d) >= 0 && holds(get(d)), ""];
  }
  const named = /^([a-z]+):(.+)$/.exec(t);
  if (named && texts[named[1]]) {
    const get = texts[named[1]], word = named[2];
    return [(d) => get(d).some((v) => v !== undefined && v.toLowerCase().includes(word)), ""];
  }
  return [(d) => d.words.includes(t), ""];
}
