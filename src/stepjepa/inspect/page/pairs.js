// The pairs of the row (of views, or of sums of states), each a button that marks its views.
"use strict";

function showPairs() {
  const { raw } = row;
  const buttons = raw.pairs.map((pair) =>
    make("button", "pair", make("span", "name", named(pair)), ...(pair.views ? viewLines(pair) : sumLines(pair))),
  );
  by("pairs-hint").textContent = buttons.length ? "Choose one to see its views and where they are read." : "There is none.";
  by("pairs").replaceChildren(...buttons);
  buttons.forEach((button, number) => {
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => choosePair(state.pair === number ? null : number));
  });
}

function swatch(side) {
  return make("span", `swatch ${side}`);
}

function read(token) {
  return [`read at ${token} `, isolated(row.text(token)), ` (position ${row.raw.positions[token]})`];
}

function span([start, stop]) {
  return stop - start > 1 ? `${start}\u2013${stop - 1}` : `${start}`;
}

function named(pair) {
  const weight = pair.weight === 1 ? "" : `, weight ${pair.weight.toPrecision(3)}`;
  const example = row.raw.batch > 1 ? `example ${pair.example}, ` : "";
  return `${example}pair ${pair.number}` + (pair.views ? "" : `, ${pair.kind}${weight}`);
}

function viewLines(pair) {
  const { raw } = row;
  const { source_end: end, source_segment: segment, original, copy, standalone } = pair.views;
  const source = standalone ? [`source ${span(segment)}, `] : [`source: up to ${end} `, isolated(row.text(end)), ", "];
  const positions = range("position", raw.positions[copy[0]], raw.positions[copy[1] - 1]);
  const where = !original ? "" : original[0] === copy[0] ? ", isolated in its place" : `; on the trunk ${span(original)}`;
  const [sourceRead, targetRead] = [pair.source, pair.target].map((side) =>
    side.terms.length === 1 ? read(side.terms[0][0]) : [`read at all its tokens: mean of ${side.covered.map(span).join(", ")}`],
  );
  return [
    make("span", "what", swatch("source"), ...source, ...sourceRead),
    make("span", "what", swatch("target"), `target ${span(copy)} (${positions})${where}, `, ...targetRead),
  ];
}

function sumLines(pair) {
  const covered = (vector) => vector.covered.map(span).join(", ") || `${vector.terms.length} states`;
  const called = (vector, side) => (vector.name === side ? side : `${vector.name} (${side})`);
  const line = (vector, side) =>
    make("span", "what", swatch(side), `${called(vector, side)}: ${covered(vector)}; ${formula(vector)}`);
  return [line(pair.source, "source"), line(pair.target, "target")];
}

// A vector as a sum of states, where it has few.
function formula(vector) {
  if (vector.terms.length > 6) return vector.terms.every(([, factor]) => factor > 0) ? "their mean state" : "a sum of states";
  const terms = vector.terms.map(([token, factor]) => {
    const size = Math.abs(factor) === 1 ? "" : `${Math.abs(factor).toPrecision(3)} `;
    return `${factor < 0 ? "\u2212" : "+"} ${size}h[${token}]`;
  });
  return terms.join(" ").replace(/^\+ /, "");
}

// Mark a pair's views in the text; null marks none.
function choosePair(number) {
  state.pair = number;
  [...by("pairs").children].forEach((button, at) => button.setAttribute("aria-pressed", String(at === number)));
  forest.choose(number);
  if (number === null) {
    tokens.choose([], []);
    return;
  }
  const pair = row.raw.pairs[number];
  const ends = pair.ends.map(([, token]) => token);
  if (!pair.views) {
    tokens.choose([["source", pair.source.covered.flat()], ["target", pair.target.covered.flat()]], ends);
    return;
  }
  const { original, copy } = pair.views;
  const parts = [["source", row.seen(ends[0])]];
  if (original && original[0] !== copy[0]) parts.push(["original", original]);
  parts.push(["target", copy]);
  const states = [...pair.source.terms, ...pair.target.terms].map(([token]) => token);
  tokens.choose(parts, states);
  const [from, to] = [pair.source, pair.target].map((side) => range("token", side.terms[0][0], side.terms.at(-1)[0]));
  say(`${named(pair)}: source read at ${from}, target read at ${to}`);
}
