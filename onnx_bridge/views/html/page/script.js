"use strict";
// What is chosen stands in the fragment of the address (#layers.sort=4.down&layers.filter=Conv), so that it can be sent on.
const $ = (selector, from = document) => from.querySelector(selector);
const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
const tensors = JSON.parse($("#data").textContent).tensors;
let state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");

function set(key, value) {
  value ? state.set(key, value) : state.delete(key);
  const text = state.toString();
  try {
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  } catch (error) {
    // some browsers forbid it for files
  }
}

// --- tables: sorted, filtered -------------------------------------------------------------------------------------

const tables = $$("table[id$=-table]").map((element) => {
  const id = element.id.replace(/-table$/, "");
  const rows = $$("tbody > tr", element);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const more = $(`button.more[data-table="${id}"]`);
  return { id, element, rows, texts, more, most: Number(more.dataset.most), body: $("tbody", element), heads: $$("th", element) };
});

function value(row, column) {
  const cell = row.cells[column];
  if (!("sort" in cell.dataset)) return cell.textContent.trim();
  const number = Number(cell.dataset.sort);
  return Number.isNaN(number) ? Infinity : number; // a NaN is worse than any error
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a === b ? 0 : a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function missing(row, column) {
  return row.cells[column].classList.contains("empty");
}

function show(table) {
  const [column, direction] = (state.get(`${table.id}.sort`) || "").split(".");
  const order = table.rows.map((row, index) => index);
  table.heads.forEach((head, index) => {
    const sorted = column !== "" && Number(column) === index;
    head.setAttribute("aria-sort", sorted ? (direction === "down" ? "descending" : "ascending") : "none");
  });
  if (column !== "" && table.heads[column]) {
    const sign = direction === "down" ? -1 : 1;
    const keys = table.rows.map((row) => [missing(row, column), value(row, column)]);
    // what is missing goes last either way; equal ones keep their order
    order.sort((a, b) => keys[a][0] - keys[b][0] || sign * compare(keys[a][1], keys[b][1]) || a - b);
  }
  const words = (state.get(`${table.id}.filter`) || "").toLowerCase().split(/\s+/).filter(Boolean);
  const only = state.get(`${table.id}.only`) || "";
  let fitting = 0;
  for (const index of order) {
    const row = table.rows[index];
    const text = table.texts[index];
    const fits = words.every((word) => (word.length > 1 && word[0] === "-" ? !text.includes(word.slice(1)) : text.includes(word)));
    const chosen = fits && (only === "" || row.dataset.choice === only);
    fitting += chosen;
    row.hidden = !chosen || fitting > table.most; // a browser takes long to lay out tens of thousands of rows
  }
  table.more.hidden = fitting <= table.most;
  if (column !== "" || table.moved) table.body.append(...order.map((index) => table.rows[index]));
  table.moved = column !== "";
  const first = visible(table)[0];
  for (const row of table.rows) row.tabIndex = row === first ? 0 : -1;
  const count = fitting === table.rows.length ? `${fitting} row${fitting === 1 ? "" : "s"}` : `${fitting} of ${table.rows.length} rows`;
  $(`output[data-table="${table.id}"]`).textContent = table.more.hidden ? count : `${count}, the first ${table.most} are shown`;
}

const visible = (table) => $$("tr:not([hidden])", table.body);

for (const table of tables) {
  const input = $(`input[data-table="${table.id}"]`);
  const only = $(`select[data-table="${table.id}"]:not(.order)`);
  const order = $(`select.order[data-table="${table.id}"]`);
  table.more.addEventListener("click", () => ((table.most = Infinity), show(table)));
  input.value = state.get(`${table.id}.filter`) || "";
  input.addEventListener("input", () => (set(`${table.id}.filter`, input.value), show(table)));
  if (only) {
    only.value = state.get(`${table.id}.only`) || "";
    only.addEventListener("change", () => (set(`${table.id}.only`, only.value), show(table)));
  }
  // numbers are looked at from the largest, names from A
  const first = (column) => (table.heads[column].classList.contains("number") ? "down" : "up");
  order.addEventListener("change", () => (set(`${table.id}.sort`, order.value && `${order.value}.${first(order.value)}`), show(table)));
  table.heads.forEach((head, column) =>
    $("button", head).addEventListener("click", () => {
      const [now, direction] = (state.get(`${table.id}.sort`) || "").split(".");
      const next = now !== String(column) ? first(column) : direction === first(column) ? (direction === "up" ? "down" : "up") : "";
      set(`${table.id}.sort`, next && `${column}.${next}`);
      show(table);
    })
  );
  table.body.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-tensor]");
    if (row && !event.target.closest("summary") && !String(getSelection())) choose(row.dataset.tensor);
  });
  table.body.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.dataset.tensor) {
      choose(event.target.dataset.tensor);
      $("#plots").scrollIntoView();
    }
  });
  show(table);
}

