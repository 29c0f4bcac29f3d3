import { size } from "./draw.js";

// Rows shows a long list through a window: only the rows in sight are elements. It can be used with
// the mouse and with the keyboard alone.
export class Rows {
  // how: { key(item), make(), fill(element, item, fresh), open(item), tall() }
  constructor(box, how) {
    this.box = box;
    this.pad = box.querySelector(".pad");
    this.how = how;
    this.items = [];
    this.shown = new Map(); // by key
    this.chosen = null; // key
    this.top = 0;
    box.addEventListener("scroll", () => { this.top = box.scrollTop; this.draw(); }, { passive: true });
    box.addEventListener("keydown", (e) => this.press(e));
    box.addEventListener("focus", () => this.chosen === null && this.items.length > 0 && this.choose(this.first(), false));
    // What was meant is what was there when the button went down: the list may move before it is up.
    box.addEventListener("pointerdown", (e) => { this.meant = e.target.closest(".row")?.dataset.key; });
    box.addEventListener("click", (e) => {
      const meant = this.meant ?? e.target.closest(".row")?.dataset.key; // a click may come without a pointer
      this.meant = undefined;
      const item = this.items.find((i) => String(this.how.key(i)) === meant);
      if (!item) return;
      this.chosen = this.how.key(item);
      this.draw();
      this.how.open(item);
    });
  }

  first() { return Math.floor(this.top / this.how.tall()); }

  // scroll goes to a place; the event that follows comes too late for what is drawn now.
  scroll(top) {
    this.box.scrollTop = top;
    this.top = this.box.scrollTop;
  }

  // fits is how many rows are in sight.
  fits() { return size(this.box, () => this.draw())[1] / this.how.tall(); }

  set(items) {
    this.items = items;
    this.draw();
  }

  draw() {
    const tall = this.how.tall(), box = this.box;
    if (this.height !== this.items.length * tall) {
      this.height = this.items.length * tall;
      this.pad.style.height = this.height + "px";
    }
    const from = Math.max(Math.min(this.first(), this.items.length - 1) - 2, 0);
    const to = Math.min(Math.ceil(this.first() + this.fits()) + 3, this.items.length);
    const wanted = new Map();
    for (let i = from; i < to; i++) wanted.set(this.how.key(this.items[i]), i);
    const spare = [];
    for (const [key, row] of this.shown) {
      if (wanted.has(key)) continue;
      spare.push(row);
      this.shown.delete(key);
    }
    let chosenRow = null;
    for (const [key, i] of wanted) {
      let row = this.shown.get(key);
      const fresh = !row;
      if (fresh) {
        row = spare.pop() ?? this.append();
        row.dataset.key = key;
        row.id = `${box.id}-${key}`;
        this.shown.set(key, row);
      }
      row.classList.toggle("fresh", fresh);
      if (row.at !== i || row.tall !== tall) {
        row.at = i;
        row.tall = tall;
        row.style.top = i * tall + "px";
        row.style.height = tall + "px";
        row.setAttribute("aria-posinset", i + 1);
      }
      if (row.of !== this.items.length) row.setAttribute("aria-setsize", row.of = this.items.length);
      const chosen = key === this.chosen;
      if (chosen) chosenRow = row;
      if (row.getAttribute("aria-selected") !== String(chosen)) row.setAttribute("aria-selected", chosen);
      this.how.fill(row, this.items[i], fresh);
    }
    for (const row of spare) row.remove();
    if (chosenRow) box.setAttribute("aria-activedescendant", chosenRow.id);
    else box.removeAttribute("aria-activedescendant");
  }

  append() {
    const row = this.how.make();
    row.className = "row";
    row.setAttribute("role", "option");
    this.box.append(row);
    return row;
  }

  index() { return this.items.findIndex((i) => this.how.key(i) === this.chosen); }

  // choose selects the i-th row and scrolls it into sight.
  choose(i, scroll = true) {
    if (this.items.length === 0) return;
    i = Math.min(Math.max(i, 0), this.items.length - 1);
    this.chosen = this.how.key(this.items[i]);
    const tall = this.how.tall(), box = this.box;
    if (scroll) {
      const high = size(box)[1];
      if (i * tall < this.top) this.scroll(i * tall);
      else if ((i + 1) * tall > this.top + high) this.scroll((i + 1) * tall - high);
    }
    this.draw();
  }

  press(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const at = this.index(), now = at < 0 ? this.first() : at, page = Math.max(Math.floor(this.fits()) - 1, 1);
    const to = { ArrowDown: at < 0 ? now : now + 1, ArrowUp: now - 1, PageDown: now + page, PageUp: now - page, Home: 0, End: this.items.length - 1 }[e.key];
    if (to !== undefined) this.choose(to);
    else if ((e.key === "Enter" || e.key === " ") && at >= 0) this.how.open(this.items[at]);
    else return;
    e.preventDefault();
  }
}
