"use strict";
// Sorts and filters the rows of the page. Texts are set as text, never as markup.
const STEP = 24;
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const state = { by: -1, worst: false, shown: STEP };

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const TWINS = "near-duplicates, group by group";
const notEnglish = data.signals.findIndex((one) => one.name === "english");
const filters = { "all rows": () => true, "dropped or failed before any policy": (row) => row.state !== "kept" };
if (data.rows.some((row) => row.twin)) filters[TWINS] = (row) => row.twin;
if (notEnglish >= 0) filters["not English"] = (row) => row.values[notEnglish] === 0;
data.policies.forEach((name, i) => {
  filters[`${name} keeps`] = (row) => row.verdicts[i] === "kept";
  filters[`${name} does not keep`] = (row) => row.verdicts[i] !== null && row.verdicts[i] !== "kept";
});

// What one asks first: [title, filter, signal, worst first]; the first that the rows allow is shown.
const signal = (name) => data.signals.findIndex((one) => one.name === name && data.rows.some((row) => row.values[data.signals.indexOf(one)] !== null));
const views = [
  ["image and text least alike", "all rows", signal("clip_score"), true],
  ["near-duplicates", TWINS, -1, false],
  ["least concrete", "all rows", signal("icc"), true],
  ["most concrete", "all rows", signal("icc"), false],
  ["as drawn", "all rows", -1, false],
].filter(([title, filter, by]) => filters[filter] && (by >= 0 || filter === TWINS || title === "as drawn"));

function ordered() {
  const rows = data.rows.filter(filters[at("which").value]);
  if (state.by < 0) return at("which").value === TWINS ? rows.sort((a, b) => (a.twin < b.twin ? -1 : a.twin > b.twin ? 1 : 0)) : rows;
  const sign = (data.signals[state.by].lower ? 1 : -1) * (state.worst ? -1 : 1), value = (row) => row.values[state.by];
  return rows.sort((a, b) => (value(a) === null) - (value(b) === null) || sign * (value(a) - value(b)));
}

function card(row) {
  const made = element("li", undefined, "card");
  if (row.picture) {
    const image = element("img");
    image.src = `data:image/jpeg;base64,${row.picture}`;
    image.alt = row.caption.slice(0, 120) || "image without caption";
    made.append(image);
  } else if (row.has_image || row.reason) made.append(element("div", row.reason ? row.reason : "not shown", "noimage"));
  made.append(element("p", row.caption || "no caption"));
  const valued = (i) => `${data.signals[i].name} ${row.values[i] === null ? "–" : Number(row.values[i].toPrecision(3))}`;
  if (state.by >= 0) made.append(element("b", valued(state.by)));
  const others = [...data.signals.keys()].filter((i) => data.signals[i].brief && i !== state.by && row.values[i] !== null);
  made.append(element("small", [...others.map(valued), row.language].filter(Boolean).join(" · ")));
  if (row.state !== "kept") made.append(element("small", `${row.state}: ${row.reason}`));
  made.append(element("small", row.id));
  return made;
}

function draw() {
  const rows = ordered(), shown = rows.slice(0, state.shown);
  at("cards").replaceChildren(...shown.map(card));
  at("count").textContent = `${shown.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
  at("more").hidden = shown.length === rows.length;
  for (const [i, button] of [...at("sorts").children].entries()) {
    const isOn = i - 1 === state.by;
    button.setAttribute("aria-pressed", String(isOn));
    if (i) button.textContent = `${data.signals[i - 1].name}${isOn ? (state.worst ? ", worst first" : ", best first") : ""}`;
  }
}

for (const i of [-1, ...data.signals.keys()]) {
  const button = element("button", i < 0 ? "as drawn" : data.signals[i].name);
  button.type = "button";
  button.addEventListener("click", () => {
    state.worst = state.by === i && !state.worst;
    state.by = i;
    state.shown = STEP;
    draw();
  });
  at("sorts").append(button);
}
for (const [title, filter, by, worst] of views) {
  const button = element("button", title);
  button.type = "button";
  button.addEventListener("click", () => {
    at("which").value = filter;
    Object.assign(state, { by, worst, shown: STEP });
    draw();
  });
  at("views").append(button);
}
for (const box of document.querySelectorAll(".ends")) {  // the pictures, or captions, with the lowest and the highest value
  const i = data.signals.findIndex((one) => one.name === box.dataset.signal);
  const rows = data.rows.filter((row) => row.values[i] !== null && (row.picture || !row.has_image)).sort((a, b) => a.values[i] - b.values[i]);
  if (rows.length > 1) box.append(...[["lowest", rows[0]], ["highest", rows.at(-1)]].map(([end, row]) => {
    const made = element("div", undefined, "card");
    if (row.picture) {
      const image = element("img");
      image.src = `data:image/jpeg;base64,${row.picture}`; image.alt = row.caption.slice(0, 120) || "image without caption";
      made.append(image);
    } else made.append(element("p", row.caption));
    made.append(element("small", `${end}: ${Number(row.values[i].toPrecision(3))}`));
    return made;
  }));
}
for (const name of Object.keys(filters)) at("which").add(new Option(name, name));
at("which").addEventListener("change", () => { state.shown = STEP; draw(); });
at("more").addEventListener("click", () => { state.shown += STEP; draw(); });
at("views").firstElementChild.click();
