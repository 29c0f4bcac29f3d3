// Numbers as people read them, and elements whose text is text: nothing here, or anywhere on the
// page, makes HTML of what came from a client.

// span writes milliseconds with three digits: 850 µs, 85.2 ms, 1.34 s, 2 m 05 s.
export function span(ms) {
  if (!(ms >= 0)) return "–";
  if (ms === 0) return "0";
  if (ms < 0.9995) return Math.round(ms * 1000) + " µs";
  if (ms < 999.5) return three(ms) + " ms";
  if (ms < 59950) return three(ms / 1000) + " s";
  const s = Math.round(ms / 1000);
  if (s < 3600) return `${Math.floor(s / 60)} m ${String(s % 60).padStart(2, "0")} s`;
  return `${Math.floor(s / 3600)} h ${String(Math.floor(s / 60) % 60).padStart(2, "0")} m`;
}

// brief is span for the marks of a scale, which are round: 50 ms, 2.5 s.
export function brief(ms) { return span(ms).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " "); }

function three(v) { return v.toFixed(v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2); }

// rate writes a number per second, or a count that may be large.
export function rate(v) {
  if (!(v >= 0)) return "–";
  if (v >= 9.995e5) return three(v / 1e6) + "M";
  if (v >= 9995) return three(v / 1e3) + "k";
  if (v >= 99.95) return Math.round(v).toLocaleString("en");
  if (v === 0) return "0";
  return v.toFixed(v >= 9.95 ? 1 : 2);
}

export function count(v) { return v.toLocaleString("en"); }

// some is a count of what has a plural in s: 1 step, 2 steps.
export function some(v, what) { return `${count(v)} ${what}${v === 1 ? "" : "s"}`; }

// mean writes a mean of whole numbers: 16.7, and 1 where all are 1.
export function mean(v) { return v.toFixed(1).replace(/\.0$/, ""); }

// element makes an element with properties and children; strings are text.
export function element(tag, properties = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "data") Object.assign(e.dataset, value);
    else if (name === "style") Object.assign(e.style, value);
    else if (name in e) e[name] = value;
    else e.setAttribute(name, value);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}

// say sets an element's text if it is not that already: what has not changed costs no layout.
export function say(e, text) {
  if (e.said !== text) e.textContent = e.said = text;
}

// ticks returns where the marks of a scale from 0 to most are, four or so of them.
export function ticks(most) {
  const raw = most / 4, ten = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 2.5, 5, 10].find((m) => m * ten >= raw) * ten;
  const all = [];
  for (let v = 0; v <= most * 1.0001; v += step) all.push(v);
  return all;
}

// renew makes of an element's content what another's is, and touches only what differs, so that
// neither where one has scrolled to nor what is selected or in focus is lost.
export function renew(was, is) {
  const old = [...was.childNodes], all = [...is.childNodes];
  all.forEach((now, i) => {
    const then = old[i];
    if (!then) was.append(now);
    else if (then.nodeName !== now.nodeName) then.replaceWith(now);
    else if (then.nodeType === Node.TEXT_NODE) {
      if (then.data !== now.data) then.data = now.data;
    } else {
      for (const name of new Set([...then.getAttributeNames(), ...now.getAttributeNames()])) {
        const value = now.getAttribute(name);
        if (then.getAttribute(name) === value) continue;
        if (name === "style") then.style.cssText = now.style.cssText; // the policy forbids the attribute
        else if (value === null) then.removeAttribute(name);
        else then.setAttribute(name, value);
      }
      renew(then, now);
    }
  });
  for (const then of old.slice(all.length)) then.remove();
}
