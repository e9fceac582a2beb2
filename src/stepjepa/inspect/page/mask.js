// The matrix of who sees whom on a canvas: one layer for the picture, one above it for what is pointed at.
"use strict";

const BAND = 9; // CSS pixels of the bands of kinds along two sides
const LABELS = 92; // CSS pixels for the names of segments, where there is room

class Mask {
  constructor({ picture, marks, tip }, { onCell }) {
    Object.assign(this, { picture, marks, tip, onCell });
    this.cell = null;
    this.pointers = new Map();
    new ResizeObserver(() => this.resize()).observe(picture.parentElement);
    picture.addEventListener("pointerdown", (event) => this.down(event));
    picture.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) {
      picture.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    }
    picture.addEventListener("pointerleave", () => this.point(null));
    picture.addEventListener("blur", () => this.point(null));
    picture.addEventListener("keydown", (event) => this.key(event));
    picture.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  show(row) {
    this.row = row;
    this.kindRuns = row.kindRuns(0, row.length); // found once per row
    this.view = { x: 0, y: 0, cells: row.length };
    this.cell = null;
    this.tip.hidden = true;
    this.lit = null;
    this.resize();
  }

  resize() {
    if (!this.row) return;
    const width = this.picture.parentElement.clientWidth;
    if (!width) return;
    this.left = width > 380 ? LABELS : 0;
    this.side = width - this.left - BAND; // of the matrix itself, in CSS pixels
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [this.picture, this.marks]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round((this.side + BAND) * ratio);
      canvas.style.height = `${this.side + BAND}px`;
    }
    this.ratio = ratio;
    this.draw();
  }

  colours() {
    const found = {};
    for (const swatch of document.querySelectorAll("#legend .mark")) {
      found[swatch.dataset.kind] = getComputedStyle(swatch).backgroundColor;
    }
    const style = getComputedStyle(document.getElementById("row-hint"));
    const ink = getComputedStyle(document.body).color;
    return { kinds: found, faint: style.color, ink, seer: getComputedStyle(document.querySelector(".ink-seer")).color };
  }

  get scale() {
    return this.side / this.view.cells;
  }

  pixel(cell, from) {
    return (cell - from) * this.scale;
  }

  // A layer's context with nothing drawn, clipped to the matrix until `restore`.
  cleared(canvas) {
    const context = canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.save();
    context.translate(this.left + BAND, BAND);
    context.beginPath();
    context.rect(0, 0, this.side, this.side);
    context.clip();
    return context;
  }

  draw() {
    if (!this.row || !this.side) return;
    const { row, view } = this;
    const context = this.cleared(this.picture);
    const colours = (this.inks = this.colours());
    const [top, bottom] = [Math.floor(view.y), Math.min(Math.ceil(view.y + view.cells), row.length)];
    const [low, high] = [view.x, view.x + view.cells];
    this.drawRuns(context, top, bottom, low, high, colours);
    context.strokeStyle = colours.faint;
    context.globalAlpha = 0.35;
    context.lineWidth = 0.5;
    context.beginPath();
    for (const [start] of row.raw.sections) {
      const [x, y] = [this.pixel(start, view.x), this.pixel(start, view.y)];
      context.moveTo(x, 0);
      context.lineTo(x, this.side);
      context.moveTo(0, y);
      context.lineTo(this.side, y);
    }
    context.stroke();
    context.restore();
    this.drawBands(context, colours);
    this.drawMarks();
  }

  drawRuns(context, top, bottom, low, high, colours) {
    const { view } = this;
    const height = Math.max(this.scale, 1 / this.ratio);
    for (const [start, stop, kind] of this.kindRuns) {
      if (stop <= low || start >= high) continue;
      context.fillStyle = colours.kinds[kind];
      context.beginPath();
      for (let query = top; query < bottom; query++) {
        const runs = this.row.seen(query);
        const y = this.pixel(query, view.y);
        for (let at = 0; at < runs.length; at += 2) {
          const from = Math.max(start, runs[at]);
          const to = Math.min(stop, runs[at + 1]);
          if (from < to) context.rect(this.pixel(from, view.x), y, Math.max((to - from) * this.scale, 1 / this.ratio), height);
        }
      }
      context.fill();
    }
  }

  drawBands(context, colours) {
    const { view, left, side } = this;
    const clip = (x, y, width, height, draw) => {
      context.save();
      context.beginPath();
      context.rect(x, y, width, height);
      context.clip();
      draw();
      context.restore();
    };
    const band = (from, place) => {
      for (const [start, stop, kind] of this.kindRuns) {
        context.fillStyle = colours.kinds[kind];
        place(this.pixel(start, from), Math.max((stop - start) * this.scale, 1));
      }
    };
    clip(left + BAND, 0, side, BAND, () =>
      band(view.x, (at, size) => context.fillRect(left + BAND + at, 0, size, BAND - 2)));
    clip(left, BAND, BAND, side, () =>
      band(view.y, (at, size) => context.fillRect(left, BAND + at, BAND - 2, size)));
    if (!left) return;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = colours.ink;
    clip(0, 0, left, side + BAND, () => this.drawNames(context));
  }

  // Names of segments down the left side, or of tokens if they are large enough; a name that would touch the last is left out.
  drawNames(context) {
    const { row, view, left } = this;
    const wide = this.scale >= 13;
    let free = 0;
    const name = (middle, text) => {
      if (middle - 6 < free || middle > this.side + BAND - 5) return;
      let shown = text;
      while (shown.length > 1 && context.measureText(shown).width > left - 6) shown = `${shown.slice(0, -2)}\u2026`;
      context.fillText(shown, left - 4, middle);
      free = middle + 6;
    };
    if (wide) {
      for (let token = Math.floor(view.y); token < Math.min(view.y + view.cells, row.length); token++) {
        name(BAND + this.pixel(token + 0.5, view.y), row.text(token));
      }
      return;
    }
    for (const [start, stop] of row.raw.sections) {
      const from = Math.max(this.pixel(start, view.y), 0);
      const to = Math.min(this.pixel(stop, view.y), this.side);
      const words = row.section(start).name.replace("trunk: ", "").replace(/^example (\d+), /, "$1 ");
      if (to > from) name(BAND + (from + to) / 2, words);
    }
  }

  // What a token sees (its row) and who sees it (its column), and the cell that is pointed at.
  light(token) {
    this.lit = token;
    this.drawMarks();
  }

  drawMarks() {
    if (!this.row || !this.side) return;
    const context = this.cleared(this.marks);
    const { view, inks } = this;
    const size = Math.max(this.scale, 1.5);
    if (this.lit !== null) {
      const [x, y] = [this.pixel(this.lit, view.x), this.pixel(this.lit, view.y)];
      context.strokeStyle = inks.ink;
      context.lineWidth = 1.2;
      context.strokeRect(-2, y, this.side + 4, size);
      context.strokeStyle = inks.seer;
      context.setLineDash([4, 3]);
      context.strokeRect(x, -2, size, this.side + 4);
      context.setLineDash([]);
    }
    if (this.cell) {
      context.strokeStyle = inks.ink;
      context.lineWidth = 2;
      const grown = Math.max(size, 7);
      const shift = (grown - this.scale) / 2;
      context.strokeRect(
        this.pixel(this.cell.key, view.x) - shift, this.pixel(this.cell.query, view.y) - shift, grown, grown);
    }
    context.restore();
  }
}
