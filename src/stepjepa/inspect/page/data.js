// The data of the page. This file uses the document only to read the data. `sees` comes from the page's data, which the
// library's visibility rule decided, and `why` puts that rule into words.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const TRUNK = 0;

class Row {
  constructor(raw) {
    this.raw = raw;
    this.length = raw.tokens.length;
    this.sectionOf = new Int32Array(this.length);
    raw.sections.forEach(([start, stop], number) => this.sectionOf.fill(number, start, stop));
    this.labelled = new Set(); // tokens that the LM loss is computed on
    for (let at = 0; at < raw.labelled.length; at += 2) {
      for (let token = raw.labelled[at]; token < raw.labelled[at + 1]; token++) this.labelled.add(token);
    }
    // token -> [[words, side], ..]: the notes after a token.
    const sided = (words) => [words, words.split(" ")[0]];
    this.reads = new Map(Object.entries(raw.tags).map(([token, tags]) => [Number(token), tags.map(sided)]));
  }

  text(token) {
    return this.raw.tokens[token] || "\u2205";
  }

  kind(token) {
    return DATA.kinds[this.raw.kinds[token]];
  }

  // Runs [start, stop, kind's name] of the tokens of the same kind from `start` to `stop`.
  kindRuns(start, stop) {
    const { kinds } = this.raw;
    const runs = [];
    for (let from = start; from < stop; ) {
      let to = from + 1;
      while (to < stop && kinds[to] === kinds[from]) to++;
      runs.push([from, to, this.kind(from).name]);
      from = to;
    }
    return runs;
  }

  section(token) {
    const [start, stop, name] = this.raw.sections[this.sectionOf[token]];
    return { start, stop, name };
  }

  sees(query, key) {
    const runs = this.raw.seen[query];
    for (let at = 0; at < runs.length; at += 2) if (key >= runs[at] && key < runs[at + 1]) return true;
    return false;
  }

  // Runs [start, stop, start, stop, ..] of the tokens that `token` sees, and of those that see it.
  seen(token) {
    return this.raw.seen[token];
  }

  seers(token) {
    const runs = [];
    let open = false;
    for (let query = 0; query <= this.length; query++) {
      const looks = query < this.length && this.sees(query, token);
      if (looks !== open) runs.push(query);
      open = looks;
    }
    return runs;
  }

  // Whether `query` sees `key` by the rule, and why.
  why(query, key) {
    const { segments, orders, attaches, floors } = this.raw;
    const own = segments[query] === segments[key];
    if (own && orders[key] > orders[query]) return [false, "it comes later in the same segment"];
    if (own && orders[key] < floors[query]) return [false, "the view is isolated in place: it sees nothing before it"];
    if (own) return [true, query === key ? "every token sees itself" : "the same segment, not later"];
    const name = this.section(query).name;
    if (segments[key] !== TRUNK) return [false, "it is off the trunk, in another segment"];
    if (attaches[query] < 0) return [false, `${name} is isolated: it sees only itself`];
    const hangs = attaches[query];
    if (orders[key] <= hangs) return [true, `on the trunk, up to token ${hangs}, where ${name} is attached`];
    return [false, `on the trunk, but after token ${hangs}, where ${name} is attached`];
  }
}

function inRuns(runs) {
  let count = 0;
  for (let at = 0; at < runs.length; at += 2) count += runs[at + 1] - runs[at];
  return count;
}

function runsInWords(runs) {
  const words = [];
  for (let at = 0; at < runs.length; at += 2) words.push(span(runs.slice(at, at + 2)));
  if (words.length > 8) words.splice(6, words.length - 7, `\u2026 ${words.length - 7} more`);
  return words.join(", ");
}

function range(noun, first, last) {
  return first === last ? `${noun} ${first}` : `${noun}s ${first}\u2013${last}`;
}

function span([start, stop]) {
  return stop - start > 1 ? `${start}\u2013${stop - 1}` : `${start}`;
}

// An element with classes and children; strings become text, never markup.
function make(tag, classes, ...children) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  element.append(...children);
  return element;
}

function isolated(text) {
  const element = make("bdi", "", text);
  element.dir = "auto";
  return element;
}
