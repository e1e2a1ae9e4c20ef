// The page's own script. It draws what Python computed (see `build.py`), moves the budget, and changes the
// theme; it computes nothing of the law, and puts text from data into the page as text only.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const one = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const print = matchMedia("print");
  const hidden = { n: new Set(), b: new Set() };
  const PRINTED = 680; // CSS pixels between the margins of A4
  let printing = print.matches;
  let stop = page.first;

  // Theme

  const isDark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);

  function coloured(value, colours) {
    if (typeof value === "string") return value.startsWith("var(--") ? colours[value.slice(6, -1)] : value;
    if (Array.isArray(value)) {
      const plain = value.every((v) => v === null || typeof v === "number");
      return plain ? value : value.map((v) => coloured(v, colours));
    }
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, v]) => [key, coloured(v, colours)]));
  }

  // Charts

  const axis = (colours) => ({
    gridcolor: colours.grid, linecolor: colours.line, tickcolor: colours.line, zeroline: false,
    showline: true, ticks: "outside", ticklen: 4, automargin: true, title: { standoff: 10 },
  });

  function merged(base, own) {
    const out = { ...base };
    for (const [key, value] of Object.entries(own || {})) {
      const both = value && typeof value === "object" && !Array.isArray(value) && out[key];
      out[key] = both ? merged(out[key], value) : value;
    }
    return out;
  }

  // The budget as a line, and the axis (of log10 x) as far as there: by a third of a decade at a time, since
  // every change of an axis draws the whole chart anew.
  function withBudget(chart) {
    const own = chart.layout.shapes || [];
    if (!chart.budget || !page.budgets.length) return { shapes: own };
    const { x, best } = page.budgets[stop];
    let [low, high] = chart.layout.xaxis.range;
    const at = Math.log10(x), room = (high - low) * 0.02;
    if (at < low) low = Math.floor((at - room) * 3) / 3;
    if (at > high) high = Math.ceil((at + room) * 3) / 3;
    const label = {
      text: best ? `budget: ${best}` : "budget", textangle: 0, textposition: "end", padding: 4, yanchor: "top",
      xanchor: at > (low + high) / 2 ? "right" : "left", font: { size: 11, color: "var(--text)" },
    };
    const line = { color: "var(--text)", width: 1, dash: "dot" };
    const mark = { type: "line", yref: "paper", y0: 0, y1: 1, x0: x, x1: x, line, label };
    return { shapes: [...own, mark], range: [low, high] };
  }

  // What plotly.js draws, in one theme; `width` undefined fills the element.
  function figure(chart, theme, width) {
    const colours = page.palette[theme];
    const data = chart.data.map((trace) => {
      const out = { showlegend: false, ...trace, visible: isShown(trace) };
      if (trace.meta && trace.meta.runs) {
        out.customdata = trace.customdata.map((own) => own && [page.runs[own[0]], own[1]]);
      }
      return out;
    });
    const { shapes, range } = withBudget(chart);
    const layout = merged(
      {
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colours.text },
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        margin: { l: 8, r: 12, t: 12, b: 8 }, height: chart.height, width, hovermode: "closest",
        xaxis: axis(colours), yaxis: axis(colours), showlegend: false,
        legend: { orientation: "h", traceorder: "normal", yref: "container", y: 0, yanchor: "bottom", x: 0, xref: "paper" },
        hoverlabel: { bgcolor: colours.panel, bordercolor: colours.line, font: { color: colours.text }, align: "left", namelength: -1 },
        dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
      },
      merged(chart.layout, { shapes, xaxis: range ? { range } : {} }),
    );
    return { data: coloured(data, colours), layout: coloured(layout, colours) };
  }

  function isShown(trace) {
    const meta = trace.meta || {};
    return !["n", "b"].some((key) => meta[key] !== undefined && hidden[key].has(meta[key]));
  }

  function draw(chart) {
    const made = figure(chart, isDark() ? "dark" : "light", printing ? PRINTED : undefined);
    Plotly.react(chart.host, made.data, made.layout, { displayModeBar: false, responsive: true, doubleClick: "reset" });
    [chart.drawn, chart.range] = [true, made.layout.xaxis.range];
  }

  const charts = page.charts.map((chart) => {
    const host = one(`[data-chart="${CSS.escape(chart.name)}"]`);
    return { ...chart, host, drawn: false };
  });
  const redraw = () => charts.filter((chart) => chart.drawn).forEach(draw);

  // One after the other, so that the page answers in between.
  const idle = window.requestIdleCallback || ((f) => setTimeout(f, 1));
  (function next() {
    const chart = charts.find((own) => !own.drawn);
    if (!chart) root.dataset.drawn = "";
    else idle(() => { if (!chart.drawn) draw(chart); next(); }, { timeout: 200 });
  })();

  function setPrinting(on) {
    if (printing === on) return;
    printing = on;
    charts.forEach(draw);
  }
  addEventListener("beforeprint", () => setPrinting(true));
  addEventListener("afterprint", () => setPrinting(false));
  print.addEventListener("change", (event) => setPrinting(event.matches));

  const button = one("#theme");
  function showTheme() {
    button.setAttribute("aria-pressed", String(isDark()));
    redraw();
  }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  dark.addEventListener("change", showTheme);
  button.setAttribute("aria-pressed", String(isDark()));

  for (const save of all("[data-svg]")) {
    save.addEventListener("click", async () => {
      const chart = charts.find((own) => own.name === save.dataset.svg);
      const size = { width: 900, height: chart.height };
      const made = figure(chart, "light", size.width);
      made.layout.paper_bgcolor = "#ffffff";
      if (page.simulated) made.layout.title = { text: page.simulated, x: 0.01, font: { size: 12 }, automargin: true };
      const link = document.createElement("a");
      link.href = await Plotly.toImage(made, { format: "svg", ...size });
      link.download = `${chart.name}.svg`;
      link.click();
    });
  }

  for (const chip of all(".chip")) {
    chip.addEventListener("click", () => {
      const { key, value } = chip.dataset;
      const off = hidden[key].delete(Number(value)) ? false : Boolean(hidden[key].add(Number(value)));
      chip.setAttribute("aria-pressed", String(!off));
      for (const chart of charts.filter((own) => own.drawn && own.data.some((t) => t.meta))) {
        Plotly.restyle(chart.host, { visible: chart.data.map(isShown) });
      }
    });
  }

  // Search: the rows of a table that have all the words

  for (const field of all("[data-find]")) {
    const rows = all(`#${CSS.escape(field.dataset.find)} tbody tr`);
    const texts = new Map(rows.map((line) => [line, line.textContent.toLowerCase()]));
    const found = document.getElementById("found");
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const [line, text] of texts) {
        line.hidden = !words.every((word) => text.includes(word));
        count += !line.hidden;
      }
      found.textContent = words.length ? `${count} of ${rows.length}` : "";
      const closed = field.closest("section").querySelector("details");
      if (words.length && closed) closed.open = true;
    });
  }

  // Budget

  const slider = one("#slider");
  let waiting = false;
  function row(values) {
    const line = document.createElement("tr");
    for (const value of values) {
      const cell = line.insertCell();
      cell.textContent = value;
      cell.dataset.sort = value.replace(/[,%]/g, "");
    }
    return line;
  }
  function item(value) {
    const line = document.createElement("li");
    line.textContent = value;
    return line;
  }
  function showBudget() {
    const now = page.budgets[stop];
    one("#c").textContent = now.budget;
    slider.setAttribute("aria-valuetext", `${now.budget}: ${now.spoken}`);
    for (const place of all("[data-show]")) {
      place.textContent = now[place.dataset.show];
      const line = place.closest(".list > div");
      if (line) line.hidden = now[place.dataset.show] === "";
    }
    one("#flags").replaceChildren(...now.flags.map(item));
    one("#others").hidden = now.options.length === 0;
    one("#table-options tbody").replaceChildren(...now.options.map(row));
    for (const head of all("#table-options th")) head.removeAttribute("aria-sort");
    if (!waiting) {
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        for (const chart of charts.filter((own) => own.drawn && own.budget)) {
          const colours = page.palette[isDark() ? "dark" : "light"];
          const { shapes, range } = withBudget(chart);
          const moved = String(range) === String(chart.range) ? {} : { "xaxis.range": range };
          chart.range = range;
          Plotly.relayout(chart.host, { shapes: coloured(shapes, colours), ...moved });
        }
      });
    }
  }
  if (slider) {
    slider.addEventListener("input", () => {
      stop = Number(slider.value);
      showBudget();
    });
    // A browser may keep the slider where it was when the page is loaded again.
    slider.value = String(page.first);
  }
})();
