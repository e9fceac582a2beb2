// The pairs of the row (of views, or of sums of states), each a button that marks its views.
"use strict";

function showPairs() {
  const buttons = row.raw.pairs.map((pair) => {
    const [source, target] = pair.lines;
    return make("button", "pair", make("span", "name", pair.title), side("source", source), side("target", target));
  });
  by("pairs-hint").textContent = buttons.length ? "Choose a pair to see its views and where they are read." : "There are no pairs.";
  by("pairs").replaceChildren(...buttons);
  buttons.forEach((button, number) => {
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => choosePair(state.pair === number ? null : number));
  });
}

function side(name, words) {
  return make("span", "what", make("span", `swatch ${name}`), isolated(words));
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
  const [sources, targets] = [pair.source, pair.target].map((terms) => terms.map(([token]) => token));
  const runs = (states) => states.flatMap((token) => [token, token + 1]);
  const parts = [["source", runs(sources)], ["target", runs(targets)]];
  if (pair.views) {
    const { original, copy } = pair.views;
    parts[0][1] = row.seen(pair.arrow[0]);
    if (original && original[0] !== copy[0]) parts.splice(1, 0, ["original", original]);
    parts.at(-1)[1] = copy;
  }
  tokens.choose(parts, [...sources, ...targets]);
  say(`${pair.title}: ${pair.lines.join("; ")}`);
}
