// Pointing at, walking through, zooming and moving the matrix of `Mask`.
"use strict";

const CLOSEST = 6; // cells across at the closest zoom

Object.assign(Mask.prototype, {
  at(event) {
    const box = this.picture.getBoundingClientRect();
    const x = event.clientX - box.left - this.left - BAND;
    const y = event.clientY - box.top - BAND;
    return { key: this.view.x + x / this.scale, query: this.view.y + y / this.scale };
  },

  inside(cell) {
    const known = (at) => at >= 0 && at < this.row.length;
    return cell && known(cell.key) && known(cell.query) ? cell : null;
  },

  point(cell, spoken = false) {
    const found = cell && this.inside({ key: Math.floor(cell.key), query: Math.floor(cell.query) });
    const same = found && this.cell && found.key === this.cell.key && found.query === this.cell.query;
    if (same || (!found && !this.cell)) return;
    this.cell = found;
    this.drawMarks();
    this.showTip(spoken);
    this.onCell(found ? found.query : null);
  },

  showTip(spoken) {
    this.tip.hidden = !this.cell;
    if (!this.cell) return;
    const { query, key } = this.cell;
    const row = this.row;
    const [sees, why] = row.why(query, key);
    const name = (token) => [`${token} `, isolated(row.text(token)), ` (${row.section(token).name})`];
    const lines = [
      make("p", "", "down: ", ...name(query)),
      make("p", "", "across: ", ...name(key)),
      make("p", "", make("b", "", sees ? "sees it" : "does not see it"), `: ${why}`),
    ];
    this.tip.replaceChildren(...lines);
    const width = this.picture.clientWidth;
    const x = this.left + BAND + this.pixel(key + 1, this.view.x) + 12;
    const y = BAND + this.pixel(query + 1, this.view.y) + 10;
    const over = x + this.tip.offsetWidth > width;
    this.tip.style.left = `${over ? Math.max(x - this.tip.offsetWidth - 28, 0) : Math.max(x, 0)}px`;
    this.tip.style.top = `${Math.min(Math.max(y, 0), this.side + BAND)}px`;
    if (spoken) say(this.tip.innerText.replaceAll("\n", ". "));
  },

  // Zoom by a factor around a cell, which stays where it is.
  zoom(factor, around) {
    const { view, row } = this;
    const centre = around || { key: view.x + view.cells / 2, query: view.y + view.cells / 2 };
    const cells = Math.min(Math.max(view.cells * factor, Math.min(CLOSEST, row.length)), row.length);
    const kept = cells / view.cells;
    this.view = { cells, x: centre.key - (centre.key - view.x) * kept, y: centre.query - (centre.query - view.y) * kept };
    this.settle();
  },

  all() {
    this.view = { x: 0, y: 0, cells: this.row.length };
    this.settle();
  },

  settle() {
    const { view, row } = this;
    for (const side of ["x", "y"]) view[side] = Math.min(Math.max(view[side], 0), row.length - view.cells);
    this.picture.style.touchAction = view.cells < row.length ? "none" : "pan-y";
    this.draw();
    if (this.cell) this.showTip(false);
  },

  down(event) {
    this.picture.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event);
    this.point(this.at(event));
  },

  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      this.point(this.at(event));
      return;
    }
    if (this.pointers.size === 2) {
      const [other] = [...this.pointers.values()].filter((one) => one.pointerId !== event.pointerId);
      const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) || 1;
      this.zoom(apart(before) / apart(event), this.at(other));
    } else if (this.view.cells < this.row.length) {
      this.view.x -= (event.clientX - before.clientX) / this.scale;
      this.view.y -= (event.clientY - before.clientY) / this.scale;
      this.settle();
    } else {
      this.point(this.at(event));
    }
    this.pointers.set(event.pointerId, event);
  },

  // The wheel scrolls the page, unless the matrix was clicked into or Ctrl is held.
  wheel(event) {
    if (!event.ctrlKey && document.activeElement !== this.picture) return;
    event.preventDefault();
    this.zoom(Math.exp(Math.sign(event.deltaY) * 0.25), this.at(event));
  },

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey ? 10 : 1;
    const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (ways[event.key]) {
      const [x, y] = ways[event.key];
      const last = this.row.length - 1;
      const from = this.cell || { key: 0, query: 0 };
      const limit = (at) => Math.min(Math.max(at, 0), last);
      const first = !this.cell;
      const cell = first ? from : { key: limit(from.key + x * step), query: limit(from.query + y * step) };
      const { view } = this;
      view.x = Math.min(Math.max(view.x, cell.key + 1 - view.cells), cell.key);
      view.y = Math.min(Math.max(view.y, cell.query + 1 - view.cells), cell.query);
      this.point(cell, true);
      this.settle();
    } else if (event.key === "+" || event.key === "=") this.zoom(1 / 1.5, this.cell);
    else if (event.key === "-") this.zoom(1.5, this.cell);
    else if (event.key === "0") this.all();
    else if (event.key === "Escape") this.point(null);
    else return;
    event.preventDefault();
  },
});