// --- plots of one tensor ------------------------------------------------------------------------------------------

function draw(parent, tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, each] of Object.entries(attributes)) element.setAttribute(name, each);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

const short = (number) => (number === 0 ? "0" : Number(number.toPrecision(3)).toString());
const frame = { left: 62, right: 410, top: 10, bottom: 240 };

function axes(svg, horizontal, vertical) {
  svg.replaceChildren();
  draw(svg, "line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom });
  draw(svg, "line", { class: "axis", x1: frame.left, x2: frame.left, y1: frame.top, y2: frame.bottom });
  horizontal.forEach(([share, label], index) =>
    draw(svg, "text", { x: frame.left + share * (frame.right - frame.left), y: frame.bottom + 16, "text-anchor": ["start", "middle", "end"][index] }, label)
  );
  for (const [share, label] of vertical) draw(svg, "text", { x: frame.left - 5, y: frame.bottom - share * (frame.bottom - frame.top) + 4, "text-anchor": "end" }, label);
}

function histogram(svg, tensor) {
  const most = Math.max(...tensor.counts);
  const height = (count) => Math.log1p(count) / Math.log1p(most); // few are far off, and they are what matters
  axes(svg, [[0, short(tensor.low)], [0.5, "0"], [1, short(tensor.high)]], [[0, "0"], [1, String(most)]]);
  const step = (frame.right - frame.left) / tensor.counts.length;
  tensor.counts.forEach((count, index) => {
    const tall = height(count) * (frame.bottom - frame.top);
    const bar = draw(svg, "rect", { x: frame.left + index * step + 0.5, width: Math.max(step - 1, 1), y: frame.bottom - tall, height: tall });
    const from = tensor.low + (index * (tensor.high - tensor.low)) / tensor.counts.length;
    draw(bar, "title", {}, `${count} from ${short(from)} to ${short(from + (tensor.high - tensor.low) / tensor.counts.length)}`);
  });
  draw(svg, "text", { x: (frame.left + frame.right) / 2, y: frame.bottom + 34, "text-anchor": "middle" }, "result − reference (elements on a logarithmic scale)");
}

function scatter(svg, tensor) {
  const all = [...tensor.expected, ...tensor.actual];
  let low = Math.min(...all), high = Math.max(...all);
  if (low === high) [low, high] = [low - 1, high + 1];
  const share = (number) => (number - low) / (high - low);
  axes(svg, [[0, short(low)], [0.5, short((low + high) / 2)], [1, short(high)]], [[0, short(low)], [1, short(high)]]);
  draw(svg, "line", { class: "equal", x1: frame.left, y1: frame.bottom, x2: frame.right, y2: frame.top });
  tensor.expected.forEach((expected, index) => {
    const actual = tensor.actual[index];
    const x = frame.left + share(expected) * (frame.right - frame.left), y = frame.bottom - share(actual) * (frame.bottom - frame.top);
    draw(draw(svg, "circle", { cx: x, cy: y, r: 3 }), "title", {}, `${short(actual)} where ${short(expected)} was expected`);
  });
  draw(svg, "text", { x: (frame.left + frame.right) / 2, y: frame.bottom + 34, "text-anchor": "middle" }, "reference; upwards: result");
}

function choose(key) {
  const tensor = tensors[key];
  if (!tensor) return;
  $("#tensor").value = key;
  const left = tensor.left_out ? `, ${tensor.left_out} NaN or Inf left out` : "";
  $("#histogram-title").textContent = `Differences of ${tensor.title}`;
  $("#scatter-title").textContent = `${tensor.title}: ${tensor.expected.length} of ${tensor.elements} elements${left}`;
  histogram($("#histogram"), tensor);
  scatter($("#scatter"), tensor);
  for (const row of $$("tr[data-tensor]")) row.classList.toggle("chosen", row.dataset.tensor === key);
  if (key !== Object.keys(tensors)[0] || state.has("tensor")) set("tensor", key);
}

if ($("#tensor")) {
  $("#tensor").addEventListener("change", (event) => choose(event.target.value));
  choose(state.get("tensor") in tensors ? state.get("tensor") : $("#tensor").value);
}
for (const point of $$("circle[data-tensor]")) point.addEventListener("click", () => choose(point.dataset.tensor));

// --- graphs: what is at fault in the middle -----------------------------------------------------------------------

for (const svg of $$("svg.graph")) {
  const box = $(".bad rect", svg) || $(".warn rect", svg);
  if (!box) continue;
  const place = box.getBoundingClientRect(), room = svg.parentElement.getBoundingClientRect();
  svg.parentElement.scrollLeft += place.x + place.width / 2 - room.x - room.width / 2;
}

// --- light and dark, keys -----------------------------------------------------------------------------------------

const system = matchMedia("(prefers-color-scheme: dark)");
const theme = () => state.get("theme") || (system.matches ? "dark" : "light");
function paint() {
  state.has("theme") ? (document.documentElement.dataset.theme = theme()) : delete document.documentElement.dataset.theme;
  $("#theme").textContent = theme() === "dark" ? "Light" : "Dark";
  $("#theme").setAttribute("aria-pressed", String(theme() === "dark"));
}
function turn() {
  const next = theme() === "dark" ? "light" : "dark";
  set("theme", next === (system.matches ? "dark" : "light") ? "" : next);
  paint();
}
$("#theme").addEventListener("click", turn);
system.addEventListener("change", paint);
paint();

const help = $("#help");
$("#help-button").addEventListener("click", () => help.showModal());
addEventListener("hashchange", () => {
  if (!location.hash.includes("=")) return; // a section, not a state
  state = new URLSearchParams(location.hash.slice(1));
  for (const table of tables) {
    $(`input[data-table="${table.id}"]`).value = state.get(`${table.id}.filter`) || "";
    show(table);
  }
  paint();
  choose(state.get("tensor"));
});

/** The table that is in the middle of what one looks at: that of the focus, or the first on the screen. */
function present() {
  const focused = document.activeElement.closest("section");
  const inView = tables.find((table) => table.element.getBoundingClientRect().bottom > 80);
  return tables.find((table) => focused && focused.id === table.id) || inView || tables[0];
}

function move(step) {
  const table = present();
  if (!table) return;
  const rows = visible(table);
  const now = rows.indexOf(document.activeElement.closest("tr"));
  const next = rows[Math.min(Math.max(now + step, 0), rows.length - 1)];
  if (!next) return;
  for (const row of table.rows) row.tabIndex = row === next ? 0 : -1;
  next.focus();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = event.target.matches("input, select, textarea");
  const row = event.target.matches("tbody tr");
  if (event.key === "Escape" && typing && event.target.type === "search") {
    event.target.value = "";
    event.target.dispatchEvent(new Event("input"));
    event.target.blur();
  } else if (event.key === "Escape" && row) {
    event.target.blur();
  } else if (typing) {
    if (event.key === "ArrowDown" && event.target.type === "search") (event.preventDefault(), move(1));
  } else if (event.key === "j" || (event.key === "ArrowDown" && row)) {
    event.preventDefault();
    move(1);
  } else if (event.key === "k" || (event.key === "ArrowUp" && row)) {
    event.preventDefault();
    move(-1);
  } else if (event.key === "/" && present()) {
    event.preventDefault();
    $(`input[data-table="${present().id}"]`).focus();
  } else if (event.key === "t") {
    turn();
  } else if (event.key === "?") {
    help.showModal();
  }
});
