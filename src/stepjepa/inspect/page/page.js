// What is shown, and how the parts of the page notify each other.
"use strict";

const by = (id) => document.getElementById(id);
const state = { current: undefined, held: null, pair: null };
const row = new Row(DATA.row);

const tokens = new Tokens(by("row"), { onCurrent: point, onHold: hold });
const forest = new Forest(by("forest"), { onToken: (token) => tokens.focus(token) });
const mask = new Mask(
  { picture: by("mask-picture"), marks: by("mask-marks"), tip: by("tip") },
  { onCell: (query) => point(query, false) },
);

function say(words) {
  by("say").textContent = words;
}

// A token is pointed at (null: none); `spoken` if a key moved there.
function point(token, spoken) {
  if (state.held !== null && !spoken) return;
  if (spoken && state.held !== null && token !== state.held) release();
  if (token === state.current) return;
  state.current = token;
  tokens.light(token);
  mask.light(token);
  forest.light(token);
  const words = describe(token);
  by("status").replaceChildren(...words.map((line) => make("p", "", ...line)));
  if (spoken && token !== null) say(words.map((line) => line.map((part) => part.textContent || part).join("")).join(". "));
}

function hold(token) {
  const held = state.held === token ? null : token;
  release();
  if (held === null) return;
  point(held, true);
  state.held = held;
  tokens.hold(held);
}

function release() {
  state.held = null;
  tokens.hold(null);
}

function describe(token) {
  if (token === null) return [["Point at a token, or move through the row with the arrow keys."]];
  const { raw } = row;
  const kind = row.kind(token);
  const first = [`token ${token} `, isolated(row.text(token)), ` \u00b7 ${row.section(token).name}`];
  first.push(` \u00b7 position ${raw.positions[token]} \u00b7 id ${raw.ids[token]}`);
  first.push(` \u00b7 ${kind.words}`);
  for (const [words] of row.reads.get(token) || []) first.push(` \u00b7 ${words}`);
  if (row.labelled.has(token)) first.push(" \u00b7 LM loss is computed on it");
  const [seen, seers] = [row.seen(token), row.seers(token)];
  const looks = [`sees ${inRuns(seen)}: ${runsInWords(seen)}; seen by ${inRuns(seers)}: ${runsInWords(seers)}`];
  return [first, looks];
}

function list(items) {
  return items.map((item) => make("li", "", isolated(item)));
}

function show() {
  by("counts").textContent = row.raw.counts;
  by("said").replaceChildren(...list(DATA.notes));
  by("legend").replaceChildren(...legend());
  tokens.show(row);
  mask.show(row);
  forest.show(row);
  showPairs();
  point(null, false);
}

function legend() {
  const used = new Set(row.raw.kinds);
  return Object.values(DATA.kinds).map((kind) => {
    const mark = make("span", `mark k-${kind.name}`, kind.letter);
    mark.dataset.kind = kind.name;
    const item = make("li", "", mark, kind.words);
    item.hidden = !used.has(kind.name);
    return item;
  });
}

function effective() {
  const set = document.documentElement.dataset.theme;
  return set || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function themed() {
  const other = effective() === "dark" ? "light" : "dark";
  by("theme").textContent = other === "dark" ? "Dark" : "Light";
  by("theme").setAttribute("aria-label", `Switch to the ${other} theme`);
  mask.draw();
}

by("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = effective() === "dark" ? "light" : "dark";
  themed();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
by("zoom-in").addEventListener("click", () => mask.zoom(1 / 1.5));
by("zoom-out").addEventListener("click", () => mask.zoom(1.5));
by("zoom-all").addEventListener("click", () => mask.all());
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  release();
  choosePair(null);
  point(tokens.focused(), false);
});

document.title = DATA.title;
by("title").textContent = DATA.title;
show();
themed();
