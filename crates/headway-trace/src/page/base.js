  const byId = (id) => document.getElementById(id);

  // ---- texts -------------------------------------------------------------------------------------------------------

  const UNITS = [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]];
  const fixed = (value, digits) => value.toFixed(digits).replace("-", "\u2212");

  /** A time on its own: three to four significant digits. */
  function time(ns) {
    const size = Math.abs(ns);
    const unit = size < 1e3 ? 0 : size < 1e6 ? 1 : size < 1e9 ? 2 : 3;
    const value = ns / UNITS[unit][1];
    const digits = unit === 0 ? 0 : Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
    return `${fixed(value, digits)}\u00a0${UNITS[unit][0]}`;
  }

  /** A moment: to a thousandth of its unit. */
  function moment(ns) {
    const [name, scale] = UNITS[ns < 1e3 ? 0 : ns < 1e6 ? 1 : ns < 1e9 ? 2 : 3];
    return `${ns < 1e3 ? Math.round(ns) : (ns / scale).toFixed(scale === 1e9 ? 6 : 3)}\u00a0${name}`;
  }

  /** One unit for a column, so that its numbers line up. */
  function unitFor(values) {
    let longest = 0;
    for (const value of values) longest = Math.max(longest, Math.abs(value));
    const unit = longest < 1e3 ? 0 : longest < 1e6 ? 1 : longest < 1e9 ? 2 : 3;
    const [name, scale] = UNITS[unit];
    const digits = unit === 0 ? 0 : unit === 1 ? 1 : 3;
    // Digits are cut, not rounded: what misses by a little must not read as having arrived in time.
    const cut = 10 ** digits;
    return { name, text: (ns) => fixed(Math.trunc((ns / scale) * cut) / cut, digits) };
  }

  function scaled(value, units) {
    let at = 0;
    while (at + 1 < units.length && value >= 1000) { value /= 1000; at += 1; }
    return `${at === 0 || value >= 100 ? fixed(value, 0) : fixed(value, value < 10 ? 2 : 1)}\u00a0${units[at]}`;
  }
  const size = (bytes) => scaled(bytes, ["B", "kB", "MB", "GB", "TB"]);
  const rate = (perSecond) => scaled(perSecond, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]);
  const percent = (ppm) => `${fixed(ppm / 1e4, 1)}\u00a0%`;
  /** The ordinal of a stream's GPU, or the name of its core. */
  const processor = (stream) => (stream.gpu === null ? `cpu${stream.cpu}` : String(stream.gpu));
  const count = (n) => (n < 10000 ? String(n) : String(n).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f"));

  // ---- elements ----------------------------------------------------------------------------------------------------

  const SVG = "http://www.w3.org/2000/svg";

  function fill(element, attributes, children) {
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else element.setAttribute(key, value === true ? "" : value);
    }
    for (const child of children.flat()) {
      if (child !== undefined && child !== null) element.append(child);
    }
    return element;
  }
  const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  const bar = (share) => {
    const inner = el("i", { class: share > 1 ? "over" : null });
    inner.style.width = `${Math.min(100, share * 100).toFixed(1)}%`;
    return el("span", { class: "bar", "aria-hidden": "true" }, inner);
  };
  const number = (n) => el("span", { class: n === 0 ? "zero" : null }, count(n));
  const badNumber = (n) => el("span", { class: n === 0 ? "zero" : "wrong" }, count(n));

  // ---- search ------------------------------------------------------------------------------------------------------

  /** What follows the search field and the box for idle engines: {apply(match), found() => [shown, all, word]}. */
  const searchables = [];
  const nothing = { words: [], hideIdle: true, of: () => true };
  let search = nothing;

  /** Every word that was typed has to occur, in whatever case. */
  function matcher(text, hideIdle) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return { words, hideIdle, of: (name) => words.every((word) => name.toLowerCase().includes(word)) };
  }

  function applySearch() {
    search = matcher(byId("search").value, byId("idle").checked);
    for (const part of searchables) part.apply(search);
    const counts = searchables.map((part) => part.found()).filter(Boolean);
    byId("search-found").textContent = search.words.length
      ? counts.map(([shown, all, word]) => `${count(shown)} of ${count(all)} ${word}`).join(", ")
      : "";
  }

  /** `idle` names what was idle: [count, word] each. */
  function finder(idle) {
    const some = idle.filter(([n]) => n > 0);
    byId("finder").hidden = false;
    byId("search").addEventListener("input", applySearch);
    byId("idle").addEventListener("change", applySearch);
    byId("idle-label").hidden = !some.length;
    byId("idle-text").textContent = `Hide what was idle: ${some.map(([n, word]) => `${count(n)} ${word}${n === 1 ? "" : "s"}`).join(", ")}`;
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
      event.preventDefault();
      byId("search").focus();
    });
  }

  // ---- tables ------------------------------------------------------------------------------------------------------

  /**
   * A table whose heads sort it and whose rows the search finds. Columns: {label, num, value(row), cell(row)}; options:
   * {word, name(row), idle(row), decorate(element, row, index)}.
   */
  function sortable(box, label, columns, rows, options) {
    const { word, name, idle, decorate } = options;
    const body = el("tbody");
    let sorted = { column: -1, down: false };
    const order = rows.map((_, index) => index);
    const shown = (row) => search.of(name(row)) && !(idle && search.hideIdle && !search.words.length && idle(row));
    const render = () => {
      const found = order.filter((index) => shown(rows[index]));
      body.replaceChildren(...found.map((index) => {
        const cells = columns.map((column) =>
          el("td", { class: column.num ? "num" : column.wide ? null : "name" }, column.cell(rows[index], index)));
        const row = el("tr", null, cells);
        if (decorate) decorate(row, rows[index], index);
        return row;
      }));
      if (!found.length) body.append(el("tr", { class: "nothing" }, el("td", { colspan: columns.length }, `No ${word} to show.`)));
    };
    const heads = columns.map((column, at) => {
      if (!column.value) return el("th", { scope: "col" }, el("span", { class: "plain" }, column.label));
      const sort = () => {
        sorted = { column: at, down: sorted.column === at ? !sorted.down : Boolean(column.num) };
        const sign = sorted.down ? -1 : 1;
        order.sort((a, b) => {
          const [x, y] = [column.value(rows[a]), column.value(rows[b])];
          return (x < y ? -sign : x > y ? sign : 0) || a - b;
        });
        for (const head of heads) head.removeAttribute("aria-sort");
        heads[at].setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
        render();
      };
      return el("th", { scope: "col", class: column.num ? "num" : null },
        el("button", { type: "button", onclick: sort }, column.label));
    });
    render();
    box.replaceChildren(el("table", { "aria-label": label }, el("thead", null, el("tr", null, heads)), body));
    searchables.push({ apply: render, found: () => [rows.filter((row) => search.of(name(row))).length, rows.length, word] });
    return { body, render };
  }

  // ---- head --------------------------------------------------------------------------------------------------------

  const MEANS = {
    sim: "simulated: virtual time over the interconnect model",
    emu: "emulated: threads and real memory, throttled; not a GPU's figures",
    cuda: "measured on GPUs",
  };

  /** Badge, verdict, provenance and the large figures, [name, value, note] each. */
  function head(summary, subtitle, facts) {
    byId("source").textContent = summary.source;
    byId("source-means").textContent = MEANS[summary.source] || "";
    const text = summary.verdict.text;
    const title = byId("verdict");
    title.textContent = text.charAt(0).toUpperCase() + text.slice(1);
    title.className = summary.verdict.held ? "good" : "bad";
    const unpromised = summary.verdict.unpromised;
    byId("subtitle").textContent = unpromised ? `${unpromised}. ${subtitle}` : subtitle;
    const devices = summary.devices || [];
    byId("provenance").textContent = [
      `Source: ${summary.source}`,
      `workload ${summary.workload.name} (${summary.workload.hash})`,
      `machine ${summary.machine.name} (${summary.machine.hash})`,
      devices.length ? `devices ${devices.join(", ")}` : null,
      summary.strategy ? `strategy ${summary.strategy}` : null,
      `seed ${summary.seed}`,
      `Headway ${summary.version}, commit ${summary.commit}`,
    ].filter(Boolean).join(" · ");
    byId("facts").replaceChildren(...facts.map(([name, value, note]) =>
      el("div", null, el("dt", null, name), el("dd", null, value, el("small", null, note)))));
  }

  function sentences(id, lines) {
    byId(`${id}-section`).hidden = !lines.length;
    byId(id).replaceChildren(...lines.map((line) => el("li", null, line)));
  }

  // ---- responses ---------------------------------------------------------------------------------------------------

  /** Shortest to longest on a line that ends at the deadline, or behind it when some packet was later. */
  function range(response, deadline, scale) {
    const x = (ns) => (Math.min(ns / deadline, scale) / scale) * 144 + 3;
    const box = svg("svg", { class: "range", viewBox: "0 0 150 14", "aria-hidden": "true" });
    const line = (a, b, y, color, width) =>
      box.append(svg("line", { x1: x(a), x2: x(b), y1: y, y2: y, stroke: color, "stroke-width": width }));
    line(0, deadline * scale, 7, "var(--faint)", 6);
    if (response) {
      line(response.min, response.max, 7, response.max > deadline ? "var(--bad)" : "var(--accent-soft)", 6);
      line(response.min, Math.max(response.min, Math.min(response.p99 ?? response.max, deadline)), 7, "var(--busy)", 6);
      const median = x(response.median);
      box.append(svg("line", { x1: median, x2: median, y1: 2, y2: 12, stroke: "var(--text)", "stroke-width": 2 }));
    }
    box.append(svg("line", { x1: x(deadline), x2: x(deadline), y1: 0, y2: 14, stroke: "var(--bad)", "stroke-width": 1.5 }));
    return box;
  }

  /**
   * A table of streams or tasks beside a card with the responses of the one that is chosen. `card(index)` gives
   * {title, about, facts: [name, text, wrong], series, deadline, p99, what}; `p99` is null where there are too few for one.
   */
  function responses(columns, rows, chosen, word, name, card, view) {
    let at = chosen;
    const choose = (index) => {
      at = index;
      for (const row of table.body.rows) row.classList.toggle("chosen", Number(row.dataset.index) === index);
      showCard(card(index), view);
    };
    columns[0].cell = (row, index) =>
      el("button", { type: "button", class: "link", onclick: (event) => { event.stopPropagation(); choose(index); } }, name(row));
    const table = sortable(byId("streams"), `Table of ${word}`, columns, rows, {
      word,
      name,
      decorate: (row, _, index) => {
        row.dataset.index = index;
        row.className = index === at ? "pick chosen" : "pick";
        row.addEventListener("click", () => choose(index));
      },
    });
    showCard(card(at), view);
  }

  function showCard({ title, about, facts, series, deadline, p99, what }, view) {
    const pairs = facts.map(([name, text, wrong]) => el("div", null, el("dt", null, name), el("dd", { class: wrong ? "wrong" : null }, text)));
    const children = [el("h3", null, title), el("p", { class: "small muted" }, about), el("dl", null, pairs)];
    if (!series.of) {
      byId("stream").replaceChildren(...children, el("p", { class: "label" }, `No ${what} was delivered.`));
      return;
    }
    const scatter = el("canvas", { role: "img", "aria-label": `Response times of ${title} over the run` });
    const some = series.at.length < series.of ? `; of ${count(series.of)} the longest and shortest of every few` : "";
    children.push(el("div", { class: "plots" },
      el("div", null, el("p", { class: "label" }, `Response times, number of ${what}s`), histogram(series, deadline, p99)),
      el("div", null, el("p", { class: "label" }, `Response time over the run${some}. Click one for what ran at that time.`), scatter)));
    byId("stream").replaceChildren(...children);
    drawScatter(scatter, series, deadline, view);
  }

  function histogram(series, deadline, p99) {
    const [width, height] = [344, 136];
    const { bins, end } = series;
    const most = bins.reduce((a, b) => Math.max(a, b), 1);
    const x = (ns) => (ns / end) * width;
    const box = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" },
      svg("title", null, `Distribution of ${count(series.of)} response times; ${p99 === null ? "" : `99th percentile ${time(p99)}, `}deadline ${time(deadline)}`));
    const base = height - 20;
    bins.forEach((n, at) => {
      if (!n) return;
      const tall = Math.max(2, (n / most) * (base - 32));
      const late = (at + 0.5) * (end / bins.length) > deadline;
      box.append(svg("rect", { x: (at * width) / bins.length + 0.5, y: base - tall, width: width / bins.length - 1, height: tall, rx: 1, fill: late ? "var(--bad)" : "var(--busy)" },
        svg("title", null, `${count(n)} from ${time((at * end) / bins.length)} to ${time(((at + 1) * end) / bins.length)}`)));
    });
    const rule = (ns, top, color, dash) => box.append(svg("line", { x1: x(ns), x2: x(ns), y1: top, y2: base, stroke: color, "stroke-width": 1.5, "stroke-dasharray": dash }));
    // A label stands left of its line where there is room, right of it otherwise.
    const label = (ns, y, color, text) => {
      const left = x(ns) > text.length * 7;
      box.append(svg("text", { x: x(ns) + (left ? -4 : 4), y, "text-anchor": left ? "end" : "start", "font-size": 11, fill: color }, text));
    };
    box.append(svg("line", { x1: 0, x2: width, y1: base, y2: base, stroke: "var(--edge)" }));
    rule(deadline, 2, "var(--bad)", null);
    if (p99 !== null) {
      rule(p99, 16, "var(--muted)", "3 3");
      label(p99, 25, "var(--muted)", `p99 ${time(p99)}`);
    }
    label(deadline, 11, "var(--bad)", `deadline ${time(deadline)}`);
    box.append(svg("text", { x: 0, y: height - 5, "font-size": 11, fill: "var(--muted)" }, "0"),
      svg("text", { x: width, y: height - 5, "text-anchor": "end", "font-size": 11, fill: "var(--muted)" }, time(end)));
    return box;
  }

  function drawScatter(canvas, series, deadline, view) {
    const late = new Set(series.late);
    const paint = () => {
      const [width, height] = [canvas.clientWidth || 344, 110];
      const context = sized(canvas, width, height);
      const colors = palette();
      const y = (ns) => height - 2 - (ns / series.end) * (height - 4);
      context.fillStyle = colors.faint;
      context.fillRect(0, 0, width, height);
      series.response.forEach((ns, at) => {
        context.fillStyle = late.has(at) ? colors.bad : colors.busy;
        const size = late.has(at) ? 4 : 2.5;
        context.fillRect((series.at[at] / view.span) * (width - 4), y(ns) - size / 2, size, size);
      });
      context.fillStyle = colors.bad;
      context.fillRect(0, y(deadline), width, 1);
    };
    paint();
    canvas.addEventListener("paint", paint);
    canvas.addEventListener("click", (event) => {
      const at = (event.offsetX / canvas.clientWidth) * view.span;
      let best = 0;
      series.at.forEach((end, index) => { if (Math.abs(end - at) < Math.abs(series.at[best] - at)) best = index; });
      view.show(series.at[best] - series.response[best], series.at[best]);
    });
  }

  // ---- waits -------------------------------------------------------------------------------------------------------

  const MATRIX = 12;

  /** Who waited for whom, pairs of {waiting, cause, total}: the names with the longest waits, and the others as one. */
  function matrix(pairs, names, word, driver) {
    const weight = new Map();
    const add = (key, ns) => weight.set(key, (weight.get(key) || 0) + ns);
    for (const pair of pairs) {
      add(pair.waiting, pair.total);
      add(pair.cause, pair.total);
    }
    const ranked = [...weight.keys()].sort((a, b) => weight.get(b) - weight.get(a) || a - b);
    const shown = ranked.slice(0, MATRIX).sort((a, b) => a - b);
    const rest = ranked.length > MATRIX ? "rest" : null;
    if (rest) { shown.push(rest); names.set(rest, `${ranked.length - MATRIX} others`); }
    const place = (key) => (shown.includes(key) ? key : rest);
    const cells = new Map();
    let most = 1;
    for (const pair of pairs) {
      const key = `${place(pair.waiting)}/${place(pair.cause)}`;
      cells.set(key, (cells.get(key) || 0) + pair.total);
      if (!key.includes("rest")) most = Math.max(most, cells.get(key));
    }
    const unit = unitFor([...cells.values()]);
    const waiting = shown.filter((key) => key !== driver);
    const cell = (row, column) => {
      const ns = cells.get(`${row}/${column}`) || 0;
      if (!ns) return el("td", { class: "none" }, "·");
      const td = el("td", { title: `${names.get(row)} waited ${time(ns)} for ${names.get(column)}` }, unit.text(ns));
      const share = Math.round(Math.min(1, ns / most) * 60);
      td.style.background = `color-mix(in srgb, var(--accent-soft) ${share}%, transparent)`;
      return td;
    };
    byId("matrix").hidden = false;
    byId("matrix").replaceChildren(el("table", { class: "matrix" },
      el("caption", null, `Total time in ${unit.name} that the row's jobs waited for the column's${rest ? `; the ${word} with the longest waits by name` : ""}.`),
      el("thead", null, el("tr", null, el("th", { scope: "col" }, "waited \u2193 for \u2192"), shown.map((key) => el("th", { scope: "col" }, names.get(key))))),
      el("tbody", null, waiting.map((row) => el("tr", null, el("th", { scope: "row" }, names.get(row)), shown.map((column) => cell(row, column)))))));
  }

  /** Engines by name, how much they did, and how busy they were. */
  function engineTable(engines) {
    const columns = [{ label: "engine", value: (e) => e.name, cell: (e) => e.name }];
    if (engines.some((e) => e.operations !== undefined)) {
      columns.push({ label: "operations", num: true, value: (e) => e.operations, cell: (e) => number(e.operations) });
      columns.push({ label: "data", num: true, value: (e) => e.bytes, cell: (e) => size(e.bytes) });
    } else {
      columns.push({ label: "in use", num: true, value: (e) => e.busy, cell: (e) => time(e.busy) });
    }
    columns.push({ label: "busy", num: true, value: (e) => e.utilisation_ppm, cell: (e) => [bar(e.utilisation_ppm / 1e6), percent(e.utilisation_ppm)] });
    sortable(byId("engines"), "Engines", columns, engines, { word: "engines", name: (e) => e.name, idle: (e) => e.busy === 0 });
  }

  // ---- colours and canvases ----------------------------------------------------------------------------------------

  const scheme = matchMedia("(prefers-color-scheme: dark)");
  /** Paper is light. */
  const dark = () => scheme.matches && !document.documentElement.classList.contains("paper");

  function palette() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    return Object.fromEntries(["ground", "card", "text", "muted", "line", "faint", "edge", "accent", "accent-soft", "bad", "busy"].map((name) => [name, of(name)]));
  }

  /** Distinct, quiet colours: hues a golden section apart, but no red, which means late. */
  const tone = (index) => `hsl(${(40 + ((index * 173.052 + 168) % 280)).toFixed(0)} ${dark() ? "32% 58%" : "42% 62%"})`;

  function sized(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  }

