// The interactive parts of the page: charts read with a pointer or the keys, filtered answers, the theme.
// Text from the data is inserted as text, never as markup.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const by = (id) => document.getElementById(id);

function make(tag, classes, ...children) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  element.append(...children);
  return element;
}

function text(tag, classes, words) {
  const element = make(tag, classes, words);
  element.dir = "auto";
  return element;
}

function say(words) {
  by("say").textContent = words;
}

// A chart: the step nearest to the pointer, or the one that the arrow keys have reached.
class Chart {
  constructor(figure) {
    this.plot = figure.querySelector(".plot");
    this.tip = figure.querySelector(".tip");
    this.cursor = figure.querySelector(".cursor");
    this.drawn = figure.querySelectorAll(".plot path.line");
    this.lines = DATA.charts[figure.dataset.chart];
    const places = new Map(this.lines.flatMap((line) => line.points.map(([step, , x]) => [step, x])));
    this.steps = [...places].sort((one, other) => one[0] - other[0]);
    this.at = null;
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.show(null));
    this.plot.addEventListener("blur", () => this.show(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  point(event) {
    const box = this.plot.querySelector("svg").getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * DATA.frame.width;
    let best = 0;
    this.steps.forEach(([, place], at) => {
      if (Math.abs(place - x) < Math.abs(this.steps[best][1] - x)) best = at;
    });
    this.show(best);
  }

  key(event) {
    const last = this.steps.length - 1;
    const at = this.at === null ? -1 : this.at;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last, PageDown: at + 10, PageUp: at - 10 }[event.key];
    if (event.key === "Escape") this.show(null);
    if (to === undefined) return;
    event.preventDefault();
    this.show(Math.min(Math.max(to, 0), last));
    say(this.words().join("; "));
  }

  words() {
    const [step] = this.steps[this.at];
    const found = this.lines.map((line) => [line, line.points.find((point) => point[0] === step)]);
    const kind = (line) => (line.kind === "evaluation" ? `${line.name} (evaluation)` : line.name);
    return [`step ${step}`, ...found.filter(([, point]) => point).map(([line, point]) => `${kind(line)} ${digits(point[1])}`)];
  }

  show(at) {
    this.at = at;
    this.tip.hidden = at === null;
    this.cursor.replaceChildren();
    if (at === null) return;
    const [step, x] = this.steps[at];
    this.mark("line", { x1: x, x2: x, y1: DATA.frame.top, y2: DATA.frame.bottom });
    this.lines.forEach((line, number) => {
      const point = line.points.find(([other]) => other === step);
      const colour = [...this.drawn[number].classList].find((name) => /^c\d$/.test(name));
      if (point) this.mark("circle", { cx: point[2], cy: point[3], r: 4, class: colour });
    });
    this.tip.replaceChildren(...this.words().map((line) => text("p", "", line)));
    const right = x > DATA.frame.width / 2;
    const share = (100 * x) / DATA.frame.width;
    this.tip.style.left = right ? "auto" : `calc(${share}% + 10px)`;
    this.tip.style.right = right ? `calc(${100 - share}% + 10px)` : "auto";
  }

  mark(name, attributes) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    this.cursor.append(element);
  }
}

function digits(value) {
  return String(Number(value.toPrecision(4)));
}

// The answers of one or two models to the same questions.
const KINDS = {
  two: [["all", "all"], ["both", "both right"], ["a", "only A"], ["b", "only B"], ["neither", "both wrong"]],
  one: [["all", "all"], ["right", "right"], ["wrong", "wrong"]],
};
const VERDICTS = { r: "right", w: "wrong", u: "neither right nor wrong", "-": "not asked" };
const FIRST = 12; // answers that are shown before the button "Show all" is used
const state = { set: 0, a: 0, b: 1, kind: "all", words: "", most: FIRST };

function kindOf(place) {
  const { models } = DATA.predictions[state.set];
  const a = models[state.a].letters[place];
  if (models.length === 1) return { r: "right", w: "wrong" }[a] || "undecided";
  const b = models[state.b].letters[place];
  return { rr: "both", rw: "a", wr: "b", ww: "neither" }[a + b] || "undecided";
}

function inPair(place) {
  const { models } = DATA.predictions[state.set];
  return models.length === 1 || (models[state.a].letters[place] !== "-" && models[state.b].letters[place] !== "-");
}

function counts() {
  const found = { all: 0 };
  const { letters } = DATA.predictions[state.set].models[0];
  for (let place = 0; place < letters.length; place++) {
    if (!inPair(place)) continue;
    found.all++;
    const kind = kindOf(place);
    found[kind] = (found[kind] || 0) + 1;
  }
  return found;
}

function chooser(label, name, items, chosen, choose) {
  const select = make("select", "");
  select.name = name;
  items.forEach((item, value) => {
    const option = make("option", "", item);
    option.value = value;
    option.selected = value === chosen;
    select.append(option);
  });
  select.addEventListener("change", () => choose(Number(select.value)));
  return make("label", "field", label, select);
}

