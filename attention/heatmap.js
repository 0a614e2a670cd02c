"use strict";
// What is drawn: {title, unit, rows, columns, layer, head, layers: [{name, heads: [[…]]}]}. A head is its rows one after
// the other; a number is unit times the weight. Tokens become text nodes and attributes, never markup.
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const columns = data.columns.length;
const cells = [], tops = [], sides = [];
let layer = data.layer, head = data.head, row = 0, column = 0;

function made(tag, text) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  return element;
}

function build() {
  document.title = data.title;
  at("title").textContent = data.title;
  data.layers.forEach((each, i) => at("layer").append(new Option(each.name, i)));
  const grid = at("grid");
  grid.style.setProperty("--columns", columns);
  const line = grid.createTHead().insertRow();
  line.append(made("td"));
  for (const label of data.columns) {
    const top = made("th");
    top.scope = "col";
    top.title = label;
    top.append(made("span", label));
    tops.push(top);
  }
  line.append(...tops);
  const body = grid.createTBody();
  data.rows.forEach((label, i) => {
    const line = body.insertRow();
    const side = made("th", label);
    side.scope = "row";
    side.title = label;
    sides.push(side);
    line.append(side);
    for (let j = 0; j < columns; j++) {
      const cell = line.insertCell();
      cell.tabIndex = -1;
      cell.dataset.at = i * columns + j;
      cells.push(cell);
    }
  });
}

const largest = (weights) => at("absolute").checked ? data.unit : weights.reduce((a, b) => Math.max(a, b), 1);
const written = (number) => (number / data.unit).toFixed(Math.round(Math.log10(data.unit)));

// One pixel for each weight; the style sheet makes it larger.
function thumbnail(weights) {
  const canvas = made("canvas");
  [canvas.width, canvas.height] = [columns, data.rows.length];
  const pixel = Math.max(1, Math.min(8, Math.floor(96 / Math.max(columns, data.rows.length))));
  canvas.style.width = Math.min(columns * pixel, 160) + "px";
  canvas.style.height = Math.min(data.rows.length * pixel, 160) + "px";
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--weight").trim().split(" ").map(Number);
  const image = new ImageData(columns, data.rows.length);
  const most = largest(weights);
  weights.forEach((w, i) => image.data.set([...colour, 255 * w / most], 4 * i));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function showLayer() {
  const heads = data.layers[layer].heads;
  head = Math.min(head, heads.length - 1);
  at("layer").value = layer;
  at("head").replaceChildren(...heads.map((_, i) => new Option(i, i)));
  at("heads").replaceChildren(...heads.map((weights, i) => {
    const button = made("button");
    button.type = "button";
    button.append(thumbnail(weights), made("span", "head " + i));
    button.addEventListener("click", () => { head = i; showHead(); });
    return button;
  }));
  showHead();
}

function showHead() {
  const weights = data.layers[layer].heads[head];
  const most = largest(weights);
  at("head").value = head;
  at("grid").setAttribute("aria-label", data.layers[layer].name + ", head " + head);
  at("largest").textContent = written(most);
  [...at("heads").children].forEach((button, i) => button.setAttribute("aria-pressed", i === head));
  cells.forEach((cell, i) => {
    cell.style.setProperty("--w", weights[i] / most);
    cell.setAttribute("aria-label", written(weights[i]));
  });
  point(row, column);
}

function point(i, j) {
  for (const lit of document.querySelectorAll(".lit")) lit.classList.remove("lit");
  cells[row * columns + column].tabIndex = -1;
  [row, column] = [i, j];
  const cell = cells[row * columns + column];
  cell.tabIndex = 0;
  for (const element of [cell, sides[row], tops[column]]) element.classList.add("lit");
  at("reading").textContent = "“" + data.rows[row] + "” looks at “" + data.columns[column] + "”: " +
    written(data.layers[layer].heads[head][row * columns + column]);
}

function pointAt(event) {
  const cell = event.target.closest("[data-at]");
  if (cell) point(Math.floor(cell.dataset.at / columns), cell.dataset.at % columns);
}

function press(event) {
  const last = [data.rows.length - 1, columns - 1];
  const heads = data.layers[layer].heads.length;
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
                  Home: [0, -column], End: [0, last[1] - column] };
  if (event.key in steps) {
    const [down, right] = steps[event.key];
    point(Math.max(0, Math.min(last[0], row + down)), Math.max(0, Math.min(last[1], column + right)));
    cells[row * columns + column].focus();
  } else if (event.key === "PageDown" || event.key === "PageUp") {
    head = (head + (event.key === "PageDown" ? 1 : heads - 1)) % heads;
    showHead();
  } else {
    return;
  }
  event.preventDefault();
}

build();
showLayer();
at("layer").addEventListener("change", (event) => { layer = Number(event.target.value); showLayer(); });
at("head").addEventListener("change", (event) => { head = Number(event.target.value); showHead(); });
at("absolute").addEventListener("change", showLayer);
for (const kind of ["pointerover", "click", "focusin"]) at("grid").addEventListener(kind, pointAt);
at("grid").addEventListener("keydown", press);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showLayer);
