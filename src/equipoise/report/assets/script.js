(() => {
  "use strict";
  const store = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const all = (query, from = document) => [...from.querySelectorAll(query)];
  const byId = (id) => document.getElementById(id);

  /* ---------------------------------------------------------------- light and dark */
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = (() => { try { return localStorage.getItem("equipoise-theme"); } catch { return null; } })();
  if (remembered === "light" || remembered === "dark") root.dataset.theme = remembered;
  const theme = () => root.dataset.theme || (system.matches ? "dark" : "light");
  const toggle = byId("theme");
  const nameToggle = () => { toggle.textContent = theme() === "dark" ? "Light" : "Dark"; };
  toggle.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    try { localStorage.setItem("equipoise-theme", root.dataset.theme); } catch { /* not kept, and that is all */ }
    nameToggle();
    drawAll();
  });
  system.addEventListener("change", () => { nameToggle(); drawAll(); });

  /* ---------------------------------------------------------------- charts */
  let paper = null; /* while printing: how charts look on paper */
  const tokens = /^@(\w+)(?:\/([\d.]+))?$/;
  const mixed = (base, opacity) => opacity === undefined ? base
    : `rgba(${[1, 3, 5].map((i) => parseInt(base.slice(i, i + 2), 16)).join(",")},${opacity})`;
  const resolve = (part, colours) => {
    if (Array.isArray(part)) return part.map((p) => resolve(p, colours));
    if (part && typeof part === "object")
      return Object.fromEntries(Object.entries(part).map(([k, v]) => [k, resolve(v, colours)]));
    const found = typeof part === "string" && part.match(tokens);
    return found && colours[found[1]] ? mixed(colours[found[1]], found[2]) : part;
  };
  const dim = (figure, chosen) => {
    if (chosen === "") return;
    for (const trace of figure.data)
      if (typeof trace.meta === "number") trace.opacity = String(trace.meta) === chosen ? 1 : 0.12;
    for (const note of figure.layout.annotations || [])
      if (note.name !== undefined) note.opacity = note.name === chosen ? 1 : 0.25;
  };
  const draw = (div) => {
    const figure = resolve(store.figures[div.id], store.themes[paper ? "light" : theme()]);
    dim(figure, byId("highlight").value);
    figure.layout.width = paper ? (div.closest(".single") ? 680 : 335) : div.clientWidth;
    Plotly.react(div, figure.data, figure.layout, { displayModeBar: false, responsive: false });
  };
  const visible = () => all(".chart").filter((div) => !div.closest("[hidden]"));
  const drawAll = () => visible().forEach(draw);
  const choose = (attack) => {
    for (const figure of all("figure[data-attack]")) figure.hidden = figure.dataset.attack !== attack;
    drawAll();
  };
  for (const radio of all("input[name=attack]")) radio.addEventListener("change", () => choose(radio.value));
  byId("highlight").addEventListener("change", drawAll);
  let width = innerWidth, waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return; /* a telephone's address bar comes and goes */
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 100);
  });
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open])");
    for (const d of closed) d.open = true;
    paper = true;
    drawAll();
  });
  addEventListener("afterprint", () => {
    for (const d of closed) d.open = false;
    paper = null;
    drawAll();
  });

  /* ---------------------------------------------------------------- sorting */
  const compare = (a, b) => {
    const none = [a, b].map((v) => v === null || v === "" || v === undefined);
    if (none[0] || none[1]) return none[0] - none[1]; /* what is missing goes last, either way */
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  };
  const directed = (a, b, down) => {
    const missing = (v) => v === null || v === "" || v === undefined;
    return missing(a) || missing(b) ? compare(a, b) : (down ? -1 : 1) * compare(a, b);
  };
  const makeSortable = (table, sorted) => {
    const heads = all("thead th", table);
    heads.forEach((head, index) => {
      const label = head.querySelector(".label");
      const button = document.createElement("button");
      button.type = "button";
      label.replaceWith(button);
      button.append(label);
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const first = head.classList.contains("number") ? "descending" : "ascending";
        const next = before === null ? first : before === "descending" ? "ascending" : "descending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", next);
        sorted(head, index, next === "descending");
      });
    });
  };
  const cellValue = (cell) => cell.dataset.value === undefined ? cell.textContent
    : cell.dataset.value === "" ? null : isNaN(cell.dataset.value) ? cell.dataset.value : Number(cell.dataset.value);
  for (const table of all("table.sortable"))
    makeSortable(table, (head, index, down) => {
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort((a, b) => directed(cellValue(a.cells[index]), cellValue(b.cells[index]), down)));
    });

  /* ---------------------------------------------------------------- every client */
  const { columns, methods, attacks } = store.clients;
  const names = all("#t-clients thead th").map((th) => th.dataset.column);
  const count = columns.method ? columns.method.length : 0;
  const words = { method: methods, attack: attacks, malicious: ["honest", "attacker"] };
  const value = (name, row) => words[name] ? words[name][columns[name][row]] ?? "" : columns[name][row];
  const share = new Set(["accuracy", "standalone", "filtered", "downweighted"]);
  const shown = (name, row) => {
    const v = value(name, row);
    if (v === null) return "–";
    if (typeof v !== "number") return v;
    const text = share.has(name) ? (100 * v).toFixed(1) : Number.isInteger(v) && !["loss", "gap"].includes(name) ? String(v) : v.toFixed(3);
    return text.replace("-", "−");
  };
  const step = 50;
  let order = [...Array(count).keys()], kept = order, most = step;
  const found = (row, term) => /^\d+$/.test(term) ? columns.client[row] === Number(term)
    : `${value("method", row)} ${value("attack", row)} ${value("malicious", row)} seed=${columns.seed[row]}`.toLowerCase().includes(term);
  const render = () => {
    const body = byId("t-clients").tBodies[0];
    body.replaceChildren(...kept.slice(0, most).map((row) => {
      const line = document.createElement("tr");
      for (const name of names) {
        const cell = document.createElement(name === "method" ? "th" : "td");
        if (name === "method") cell.scope = "row";
        else if (!words[name]) cell.className = "number";
        cell.textContent = shown(name, row);
        line.append(cell);
      }
      return line;
    }));
    const seen = Math.min(most, kept.length);
    byId("shown").textContent = kept.length
      ? `${seen.toLocaleString("en")} of ${kept.length.toLocaleString("en")} rows` : "No row matches";
    byId("more").hidden = seen === kept.length;
  };
  const search = () => {
    const terms = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    kept = order.filter((row) => terms.every((term) => found(row, term)));
    most = step;
    render();
  };
  makeSortable(byId("t-clients"), (head, _, down) => {
    const name = head.dataset.column;
    order.sort((a, b) => directed(value(name, a), value(name, b), down) || a - b);
    search();
  });
  byId("search").addEventListener("input", search);
  byId("more").addEventListener("click", () => { most += step; render(); });

  nameToggle();
  render();
  drawAll();
  root.dataset.ready = "yes";
})();
