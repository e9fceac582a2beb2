// The pairs of the row (of views, or of sums of states), each a button that marks its views.
"use strict";

function showPairs() {
  const { raw } = row;
  const buttons = [...raw.pairs.map(pairButton), ...raw.vectors.map(vectorsButton)];
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
  return row.raw.batch > 1 ? `example ${pair.example}, pair ${pair.number}` : `pair ${pair.number}`;
}

function cosine(number) {
  const value = row.raw.cosines ? row.raw.cosines[number] : undefined;
  return make("span", "cosine", typeof value === "number" ? `cosine ${value.toFixed(4)}` : "");
}

function pairButton(pair, number) {
  const { raw } = row;
  const source = pair.standalone
    ? [`source ${span(pair.source_segment)}, `]
    : [`source: up to ${pair.source_end} `, isolated(row.text(pair.source_end)), ", "];
  const positions = range("position", raw.positions[pair.copy[0]], raw.positions[pair.copy[1] - 1]);
  const where = !pair.original ? "" : pair.original[0] === pair.copy[0] ? ", isolated in its place"
    : `; on the trunk ${span(pair.original)}`;
  return make(
    "button", "pair",
    make("span", "name", named(pair)), cosine(number),
    make("span", "what", swatch("source"), ...source, ...read(pair.source)),
    make("span", "what", swatch("target"), `target ${span(pair.copy)} (${positions})${where}, `, ...read(pair.target)),
  );
}

function vectorsButton(pair, number) {
  const covered = (vector) => vector.covered.map(span).join(", ") || `${vector.terms.length} states`;
  const called = (vector, side) => (vector.name === side ? side : `${vector.name} (${side})`);
  const line = (vector, side) =>
    make("span", "what", swatch(side), `${called(vector, side)}: ${covered(vector)}; ${formula(vector)}`);
  const weight = pair.weight === 1 ? "" : `, weight ${pair.weight.toPrecision(3)}`;
  return make(
    "button", "pair",
    make("span", "name", `${named(pair)}, ${pair.kind}${weight}`), cosine(row.raw.pairs.length + number),
    line(pair.source, "source"), line(pair.target, "target"),
  );
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
  if (pair) {
    const parts = [["source", row.seen(pair.source)]];
    if (pair.original && pair.original[0] !== pair.copy[0]) parts.push(["original", pair.original]);
    parts.push(["target", pair.copy]);
    tokens.choose(parts, [pair.source, pair.target]);
    say(`${named(pair)}: source read at token ${pair.source}, target read at token ${pair.target}`);
    return;
  }
  const vectors = row.raw.vectors[number - row.raw.pairs.length];
  const covered = (vector) => vector.covered.flat();
  tokens.choose([["source", covered(vectors.source)], ["target", covered(vectors.target)]], vectors.ends.map(([, token]) => token));
}
