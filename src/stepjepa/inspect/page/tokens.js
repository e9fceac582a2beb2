// The row as text: one list with a single Tab stop, in which the arrow keys move.
"use strict";

class Tokens {
  constructor(box, { onCurrent, onHold }) {
    this.box = box;
    this.onCurrent = onCurrent;
    box.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "touch") this.point(this.numberOf(event.target));
    });
    box.addEventListener("pointerleave", () => this.point(null));
    box.addEventListener("focusin", (event) => {
      const token = this.numberOf(event.target);
      if (token !== null) onCurrent(token, true);
    });
    box.addEventListener("click", (event) => {
      const token = this.numberOf(event.target);
      if (token === null) return;
      this.focus(token);
      onHold(token);
    });
    box.addEventListener("keydown", (event) => this.walk(event, onHold));
  }

  numberOf(element) {
    const token = element.closest ? element.closest(".token") : null;
    return token ? Number(token.dataset.token) : null;
  }

  // Pointer events come faster than frames: only the last one of a frame counts.
  point(token) {
    if (this.pending === undefined) {
      requestAnimationFrame(() => {
        const last = this.pending;
        this.pending = undefined;
        this.onCurrent(last === null ? this.focused() : last, false);
      });
    }
    this.pending = token;
  }

  focused() {
    return this.box.contains(document.activeElement) ? this.numberOf(document.activeElement) : null;
  }

  show(row) {
    this.row = row;
    this.elements = [];
    this.marks = new Uint8Array(row.length);
    const sections = row.raw.sections.map((section, number) => this.section(section, number));
    this.box.replaceChildren(...sections);
    this.stop = 0;
    if (this.elements.length) this.elements[0].tabIndex = 0;
  }

  section([start, stop]) {
    const row = this.row;
    const named = row.section(start).name;
    const kinds = [...new Set(row.raw.kinds.slice(start, stop))].map((name) => DATA.kinds[name]);
    const letters = kinds.map((kind) => make("span", `mark k-${kind.name}`, kind.letter));
    const head = make("div", "head", ...letters, make("b", "", isolated(named)));
    head.append(make("span", "", range("token", start, stop - 1)));
    head.append(make("span", "", range("position", row.raw.positions[start], row.raw.positions[stop - 1])));
    head.setAttribute("aria-hidden", "true");
    const line = make("div", "line");
    line.setAttribute("role", "presentation");
    for (let token = start; token < stop; token++) {
      line.append(this.token(token));
      const next = token + 1 < stop ? row.text(token + 1) : "";
      if (row.text(token).endsWith("\u21b5") && !next.startsWith("\u21b5")) {
        const end = make("div", "break");
        end.setAttribute("aria-hidden", "true");
        line.append(end);
      }
    }
    const box = make("div", "section", head, line);
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", named);
    return box;
  }

  token(token) {
    const row = this.row;
    const element = make("span", `token k-${row.kind(token).name}`, isolated(row.text(token)));
    element.dataset.token = token;
    element.setAttribute("role", "option");
    element.setAttribute("aria-selected", "false");
    element.tabIndex = -1;
    for (const [words, side] of row.reads.get(token) || []) element.append(make("span", `badge ${side}`, words));
    this.elements.push(element);
    return element;
  }

  // Mark what `token` sees and who sees it; only what changes is touched.
  light(token) {
    const marks = new Uint8Array(this.row.length);
    if (token !== null) {
      fillRuns(marks, this.row.seen(token), 1);
      fillRuns(marks, this.row.seers(token), 2);
      marks[token] = 3;
    }
    const names = [undefined, "seen", "seer", "current"];
    for (let at = 0; at < marks.length; at++) {
      if (marks[at] === this.marks[at]) continue;
      if (marks[at]) this.elements[at].dataset.mark = names[marks[at]];
      else delete this.elements[at].dataset.mark;
    }
    this.marks = marks;
    this.box.classList.toggle("lit", token !== null);
  }

  // Mark the views of a chosen pair: runs of tokens for "source", "target" and "original", and the tokens that are read.
  choose(parts, read) {
    for (const element of this.elements) {
      delete element.dataset.part;
      delete element.dataset.read;
    }
    for (const [name, runs] of parts) {
      for (let at = 0; at < runs.length; at += 2) {
        for (let token = runs[at]; token < runs[at + 1]; token++) this.elements[token].dataset.part = name;
      }
    }
    for (const token of read) this.elements[token].dataset.read = "yes";
  }

  hold(token) {
    if (this.held !== undefined && this.elements[this.held]) this.elements[this.held].setAttribute("aria-selected", "false");
    this.held = token === null ? undefined : token;
    if (token !== null) this.elements[token].setAttribute("aria-selected", "true");
  }

  focus(token) {
    this.elements[this.stop].tabIndex = -1;
    this.stop = token;
    this.elements[token].tabIndex = 0;
    this.elements[token].focus();
  }

  walk(event, onHold) {
    const token = this.numberOf(event.target);
    if (token === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.row.length - 1;
    const section = this.row.sectionOf[token];
    const starts = this.row.raw.sections.map(([start]) => start);
    const back = token > starts[section] ? section : section - 1;
    const to = {
      ArrowRight: () => token + 1,
      ArrowLeft: () => token - 1,
      ArrowDown: () => this.below(token, 1),
      ArrowUp: () => this.below(token, -1),
      Home: () => 0,
      End: () => last,
      PageDown: () => (section + 1 < starts.length ? starts[section + 1] : last),
      PageUp: () => starts[Math.max(back, 0)],
    }[event.key];
    if (to) this.focus(Math.min(Math.max(to(), 0), last));
    else if (event.key === "Enter" || event.key === " ") onHold(token);
    else return;
    event.preventDefault();
  }

  // The token nearest to `token` on the next line down (1) or up (-1).
  below(token, way) {
    const place = (at) => this.elements[at].getBoundingClientRect();
    const here = place(token);
    const middle = here.left + here.width / 2;
    let best = token;
    let nearest = Infinity;
    let line = null;
    for (let at = token + way; at >= 0 && at < this.row.length; at += way) {
      const box = place(at);
      if (Math.abs(box.top - here.top) < 4) continue;
      if (line === null) line = box.top;
      if (Math.abs(box.top - line) > 4) break;
      const distance = Math.abs(box.left + box.width / 2 - middle);
      if (distance < nearest) [best, nearest] = [at, distance];
    }
    return best;
  }
}

function fillRuns(marks, runs, value) {
  for (let at = 0; at < runs.length; at += 2) marks.fill(value, runs[at], runs[at + 1]);
}
