// The table of the first page: choices, sorting. RESULTS and COLUMNS come from results.js.
"use strict";

const choices = ["setup", "budget", "family", "queries"];
let by = "rel_error", down = false;

const at = (id) => document.getElementById(id);
const shown = (value, column) =>
  value === null ? "–" : typeof value !== "number" ? value
    : column === "budget" || column === "rows" || value === 0 ? String(value)
    : value.toPrecision(3);

function matches(r) {
  const words = at("text").value.trim().toLowerCase();
  return choices.every((c) => at(c).value === "" || String(r[c]) === at(c).value) &&
    (r.method + " " + r.does).toLowerCase().includes(words);
}

function compare(a, b) {
  const x = a[by], y = b[by];
  if (x === y) return a.method < b.method ? -1 : 1;
  if (x === null || y === null) return x === null ? 1 : -1;  // nothing measured: last, either way
  return (x < y ? -1 : 1) * (down ? -1 : 1);
}

function draw() {
  const rows = RESULTS.filter(matches).sort(compare);
  // A column that a choice makes the same in every row, or that has no value, says nothing.
  const isFixed = (name) => ["setup", "budget", "family"].includes(name) && at(name).value !== "" ||
    ["read_ratio", "recall"].includes(name) && rows.every((r) => r[name] === null);
  const body = at("rows");
  body.replaceChildren(...rows.map((r) => {
    const tr = document.createElement("tr");
    for (const { name, text } of COLUMNS) {
      if (isFixed(name)) continue;
      const td = document.createElement("td");
      td.className = text ? "text" : "";
      if (name === "method") {
        const a = document.createElement("a");
        a.href = r.page;
        a.textContent = r.method;
        a.title = r.does;
        td.append(a);
      } else {
        td.textContent = shown(r[name], name);
      }
      tr.append(td);
    }
    return tr;
  }));
  at("count").textContent = rows.length + (rows.length === 1 ? " row" : " rows");
  for (const th of document.querySelectorAll("th")) {
    th.hidden = isFixed(th.dataset.name);
    th.setAttribute("aria-sort",
      th.dataset.name !== by ? "none" : down ? "descending" : "ascending");
  }
}

function sortBy(name) {
  down = name === by ? !down : false;
  by = name;
  draw();
}

for (const id of [...choices, "text"]) at(id).addEventListener("input", draw);
for (const th of document.querySelectorAll("th")) {
  th.querySelector("button").addEventListener("click", () => sortBy(th.dataset.name));
}
draw();
