// The row by positions: the trunk on top, branches and isolated targets below it.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = 68; // for the names of the lanes
const BAR = 13;
const STEP = 35; // from lane to lane

class Forest {
  constructor(box, { onToken }) {
    this.box = box;
    new ResizeObserver(() => this.row && box.clientWidth !== this.width && this.draw()).observe(box);
    box.addEventListener("click", (event) => {
      const start = event.target.dataset ? event.target.dataset.start : undefined;
      if (start !== undefined) onToken(Number(start));
    });
  }

  show(row) {
    this.row = row;
    this.chosen = null;
    this.draw();
  }

  part(name, attributes, text) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  x(column) {
    return MARGIN + column * this.unit;
  }

  // Many lanes are drawn closer together.
  y(lane) {
    return 24 + lane * this.step;
  }

  draw() {
    const { raw } = this.row;
    this.width = this.box.clientWidth;
    if (!this.width) return;
    const wide = this.width;
    this.unit = (wide - MARGIN - 20) / raw.lanes.width;
    this.step = raw.lanes.names.length > 14 ? 19 : STEP;
    const height = this.y(raw.lanes.names.length) + 2;
    const svg = this.part("svg", { width: wide, height, viewBox: `0 0 ${wide} ${height}`, role: "img" });
    svg.setAttribute("aria-label", `The row by positions: ${raw.counts}`);
    this.laneOf = new Int32Array(this.row.length);
    const free = raw.lanes.names.map(() => 0);
    raw.sections.forEach((section, number) => this.drawSection(svg, section, raw.lanes.of_section[number], free));
    let last = "";
    raw.lanes.names.forEach((name, lane) => {
      if (name !== last) svg.append(this.part("text", { class: "lane", x: 0, y: this.y(lane) + BAR - 2 }, name));
      last = name;
    });
    this.drawPositions(svg);
    this.arrows = raw.pairs.map((pair) => pair.arrow && this.drawPair(svg, pair));
    this.marks = this.part("g", { "pointer-events": "none" });
    svg.append(this.marks);
    this.box.replaceChildren(svg);
    this.choose(this.chosen);
  }

  drawSection(svg, [start, stop, name], lane, free) {
    const { raw } = this.row;
    const [first, behind] = [raw.positions[start], raw.positions[stop - 1] + 1];
    this.laneOf.fill(lane, start, stop);
    const [attach, y] = [raw.attaches[start], this.y(lane)];
    if (attach >= 0) {
      const from = this.x(raw.positions[attach] + 0.5);
      svg.append(this.part("path", { class: "hang k-predictor", d: `M${from} ${this.y(0) + BAR}V${y + BAR / 2}H${this.x(first)}` }));
    }
    for (const [from, to, kind] of this.row.kindRuns(start, stop)) {
      const width = Math.max((to - from) * this.unit, 1.5);
      svg.append(this.part("rect", { class: `bar k-${kind}`, x: this.x(raw.positions[from]), y, width, height: BAR }));
    }
    svg.append(this.part("path", { class: "edge", d: `M${this.x(first)} ${y}v${BAR + 3}` }));
    const trunk = raw.lanes.names[lane] === "trunk";
    const shown = trunk ? name.replace("trunk: ", "") : name.split(" ").pop();
    const room = trunk ? (behind - first) * this.unit : Math.max((behind - first) * this.unit, 26);
    const size = shown.length * 6.6 + 4;
    if (size <= room && this.x(first) >= free[lane] && this.step === STEP) {
      svg.append(this.part("text", { x: this.x(first) + 3, y: y + BAR + 11 }, shown));
      free[lane] = this.x(first) + size;
    }
    const hit = this.part("rect", {
      class: "hit", x: this.x(first), y: y - 3, width: Math.max((behind - first) * this.unit, 6), height: BAR + 6,
      "data-start": start,
    });
    hit.append(this.part("title", {}, `${this.row.section(start).name}: ${range("token", start, stop - 1)}`));
    svg.append(hit);
  }

  drawPositions(svg) {
    const { raw } = this.row;
    const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
    const step = steps.find((one) => one * this.unit > 44) || 10000;
    for (let token = 0; token < this.row.length; token++) {
      const position = raw.positions[token];
      if (this.laneOf[token] !== 0 || position % step) continue;
      svg.append(this.part("text", { x: this.x(raw.positions[token] + 0.5) - 3, y: 12 }, String(position)));
    }
  }

  drawPair(svg, pair) {
    const end = (token) => [this.x(this.row.raw.positions[token] + 0.5), this.y(this.laneOf[token]) - 1];
    const [[x, y], [toX, toY]] = pair.arrow.map(end);
    const bend = Math.min(y, toY) - 10;
    const arrow = this.part("path", { class: "arrow", d: `M${x} ${y - 6}Q${(x + toX) / 2} ${bend} ${toX} ${toY - 7}` });
    svg.append(arrow);
    for (const side of ["source", "target"]) {
      for (const [token] of pair[side]) {
        const [at, top] = end(token);
        svg.append(this.part("path", { class: `read-${side}`, d: `M${at - 4} ${top - 6}h8l-4 6z` }));
      }
    }
    return arrow;
  }

  // Mark a token and the runs of tokens that it sees.
  light(token) {
    if (!this.marks) return;
    this.marks.replaceChildren();
    if (token === null) return;
    const columns = this.row.raw.positions;
    const runs = this.row.seen(token);
    for (let at = 0; at < runs.length; at += 2) {
      for (let from = runs[at]; from < runs[at + 1]; ) {
        const [, stop] = this.row.raw.sections[this.row.sectionOf[from]];
        const to = Math.min(stop, runs[at + 1]);
        const y = this.y(this.laneOf[from]) - 2;
        const width = Math.max((to - from) * this.unit, 2);
        this.marks.append(this.part("rect", { class: "lit-seen", x: this.x(columns[from]), y, width, height: BAR + 4 }));
        from = to;
      }
    }
    const width = Math.max(this.unit, 3);
    const y = this.y(this.laneOf[token]) - 3;
    this.marks.append(this.part("rect", { class: "lit-current", x: this.x(columns[token]), y, width, height: BAR + 6 }));
  }

  choose(number) {
    this.chosen = number;
    (this.arrows || []).forEach((arrow, at) => arrow && arrow.classList.toggle("chosen", at === number));
  }
}
