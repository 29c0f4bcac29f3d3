// What is drawn: lines of the gauges' past, distributions, and the field of all running requests.

const probe = document.createElement("span");
let palette = {};

// hue resolves one of the style sheet's colours, for canvases.
export function hue(name) {
  if (!palette[name]) {
    if (!probe.isConnected) {
      probe.hidden = true;
      document.body.append(probe);
    }
    probe.style.color = `var(--${name})`;
    palette[name] = getComputedStyle(probe).color;
  }
  return palette[name];
}

// forget makes hue look again: the theme has changed.
export function forget() { palette = {}; }

// Sizes are told, not asked for: to ask is to lay the page out anew, in the middle of drawing it.
const sizes = new WeakMap(), watcher = new ResizeObserver((entries) => {
  for (const e of entries) {
    sizes.set(e.target, [e.contentRect.width, e.contentRect.height]);
    e.target.resized?.();
  }
});

// size returns an element's width and height. resized is called whenever they change.
export function size(element, resized) {
  if (!sizes.has(element)) {
    element.resized = resized;
    sizes.set(element, [element.clientWidth, element.clientHeight]);
    watcher.observe(element);
  }
  return sizes.get(element);
}

// sheet returns a canvas's context, cleared, in CSS pixels. again draws it anew when its size changes,
// since it would be stretched until the next drawing otherwise.
function sheet(canvas, again) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  canvas.again = again;
  const [w, h] = size(canvas, () => canvas.again());
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
  }
  const c = canvas.getContext("2d");
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, w, h);
  return [c, w, h];
}

// spark draws the last two minutes of a gauge; top is the least that the height stands for.
export function spark(canvas, series, colour, at, top) {
  const [c, w, h] = sheet(canvas, () => spark(canvas, series, colour, at, top));
  if (series.length < 2 || w === 0) return;
  const span = Math.min(Math.max(at - series[0][0], 30e6), 120e6), least = at - span;
  let most = top;
  for (const [, v] of series) most = Math.max(most, v);
  most = most || 1;
  const x = (t) => (t - least) / span * w, y = (v) => h - 1 - v / most * (h - 5);
  c.beginPath();
  let begun = 0;
  for (const [t, v] of series) {
    if (t < least) continue;
    if (begun === 0) { c.moveTo(x(t), y(v)); begun = x(t); } else c.lineTo(x(t), y(v));
  }
  c.strokeStyle = hue(colour);
  c.lineWidth = 1.5;
  c.lineJoin = "round";
  c.stroke();
  c.lineTo(w, h);
  c.lineTo(begun, h);
  c.closePath();
  c.globalAlpha = 0.16;
  c.fillStyle = hue(colour);
  c.fill();
  c.globalAlpha = 1;
}

// bars draws a distribution: counts, the labels at the edges between them (one more than counts, or
// undefined where there is none), and lines at places given in bars from the left.
export function bars(canvas, counts, edges, marks, colour) {
  const [c, w, h] = sheet(canvas, () => bars(canvas, counts, edges, marks, colour));
  if (w === 0 || counts.length === 0) return;
  const foot = 18, head = 14, most = Math.max(...counts, 1), each = w / counts.length;
  const gap = each > 8 ? 2 : each > 3 ? 1 : 0;
  c.fillStyle = hue("raised");
  c.fillRect(0, h - foot, w, 1);
  c.fillStyle = hue(colour);
  counts.forEach((n, i) => {
    if (n === 0) return;
    const tall = Math.max((h - foot - head) * n / most, 1.5);
    c.beginPath();
    c.roundRect(i * each + gap / 2, h - foot - tall, each - gap, tall, [Math.min(3, each / 3), Math.min(3, each / 3), 0, 0]);
    c.fill();
  });
  c.font = "11px system-ui, sans-serif";
  c.fillStyle = hue("faint");
  let free = -1e9;
  edges.forEach((text, i) => {
    if (text === undefined) return;
    const wide = c.measureText(text).width;
    const left = Math.min(Math.max(i * each - wide / 2, 0), w - wide);
    if (left < free + 8) return;
    c.fillText(text, left, h - 4);
    free = left + wide;
  });
  free = -1e9;
  for (const [at, text] of marks) {
    const x = at * each;
    c.fillStyle = hue("text");
    c.globalAlpha = 0.55;
    c.fillRect(Math.min(x, w - 1), head - 2, 1, h - foot - head + 2);
    c.globalAlpha = 1;
    const wide = c.measureText(text).width;
    const left = Math.min(Math.max(x - wide / 2, 0), w - wide);
    if (left < free + 5) continue;
    c.fillStyle = hue("soft");
    c.fillText(text, left, 10);
    free = left + wide;
  }
}

// field draws each request as one line of its parts ([from, to, colour], in the unit of scale). Where
// there are more requests than lines, so many of them stand for all.
export function field(canvas, all, parts, scale) {
  const [c, w, h] = sheet(canvas, () => field(canvas, all, parts, scale));
  if (w === 0) return;
  const lines = Math.min(all.length, Math.floor(h));
  const requests = lines < all.length ? Array.from({ length: lines }, (_, i) => all[Math.floor(i * all.length / lines)]) : all;
  // Whole pixels, or lines that lie across two of them make stripes.
  const ratio = canvas.height / h, top = (i) => Math.round(i * h / lines * ratio) / ratio, gap = h / lines > 3 ? 1 : 0;
  // By colour, since changing it is what costs.
  const by = new Map();
  requests.forEach((r, i) => {
    for (const [from, to, colour] of parts(r)) {
      if (to <= from) continue;
      let list = by.get(colour);
      if (!list) by.set(colour, list = []);
      list.push(i, from, to);
    }
  });
  for (const [colour, list] of by) {
    c.fillStyle = hue(colour);
    for (let k = 0; k < list.length; k += 3) {
      const x = list[k + 1] / scale * w;
      c.fillRect(x, top(list[k]), Math.max(list[k + 2] / scale * w - x, 0.5), top(list[k] + 1) - top(list[k]) - gap);
    }
  }
}
