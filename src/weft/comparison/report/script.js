"use strict";
(() => {
  const root = document.documentElement;
  const all = (query, within = document) => [...within.querySelectorAll(query)];
  const make = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };
  const draw = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    return made;
  };

  // Theme: the reader's choice outlives the page where storage is allowed.
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const store = (value) => { try { if (value) localStorage.setItem("weft-theme", value); return localStorage.getItem("weft-theme"); } catch { return null; } };
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  const name = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  const kept = store();
  if (!root.dataset.theme && (kept === "dark" || kept === "light")) root.dataset.theme = kept;
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; store(root.dataset.theme); name(); });
  system.addEventListener("change", name);
  name();
  document.getElementById("print").addEventListener("click", () => print());
  document.querySelector(".tools").hidden = false;

  // The key: point at a model to see it alone on every chart, press it to hide it.
  const models = all("[data-model]");
  const hidden = new Set();
  const focus = (model) => { for (const each of models) each.classList.toggle("dim", model !== null && each.dataset.model !== model); };
  for (const item of all(".legend li")) {
    const model = item.dataset.model;
    const button = make("button", { type: "button", title: "Show or hide on every chart" }, ...item.childNodes);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      hidden.has(model) ? hidden.delete(model) : hidden.add(model);
      button.setAttribute("aria-pressed", String(!hidden.has(model)));
      for (const each of all(`.chart [data-model="${model}"]`)) each.classList.toggle("off", hidden.has(model));
    });
    item.append(button);
  }
  for (const each of models) {
    each.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") focus(each.dataset.model); });
    each.addEventListener("pointerleave", () => focus(null));
    // An element of a drawing that listens to focus is a stop of the Tab key in some browsers, and has nothing to press.
    if (each instanceof SVGElement) continue;
    each.addEventListener("focusin", () => focus(each.dataset.model));
    each.addEventListener("focusout", () => focus(null));
  }

  // A filter of the models by their names and by what they are.
  const texts = new Map();
  for (const each of all("tr[data-model], .card[data-model], .legend [data-model]")) texts.set(each.dataset.model, `${texts.get(each.dataset.model) ?? ""} ${each.textContent}`.toLowerCase());
  const filter = make("input", { type: "search", placeholder: "Filter models", id: "filter" });
  filter.setAttribute("aria-label", "Show only models whose description contains");
  filter.addEventListener("input", () => {
    const wanted = filter.value.trim().toLowerCase();
    for (const each of models) each.classList.toggle("out", !texts.get(each.dataset.model).includes(wanted));
  });
  document.querySelector(".legend").append(filter);

  // Tables that sort: by the number that a cell begins with, in the unit that follows it, or else by text.
  const units = { k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, m: 1e-3, "\u00b5": 1e-6, n: 1e-9 };
  const value = (cell) => {
    const found = /^[+\u2212]?([\d,]*\.?\d+)\s?(?:([kMGTPm\u00b5n])(?=B|s|\b))?/.exec(cell.textContent.trim());
    return found ? (found[0].startsWith("\u2212") ? -1 : 1) * Number(found[1].replaceAll(",", "")) * (units[found[2]] ?? 1) : null;
  };
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table), body = table.tBodies[0];
    heads.forEach((head, column) => {
      const button = make("button", { type: "button", className: "sort", title: "Sort by this column" }, ...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const each of heads) each.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const keyed = [...body.rows].map((row) => ({ row, number: value(row.cells[column]), text: row.cells[column].textContent }));
        keyed.sort((a, b) => (a.number === null) - (b.number === null) || (down ? -1 : 1) * (a.number === null ? a.text.localeCompare(b.text) : a.number - b.number));
        body.append(...keyed.map((each) => each.row));
      });
    });
  }

  // Charts: a crosshair that stops at the points there are, by pointer or by arrow keys.
  const labels = new Map(all(".legend li").map((item) => [item.dataset.model, item.querySelector("b").textContent]));
  for (const chart of all(".plot > .chart")) {
    const series = all("[data-points]", chart).map((group) => ({ group, points: JSON.parse(group.dataset.points) }));
    const stops = [...new Set(series.flatMap((each) => each.points.map((point) => point[0])))].sort((a, b) => a - b);
    if (!stops.length) continue;
    const box = chart.viewBox.baseVal;
    const cross = chart.appendChild(draw("g", { class: "crosshair" }));
    const tip = chart.parentElement.appendChild(make("div", { className: "tip", hidden: true }));
    tip.setAttribute("role", "status");
    let stop = -1;

    const nearest = (points, x) => points.reduce((best, point) => Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best);
    const clear = () => { cross.replaceChildren(); tip.hidden = true; stop = -1; };
    const show = (index) => {
      stop = Math.max(0, Math.min(stops.length - 1, index));
      const x = stops[stop];
      const shown = series.filter((each) => !hidden.has(each.group.dataset.model))
        .map((each) => ({ ...each, point: nearest(each.points, x) }))
        .filter((each) => !each.point[2] || Math.abs(each.point[0] - x) < 14)
        .sort((a, b) => a.point[1] - b.point[1]);
      if (!shown.length) return clear();
      const at = shown.map((each) => each.point).filter((point) => point[2]);
      const exact = at.length ? nearest(at, x)[2] : "";
      cross.replaceChildren(draw("line", { class: "cross", x1: x, x2: x, y1: 10, y2: all(".axes", chart)[0].dataset.bottom }),
        ...shown.filter((each) => each.point[2]).map((each) => {
          const dot = draw("circle", { class: "dot", cx: each.point[0], cy: each.point[1], r: 3.4 });
          dot.style.setProperty("--c", getComputedStyle(each.group).getPropertyValue("--c"));
          return dot;
        }));
      tip.replaceChildren(...(exact ? [make("strong", { textContent: exact })] : []), ...shown.map((each) => {
        const dot = make("i");
        dot.style.setProperty("--c", getComputedStyle(each.group).getPropertyValue("--c"));
        return make("div", {}, make("span", {}, dot, labels.get(each.group.dataset.model)), make("b", { textContent: each.point[3] }));
      }));
      tip.hidden = false;
      const wide = chart.clientWidth, place = x / box.width * wide;
      const left = place + 14 + tip.offsetWidth <= wide ? place + 14 : place - 14 - tip.offsetWidth;
      tip.style.left = `${Math.max(-8, Math.min(left, wide - tip.offsetWidth + 8))}px`;
      tip.style.top = `${chart.clientHeight * 0.04}px`;
    };
    const find = (event) => {
      const frame = chart.getBoundingClientRect();
      const x = (event.clientX - frame.left) / frame.width * box.width;
      show(stops.reduce((best, place, index) => Math.abs(place - x) < Math.abs(stops[best] - x) ? index : best, 0));
    };
    chart.setAttribute("tabindex", "0");
    chart.addEventListener("pointermove", find);
    chart.addEventListener("pointerdown", find);
    chart.addEventListener("pointerleave", clear);
    chart.addEventListener("blur", clear);
    chart.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: stop + 1, ArrowLeft: stop < 0 ? stops.length - 1 : stop - 1, Home: 0, End: stops.length - 1 };
      if (event.key === "Escape") clear();
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(moves[event.key]);
    });
  }

  // What is to be repeated can be copied.
  for (const block of all("pre.copy")) {
    const button = make("button", { type: "button", textContent: "Copy" });
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(block.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(block);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
    const holder = make("div", { className: "copied" });
    block.replaceWith(holder);
    holder.append(button, block);
  }
})();