function controls() {
  const focused = document.activeElement && document.activeElement.name;
  const { models } = DATA.predictions[state.set];
  const names = models.map((model) => model.label);
  const boxes = [];
  if (DATA.predictions.length > 1) {
    const sets = DATA.predictions.map((one) => one.name);
    boxes.push(chooser("Evaluation", "set", sets, state.set, (set) => change({ set, a: 0, b: 1, kind: "all" })));
  }
  if (models.length > 2) {
    boxes.push(chooser("A", "a", names, state.a, (a) => change({ a, b: a === state.b ? state.a : state.b })));
    boxes.push(chooser("B", "b", names, state.b, (b) => change({ b, a: b === state.a ? state.b : state.a })));
  }
  const found = counts();
  const box = make("fieldset", "", make("legend", "unseen", "Which answers"));
  for (const [value, label] of KINDS[models.length > 1 ? "two" : "one"]) {
    const input = make("input", "");
    Object.assign(input, { type: "radio", name: "kind", value, checked: value === state.kind });
    input.addEventListener("change", () => change({ kind: value }));
    box.append(make("label", "choice", input, make("span", "", `${label} (${found[value] || 0})`)));
  }
  boxes.push(box);
  const search = make("input", "");
  Object.assign(search, { type: "search", name: "words", value: state.words });
  search.addEventListener("input", () => {
    Object.assign(state, { words: search.value, most: FIRST });
    answers();
  });
  boxes.push(make("label", "field", "Search", search));
  by("controls").replaceChildren(...boxes);
  const again = focused && by("controls").querySelector(`[name="${focused}"]:is(select, input[type="search"], :checked)`);
  if (again) again.focus();
}

function change(to) {
  Object.assign(state, { most: FIRST }, to);
  controls();
  answers();
}

function answers() {
  const set = DATA.predictions[state.set];
  const words = state.words.trim().toLowerCase();
  const fits = (row) =>
    [row.question, row.reference, ...row.answers.map((answer) => (answer ? answer.text : ""))].some((part) =>
      part.toLowerCase().includes(words),
    );
  const here = set.rows.filter((row) => inPair(row.place) && (state.kind === "all" || kindOf(row.place) === state.kind));
  const found = words ? here.filter(fits) : here;
  const total = counts()[state.kind] || 0;
  const more = here.length < total ? `; of these ${here.length} are on this page, a few of each kind` : "";
  const searched = words ? `; ${found.length} contain the search text` : "";
  const who = set.models.length > 1 ? `A is ${set.models[state.a].label}, B is ${set.models[state.b].label}. ` : "";
  const judged = [...new Set(shown(set).map((number) => set.models[number].metric).filter(Boolean))].join(" and ");
  by("shown").textContent = `${who}${judged ? `Answers are judged by ${judged}. ` : ""}${total} questions${more}${searched}.`;
  by("answers").replaceChildren(...found.slice(0, state.most).map((row) => card(set, row)));
  by("more").hidden = found.length <= state.most;
  by("more").textContent = `Show all ${found.length}`;
}

function shown(set) {
  return set.models.length > 1 ? [state.a, state.b] : [state.a];
}

// A long text, collapsed to its beginning.
function fold(body) {
  const [words, lines] = [body.textContent.trim(), body.textContent.split("\n").length];
  if (lines <= 20 && words.length <= 2000) return body;
  return make("details", "", text("summary", "", `${words.slice(0, 150)} ... (${lines} lines)`), body);
}

function card(set, row) {
  const sides = shown(set).map((number, place) => {
    const { label, letters } = set.models[number];
    const answer = row.answers[number];
    const name = text("span", "", shown(set).length > 1 ? `${"AB"[place]}: ${label}` : label);
    const letter = letters[row.place];
    const side = make("div", "side", make("h4", "", name, make("span", "judged", VERDICTS[letter])));
    side.dataset.letter = letter;
    if (answer) {
      side.append(fold(text("div", "text", answer.text)));
      const stop = answer.stop === "length" ? " \u00b7 cut off" : answer.stop === "refused" ? " \u00b7 prompt too long" : "";
      side.append(make("p", "found", "extracted answer: ", text("bdi", "", answer.found || "none"), stop));
    }
    return side;
  });
  const made = make(
    "article", "card",
    make("p", "about", `question ${row.index}`),
    fold(text("div", "text question", row.question)),
    make("div", "reference", "right answer: ", fold(text("div", "text", row.reference))),
    make("div", "sides", ...sides),
  );
  made.tabIndex = -1; // so that the button that shows more can move the focus here
  return made;
}

function effective() {
  return document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function themed() {
  const other = effective() === "dark" ? "light" : "dark";
  by("theme").textContent = other === "dark" ? "Dark" : "Light";
  by("theme").setAttribute("aria-label", `Switch to the ${other} theme`);
}

by("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = effective() === "dark" ? "light" : "dark";
  themed();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);

// Everything is expanded for printing, and restored afterwards.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((one) => (one.open = true));
});
addEventListener("afterprint", () => folded.forEach((one) => (one.open = false)));

document.querySelectorAll(".chart").forEach((figure) => new Chart(figure));
if (DATA.predictions.length) {
  by("more").addEventListener("click", () => {
    const next = by("answers").children.length;
    state.most = Infinity;
    answers();
    by("answers").children[next].focus();
  });
  change({});
}
themed();
