"use strict";
// the axis is part of the address, and a chart tells its values where the pointer is; the page is whole without

function choose() {
  const wanted = /axis=(\w+)/.exec(location.hash);
  const box = wanted && document.getElementById("axis-" + wanted[1]);
  if (box) box.checked = true;
  const chosen = document.querySelector("input[name=axis]:checked");
  if (chosen) document.documentElement.dataset.axis = chosen.value;
}

for (const box of document.querySelectorAll("input[name=axis]")) {
  box.addEventListener("change", () => {
    history.replaceState(null, "", "#axis=" + box.value);
    choose();
  });
}
addEventListener("hashchange", choose);
choose();

function scale(text) {
  const [low, high, start, stop, log] = text.split(" ").map(Number);
  return (pixel) => {
    const share = (pixel - start) / (stop - start);
    return log ? low * Math.pow(high / low, share) : low + share * (high - low);
  };
}

function shown(value, unit) {
  if (unit === "bytes") {
    const power = value >= 1e9 ? 3 : value >= 1e6 ? 2 : value >= 1e3 ? 1 : 0;
    return (value / Math.pow(1000, power)).toPrecision(3) + [" B", " kB", " MB", " GB"][power];
  }
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}

for (const chart of document.querySelectorAll("svg.chart")) {
  const across = scale(chart.dataset.x), up = scale(chart.dataset.y);
  const output = chart.closest("figure").querySelector("output");
  const cursor = document.createElementNS(chart.namespaceURI, "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", 10);
  cursor.setAttribute("y2", 196);
  const lines = [...chart.querySelectorAll("polyline")].map((line) => [...line.points]);
  chart.addEventListener("pointermove", (event) => {
    const at = (event.clientX - chart.getBoundingClientRect().left) * chart.viewBox.baseVal.width / chart.clientWidth;
    const near = lines.map((points) => points.reduce((a, b) => (Math.abs(b.x - at) < Math.abs(a.x - at) ? b : a)));
    const x = near.reduce((a, b) => (Math.abs(b.x - at) < Math.abs(a.x - at) ? b : a)).x;
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    chart.append(cursor);
    const axis = chart.dataset.axis;
    output.textContent = (axis === "steps" ? "step " : "") + shown(axis === "steps" ? Math.round(across(x)) : across(x), axis) +
      (axis === "seconds" ? " s" : "") + ": " + near.map((point) => shown(up(point.y), chart.dataset.unit)).join(" · ");
  });
  chart.addEventListener("pointerleave", () => {
    cursor.remove();
    output.textContent = "";
  });
}
