"use strict";
(() => {
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

  /** A table whose heads sort it. Columns: {label, num, value(row), cell(row), first: "descending"}. */
  function sortable(box, label, columns, rows, decorate) {
    const body = el("tbody");
    let sorted = { column: -1, down: false };
    const order = rows.map((_, index) => index);
    const render = () => {
      body.replaceChildren(...order.map((index) => {
        const cells = columns.map((column) =>
          el("td", { class: column.num ? "num" : "name" }, column.cell(rows[index], index)));
        const row = el("tr", null, cells);
        if (decorate) decorate(row, rows[index], index);
        return row;
      }));
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
    return { body, render };
  }

  // ---- head --------------------------------------------------------------------------------------------------------

  const MEANS = {
    sim: "simulated: virtual time over the interconnect model",
    emu: "emulated: threads and real memory, throttled; not a GPU's figures",
    cuda: "measured on GPUs",
  };

  function head(summary) {
    byId("source").textContent = summary.source;
    byId("source-means").textContent = MEANS[summary.source] || "";
    const text = summary.verdict.text;
    const title = byId("verdict");
    title.textContent = text.charAt(0).toUpperCase() + text.slice(1);
    title.className = summary.verdict.held ? "good" : "bad";
    const planned = { schedulable: "planned as schedulable", undecided: "planned without a proof", "not-schedulable": "planned as not schedulable" };
    byId("subtitle").textContent =
      `Workload ${summary.workload.name} on ${summary.machine.name}, ${planned[summary.planned] || summary.planned}`;
    byId("provenance").textContent = [
      `Source: ${summary.source}`,
      `workload ${summary.workload.name} (${summary.workload.hash})`,
      `machine ${summary.machine.name} (${summary.machine.hash})`,
      summary.devices.length ? `devices ${summary.devices.join(", ")}` : null,
      `strategy ${summary.strategy}`,
      `seed ${summary.seed}`,
      `Headway ${summary.version}, commit ${summary.commit}`,
    ].filter(Boolean).join(" · ");
    facts(summary);
  }

  function facts(summary) {
    const fact = (name, value, note) => el("div", null, el("dt", null, name), el("dd", null, value, el("small", null, note)));
    const totals = summary.totals;
    const tightest = leastSlack(summary);
    const busiest = summary.engines.reduce((best, engine) => (!best || engine.utilisation_ppm > best.utilisation_ppm ? engine : best), null);
    const waits = summary.servers.filter((server) => server.longest);
    const longest = waits.reduce((best, server) => (!best || server.longest.wait > best.longest.wait ? server : best), null);
    byId("facts").replaceChildren(
      totals.packets
        ? fact("Delivered", count(totals.delivered), `of ${count(totals.packets)} packets, ${size(totals.bytes)}`)
        : fact("Delivered", count(totals.cycles), "cycles"),
      fact("Duration", time(summary.span), `${count(totals.operations)} operations, ${count(totals.jobs)} jobs`),
      tightest
        ? fact("Least slack", time(tightest.worst_slack_ns), `${tightest.id}, deadline ${time(tightest.deadline)}`)
        : fact("Late jobs", count(totals.late), `${count(totals.overruns)} overruns`),
      busiest ? fact("Busiest engine", percent(busiest.utilisation_ppm), busiest.name) : fact("Engines", "none", "abstract servers only"),
      longest
        ? fact("Longest wait", time(longest.longest.wait), `${longest.longest.job.pipeline} at ${longest.name}`)
        : fact("Longest wait", "none", "no job had to wait"),
    );
  }

  const leastSlack = (summary) => summary.streams.reduce((best, stream) =>
    (stream.worst_slack_ns !== null && (!best || stream.worst_slack_ns < best.worst_slack_ns) ? stream : best), null);

  // ---- streams -----------------------------------------------------------------------------------------------------

  /** Shortest to longest on a line that ends at the deadline, or behind it when some packet was later. */
  function range(stream, scale) {
    const { response, deadline } = stream;
    const x = (ns) => (Math.min(ns / deadline, scale) / scale) * 144 + 3;
    const box = svg("svg", { class: "range", viewBox: "0 0 150 14", "aria-hidden": "true" });
    const line = (a, b, y, color, width) =>
      box.append(svg("line", { x1: x(a), x2: x(b), y1: y, y2: y, stroke: color, "stroke-width": width }));
    line(0, deadline * scale, 7, "var(--faint)", 6);
    if (response) {
      line(response.min, response.max, 7, response.max > deadline ? "var(--bad)" : "var(--accent-soft)", 6);
      line(response.min, Math.max(response.min, Math.min(response.p99, deadline)), 7, "var(--busy)", 6);
      const median = x(response.median);
      box.append(svg("line", { x1: median, x2: median, y1: 2, y2: 12, stroke: "var(--text)", "stroke-width": 2 }));
    }
    box.append(svg("line", { x1: x(deadline), x2: x(deadline), y1: 0, y2: 14, stroke: "var(--bad)", "stroke-width": 1.5 }));
    return box;
  }

  function streams(data, view) {
    const { summary } = data;
    if (!summary.streams.length) {
      byId("streams-section").hidden = true;
      return;
    }
    const times = summary.streams.flatMap((s) => [s.deadline, s.response ? s.response.max : 0]);
    const unit = unitFor(times);
    const response = (key) => ({
      num: true,
      value: (s) => (s.response ? s.response[key] : -1),
      cell: (s) => (s.response ? unit.text(s.response[key]) : "–"),
    });
    const worst = summary.streams.map((s) => (s.response ? s.response.max / s.deadline : 0));
    const scale = Math.max(1.04, Math.min(2, worst.reduce((a, b) => Math.max(a, b), 0) * 1.04));
    let chosen = Math.max(0, summary.streams.indexOf(leastSlack(summary)));
    const choose = (index) => {
      chosen = index;
      for (const row of table.body.rows) row.classList.toggle("chosen", Number(row.dataset.index) === index);
      streamCard(data, index, view);
    };
    const columns = [
      { label: "stream", value: (s) => s.id, cell: (s, index) => el("button", { type: "button", class: "link", title: s.id, onclick: () => choose(index) }, s.id) },
      { label: "gpu", num: true, value: (s) => s.gpu ?? 1000 + s.cpu, cell: (s) => processor(s) },
      { label: "packets", num: true, value: (s) => s.packets, cell: (s) => number(s.packets) },
      { label: `median ${unit.name}`, ...response("median") },
      { label: `p99 ${unit.name}`, ...response("p99") },
      { label: `max ${unit.name}`, ...response("max") },
      { label: `deadline ${unit.name}`, num: true, value: (s) => s.deadline, cell: (s) => unit.text(s.deadline) },
      { label: "shortest to longest", value: (s) => (s.response ? s.response.max / s.deadline : 0), cell: (s) => range(s, scale) },
      { label: "missed", num: true, value: (s) => s.misses, cell: (s) => badNumber(s.misses) },
      { label: "lost", num: true, value: (s) => s.lost, cell: (s) => badNumber(s.lost) },
    ];
    const table = sortable(byId("streams"), "Streams", columns, summary.streams, (row, _, index) => {
      row.dataset.index = index;
      row.className = index === chosen ? "pick chosen" : "pick";
      row.addEventListener("click", () => choose(index));
    });
    streamCard(data, chosen, view);
  }

  function streamCard(data, index, view) {
    const stream = data.summary.streams[index];
    const { response } = stream;
    const facts = [["median", response && response.median], ["p99", response && response.p99], ["max", response && response.max], ["deadline", stream.deadline]];
    const pairs = facts.flatMap(([name, ns]) => [el("dt", null, name), el("dd", { class: name === "max" && stream.misses ? "wrong" : null }, ns === null ? "–" : time(ns))]);
    const children = [
      el("h3", null, stream.id),
      el("p", { class: "small muted" }, `${stream.gpu === null ? "" : "gpu "}${processor(stream)}, pipeline ${stream.pipeline}; ${count(stream.delivered)} of ${count(stream.packets)} packets, ${size(stream.bytes)}`),
      el("dl", null, pairs),
    ];
    if (response) {
      const raw = data.streams[index];
      children.push(el("p", { class: "label" }, "Packets by response time"), histogram(stream, raw));
      const scatter = el("canvas", { role: "img", "aria-label": `Response times of ${stream.id} over the run` });
      children.push(el("p", { class: "label" }, "Response time over the run; click a packet for the engines at that time"), scatter);
      byId("stream").replaceChildren(...children);
      drawScatter(scatter, stream, raw, data.summary.span, view);
    } else {
      byId("stream").replaceChildren(...children, el("p", { class: "label" }, "No packet was delivered."));
    }
  }

  function histogram(stream, raw) {
    const [width, height, bins] = [344, 130, 48];
    const end = Math.max(stream.deadline, stream.response.max) * 1.03;
    const counts = new Array(bins).fill(0);
    for (const ns of raw.response) counts[Math.min(bins - 1, Math.floor((ns / end) * bins))] += 1;
    const most = counts.reduce((a, b) => Math.max(a, b), 1);
    const x = (ns) => (ns / end) * width;
    const box = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" },
      svg("title", null, `Distribution: median ${time(stream.response.median)}, 99th percentile ${time(stream.response.p99)}, longest ${time(stream.response.max)}, deadline ${time(stream.deadline)}`));
    const base = height - 20;
    counts.forEach((n, at) => {
      if (!n) return;
      const tall = Math.max(2, (n / most) * (base - 18));
      const late = (at + 0.5) * (end / bins) > stream.deadline;
      box.append(svg("rect", { x: (at * width) / bins + 0.5, y: base - tall, width: width / bins - 1, height: tall, rx: 1, fill: late ? "var(--bad)" : "var(--busy)" }));
    });
    const rule = (ns, color, dash) => box.append(svg("line", { x1: x(ns), x2: x(ns), y1: 4, y2: base, stroke: color, "stroke-width": 1.5, "stroke-dasharray": dash }));
    const label = (at, y, anchor, color, text) => box.append(svg("text", { x: at, y, "text-anchor": anchor, "font-size": 11, fill: color }, text));
    box.append(svg("line", { x1: 0, x2: width, y1: base, y2: base, stroke: "var(--line)" }));
    rule(stream.deadline, "var(--bad)", null);
    rule(stream.response.p99, "var(--muted)", "3 3");
    const near = x(stream.deadline) - x(stream.response.p99) < 60;
    label(x(stream.deadline) - 4, 12, "end", "var(--bad)", "deadline");
    label(x(stream.response.p99) - 4, near ? 26 : 12, "end", "var(--muted)", "p99");
    label(0, height - 5, "start", "var(--muted)", "0");
    label(width, height - 5, "end", "var(--muted)", time(end));
    return box;
  }

  function drawScatter(canvas, stream, raw, span, view) {
    const [width, height] = [canvas.clientWidth || 344, 110];
    const context = sized(canvas, width, height);
    const colors = palette();
    const end = Math.max(stream.deadline, stream.response.max) * 1.05;
    const y = (ns) => height - 2 - (ns / end) * (height - 4);
    const delivered = (at) => raw.start + raw.packet[at] * raw.period + raw.response[at];
    context.fillStyle = colors.faint;
    context.fillRect(0, 0, width, height);
    raw.response.forEach((ns, at) => {
      context.fillStyle = ns > stream.deadline ? colors.bad : colors.busy;
      context.fillRect((delivered(at) / span) * (width - 3), y(ns) - 1, 2.5, 2.5);
    });
    context.fillStyle = colors.bad;
    context.fillRect(0, y(stream.deadline), width, 1);
    canvas.addEventListener("click", (event) => {
      const at = (event.offsetX / width) * span;
      let best = 0;
      raw.response.forEach((_, index) => {
        if (Math.abs(delivered(index) - at) < Math.abs(delivered(best) - at)) best = index;
      });
      view.show(delivered(best) - raw.response[best], delivered(best));
    });
  }

  // ---- colours and canvases ----------------------------------------------------------------------------------------

  const dark = matchMedia("(prefers-color-scheme: dark)");

  function palette() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    return Object.fromEntries(["ground", "card", "text", "muted", "line", "faint", "accent", "bad", "busy"].map((name) => [name, of(name)]));
  }

  /** Distinct, quiet colours: hues a golden angle apart. */
  const tone = (index) => `hsl(${((index * 137.508 + 208) % 360).toFixed(0)} ${dark.matches ? "32% 58%" : "42% 62%"})`;

  function sized(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  }

  // ---- timeline ----------------------------------------------------------------------------------------------------

  /** Position of the first value greater than `limit` in an ascending array. */
  function upper(values, limit) {
    let [low, high] = [0, values.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] > limit) high = middle; else low = middle + 1;
    }
    return low;
  }

  /** A row with what fast drawing needs: ends so far, busy time so far. */
  function prepare(row, jobs) {
    const n = row.start.length;
    const start = Float64Array.from(row.start);
    const [end, latest, busy] = [new Float64Array(n), new Float64Array(n), new Float64Array(n + 1)];
    const marked = [];
    let covered = 0;
    for (let at = 0; at < n; at += 1) {
      end[at] = start[at] + row.duration[at];
      busy[at + 1] = busy[at] + Math.max(0, end[at] - Math.max(start[at], covered));
      covered = Math.max(covered, end[at]);
      latest[at] = covered;
      if (jobs.flags[row.job[at]]) marked.push(at);
    }
    /** Busy time before `time`; exact, because everything started before it covers `[time, latest)` without a gap. */
    const busyUntil = (time) => {
      const at = upper(start, time);
      return at === 0 ? 0 : busy[at] - Math.max(0, latest[at - 1] - time);
    };
    return { name: row.name, gpu: row.gpu, job: row.job, bytes: row.bytes, n, start, end, latest, marked, busyUntil };
  }

  class Timeline {
    constructor(data) {
      this.data = data;
      this.canvas = byId("timeline");
      this.rows = data.rows.map((row) => prepare(row, data.jobs));
      this.span = Math.max(1, data.summary.span);
      [this.from, this.to] = [0, this.span];
      this.hover = null;
      this.selected = null;
      this.drawn = false;
      this.cycles = null;
      this.missed = data.streams.flatMap((stream, index) => {
        const deadline = data.summary.streams[index].deadline;
        return stream.response.flatMap((ns, at) => (ns > deadline ? [stream.start + stream.packet[at] * stream.period + ns] : []));
      }).sort((a, b) => a - b);
      this.layout();
      this.listen();
    }

    layout() {
      this.width = this.canvas.parentElement.clientWidth || 800;
      this.gutter = Math.min(190, Math.max(96, this.width * 0.13));
      let y = 34;
      if (this.missed.length) { this.missedAt = y; y += 20; }
      this.rows.forEach((row, at) => {
        if (at > 0 && row.gpu !== this.rows[at - 1].gpu) y += 12;
        row.y = y;
        y += 28;
      });
      this.rowHeight = 22;
      this.height = Math.max(80, y + 8);
      this.context = sized(this.canvas, this.width, this.height);
      this.colors = palette();
      this.tones = this.data.pipelines.map((_, index) => tone(index));
      this.redraw();
    }

    x(time) { return this.gutter + ((time - this.from) / (this.to - this.from)) * (this.width - this.gutter); }
    timeAt(x) { return this.from + ((x - this.gutter) / (this.width - this.gutter)) * (this.to - this.from); }

    redraw() {
      if (this.drawn) return;
      this.drawn = true;
      requestAnimationFrame(() => { this.drawn = false; this.draw(); });
    }

    draw() {
      const { context, colors } = this;
      context.clearRect(0, 0, this.width, this.height);
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      this.axis();
      for (const row of this.rows) this.row(row);
      this.marks();
      this.chain();
      context.fillStyle = colors.ground;
      context.fillRect(0, 0, this.gutter, this.height);
      context.textAlign = "left";
      for (const row of this.rows) {
        context.fillStyle = this.selected && this.selected.row === row ? colors.accent : colors.text;
        context.fillText(fitText(context, row.name, this.gutter - 12), 2, row.y + 11);
      }
      if (this.missed.length) {
        context.fillStyle = colors.bad;
        context.fillText("missed", 2, this.missedAt + 7);
      }
      const from = Math.max(0, this.from);
      byId("timeline-range").textContent = `${moment(from)} to ${moment(this.to)} (${time(this.to - this.from)})`;
    }

    axis() {
      const { context, colors } = this;
      const room = Math.max(2, Math.floor((this.width - this.gutter) / 110));
      const raw = (this.to - this.from) / room;
      const power = 10 ** Math.floor(Math.log10(raw));
      const step = Math.max(1, [1, 2, 5, 10].find((factor) => factor * power >= raw) * power);
      const [name, scale] = UNITS[this.to < 1e3 ? 0 : this.to < 1e6 ? 1 : this.to < 1e9 ? 2 : 3];
      const digits = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
      context.textAlign = "center";
      for (let tick = Math.ceil(this.from / step) * step; tick <= this.to; tick += step) {
        const x = this.x(tick);
        context.fillStyle = colors.line;
        context.fillRect(Math.round(x), 24, 1, this.height);
        context.fillStyle = colors.muted;
        const text = `${(tick / scale).toFixed(digits)} ${name}`;
        const half = context.measureText(text).width / 2;
        if (x - half > this.gutter && x + half < this.width) context.fillText(text, x, 13);
      }
    }

    row(row) {
      const { context, colors } = this;
      context.fillStyle = colors.faint;
      context.fillRect(this.gutter, row.y, this.width - this.gutter, this.rowHeight);
      const first = upper(row.latest, this.from);
      const last = upper(row.start, this.to);
      if (last - first > 1.5 * (this.width - this.gutter)) this.density(row, first, last);
      else for (let at = first; at < last; at += 1) this.operation(row, at);
    }

    /** More operations than pixels: per pixel, how much of its time the engine was busy. */
    density(row, first, last) {
      const { context, colors } = this;
      context.fillStyle = colors.busy;
      let before = row.busyUntil(this.timeAt(this.gutter));
      for (let x = Math.floor(this.gutter); x < this.width; x += 1) {
        const [from, to] = [this.timeAt(x), this.timeAt(x + 1)];
        const until = row.busyUntil(to);
        const share = Math.min(1, (until - before) / (to - from));
        before = until;
        if (share <= 0) continue;
        const tall = Math.max(1, share * this.rowHeight);
        context.fillRect(x, row.y + this.rowHeight - tall, 1, tall);
      }
      context.fillStyle = colors.bad;
      let drawn = -1;
      for (const at of row.marked) {
        const x = Math.floor(this.x(row.start[at]));
        if (at < first || at >= last || x === drawn) continue;
        drawn = x;
        context.fillRect(x, row.y, 1.5, 4);
      }
    }

    operation(row, at) {
      const { context, colors, data } = this;
      const job = row.job[at];
      const x = Math.max(this.gutter, this.x(row.start[at]));
      const wide = Math.min(this.width, this.x(row.end[at])) - x;
      context.fillStyle = this.tones[data.jobs.pipeline[job]];
      context.fillRect(x, row.y, Math.max(0.75, wide - (wide > 4 ? 0.75 : 0)), this.rowHeight);
      if (data.jobs.flags[job]) {
        context.fillStyle = colors.bad;
        context.fillRect(x, row.y, Math.max(1, wide - 0.75), 3);
      }
      if (wide > 44) {
        context.textAlign = "left";
        context.fillStyle = dark.matches ? "#101216" : "#14171b";
        const text = `${data.pipelines[data.jobs.pipeline[job]].name} #${data.jobs.cycle[job]}`;
        context.fillText(fitText(context, text, wide - 10), x + 5, row.y + 12);
      }
    }

    marks() {
      if (!this.missed.length) return;
      const { context, colors } = this;
      context.fillStyle = colors.bad;
      let drawn = -1;
      const last = upper(this.missed, this.to);
      for (let at = upper(this.missed, this.from - 1); at < last; at += 1) {
        const x = Math.round(this.x(this.missed[at]));
        if (x === drawn) continue;
        drawn = x;
        context.fillRect(x, this.missedAt, 1.5, 14);
      }
    }

    /** The way of one cycle through its engines: outlines joined by lines, and the wait in front of the operation. */
    chain() {
      const focus = this.hover || this.selected;
      if (!focus) return;
      const { context, colors, data } = this;
      const job = focus.row.job[focus.at];
      const key = `${data.jobs.pipeline[job]}/${data.jobs.cycle[job]}`;
      const steps = this.cycle(key);
      context.save();
      context.beginPath();
      context.rect(this.gutter, 0, this.width - this.gutter, this.height);
      context.clip();
      context.strokeStyle = colors.text;
      context.lineWidth = 1.25;
      let before = null;
      for (const { row, at } of steps) {
        const [x, end] = [this.x(row.start[at]), this.x(row.end[at])];
        if (end > this.gutter - 50 && x < this.width + 50) {
          context.strokeRect(x, row.y - 0.5, Math.max(1.5, end - x), this.rowHeight + 1);
        }
        const middle = row.y + this.rowHeight / 2;
        if (before && before.row !== row) {
          context.globalAlpha = 0.55;
          context.beginPath();
          context.moveTo(before.x, before.y);
          context.lineTo(x, middle);
          context.stroke();
          context.globalAlpha = 1;
        }
        before = { row, x: end, y: middle };
      }
      if (data.jobs.wait[job] > 0) {
        const ready = data.jobs.ready[job];
        context.fillStyle = colors.text;
        context.globalAlpha = 0.6;
        context.fillRect(this.x(ready), focus.row.y + this.rowHeight + 2, this.x(ready + data.jobs.wait[job]) - this.x(ready), 2);
      }
      context.restore();
    }

    cycle(key) {
      if (!this.cycles) {
        this.cycles = new Map();
        const { jobs } = this.data;
        for (const row of this.rows) {
          for (let at = 0; at < row.n; at += 1) {
            const key = `${jobs.pipeline[row.job[at]]}/${jobs.cycle[row.job[at]]}`;
            const list = this.cycles.get(key);
            if (list) list.push({ row, at }); else this.cycles.set(key, [{ row, at }]);
          }
        }
        for (const list of this.cycles.values()) list.sort((a, b) => a.row.start[a.at] - b.row.start[b.at]);
      }
      return this.cycles.get(key) || [];
    }

    // -- finding and telling

    find(x, y) {
      const row = this.rows.find((row) => y >= row.y - 2 && y < row.y + this.rowHeight + 4);
      if (!row || x < this.gutter || !row.n) return null;
      const when = this.timeAt(x);
      const slop = ((this.to - this.from) / (this.width - this.gutter)) * 3;
      const near = upper(row.start, when);
      let best = null;
      for (let at = Math.max(0, near - 4); at < Math.min(row.n, near + 2); at += 1) {
        const away = Math.max(row.start[at] - when, when - row.end[at], 0);
        if (away <= slop && (!best || away < best.away)) best = { row, at, away };
      }
      return best;
    }

    /** What is known of an operation: heading and lines, the last ones bad news. */
    tell({ row, at }) {
      const { jobs, pipelines } = this.data;
      const job = row.job[at];
      const of = (job) => `${pipelines[jobs.pipeline[job]].name} #${jobs.cycle[job]}`;
      const lines = [
        `${pipelines[jobs.pipeline[job]].steps[jobs.step[job]]} on ${row.name}, ${size(row.bytes[at])}`,
        `took ${time(row.end[at] - row.start[at])} from ${moment(row.start[at])} on`,
      ];
      if (jobs.wait[job] > 0) {
        const cause = jobs.cause[job];
        const most = jobs.by_cause[job] < jobs.wait[job] ? `, ${time(jobs.by_cause[job])} of it` : "";
        lines.push(`its job waited ${time(jobs.wait[job])}${cause >= 0 ? `${most} for ${of(cause)}` : " for the driver"}`);
      } else {
        lines.push("its job did not wait");
      }
      const bad = [];
      if (jobs.flags[job] & 1) bad.push("took longer than planned");
      if (jobs.flags[job] & 2) bad.push("ended after its window");
      return { head: of(job), lines, bad };
    }

    point(x, y) {
      const found = this.find(x, y);
      const same = found && this.hover && found.row === this.hover.row && found.at === this.hover.at;
      if (!same && (found || this.hover)) {
        this.hover = found;
        this.redraw();
      }
      const tip = byId("tooltip");
      tip.hidden = !found;
      if (!found) return;
      const { head, lines, bad } = this.tell(found);
      tip.replaceChildren(el("strong", null, head), ...lines.map((line) => el("div", null, line)), ...bad.map((line) => el("span", { class: "wrong" }, line)));
      tip.style.left = `${Math.max(0, Math.min(x + 14, this.width - tip.offsetWidth - 4))}px`;
      tip.style.top = `${y + 18}px`;
    }

    select(found) {
      this.selected = found;
      const text = byId("timeline-selected");
      if (found) {
        const { head, lines, bad } = this.tell(found);
        text.replaceChildren(el("strong", null, head), `: ${[...lines, ...bad].join("; ")}`);
        const [start, end] = [found.row.start[found.at], found.row.end[found.at]];
        if (end < this.from || start > this.to) {
          const half = (this.to - this.from) / 2;
          this.window((start + end) / 2 - half, (start + end) / 2 + half);
        }
      } else {
        text.textContent = "";
      }
      this.redraw();
    }

    // -- moving

    window(from, to) {
      const length = Math.min(this.span, Math.max(20, to - from));
      const start = Math.max(0, Math.min((from + to) / 2 - length / 2, this.span - length));
      [this.from, this.to] = [start, start + length];
      this.redraw();
    }

    zoom(factor, around = (this.from + this.to) / 2) {
      const length = Math.min(this.span, (this.to - this.from) * factor);
      const share = (around - this.from) / (this.to - this.from);
      const from = around - length * share;
      this.window(from, from + length);
    }

    pan(share) {
      const by = (this.to - this.from) * share;
      this.window(this.from + by, this.to + by);
    }

    /** Brings `[from, to]` into view with room around it. */
    show(from, to) {
      const room = Math.max(1000, (to - from) * 0.25);
      this.window(from - room, to + room);
      byId("timeline-title").scrollIntoView({ block: "start" });
    }

    /** Shows a job by its pipeline's position, cycle and step's name. */
    showJob(pipeline, cycle, step) {
      const { jobs, pipelines } = this.data;
      const found = this.cycle(`${pipeline}/${cycle}`).find(({ row, at }) => pipelines[pipeline].steps[jobs.step[row.job[at]]] === step);
      if (!found) return;
      const job = found.row.job[found.at];
      this.show(jobs.ready[job], found.row.end[found.at]);
      this.select(found);
    }

    step(by) {
      const current = this.selected;
      const row = current ? current.row : this.rows.find((row) => row.n);
      if (!row) return;
      const at = current ? current.at + by : upper(row.latest, this.from);
      if (at >= 0 && at < row.n) this.select({ row, at });
    }

    otherRow(by) {
      if (!this.selected) return this.step(0);
      const rows = this.rows.filter((row) => row.n);
      const row = rows[rows.indexOf(this.selected.row) + by];
      if (!row) return undefined;
      const at = Math.min(row.n - 1, upper(row.latest, this.selected.row.start[this.selected.at]));
      return this.select({ row, at });
    }

    listen() {
      const { canvas } = this;
      let drag = null;
      canvas.addEventListener("pointerdown", (event) => {
        if (event.button !== 0) return;
        drag = { x: event.offsetX, moved: false };
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        if (!drag) return this.point(event.offsetX, event.offsetY);
        const by = event.offsetX - drag.x;
        if (Math.abs(by) < 3 && !drag.moved) return undefined;
        drag = { x: event.offsetX, moved: true };
        canvas.classList.add("dragging");
        byId("tooltip").hidden = true;
        return this.pan(-by / (this.width - this.gutter));
      });
      const drop = (event) => {
        if (drag && !drag.moved && event.type === "pointerup") this.select(this.find(event.offsetX, event.offsetY));
        drag = null;
        canvas.classList.remove("dragging");
      };
      canvas.addEventListener("pointerup", drop);
      canvas.addEventListener("pointercancel", drop);
      canvas.addEventListener("pointerleave", () => this.point(-1, -1));
      canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && document.activeElement !== canvas) return;
        event.preventDefault();
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          this.pan((event.deltaX || event.deltaY) / (this.width - this.gutter));
        } else {
          this.zoom(1.0018 ** Math.max(-200, Math.min(200, event.deltaY)), this.timeAt(Math.max(this.gutter, event.offsetX)));
        }
      }, { passive: false });
      canvas.addEventListener("keydown", (event) => this.key(event));
      byId("zoom-in").addEventListener("click", () => this.zoom(0.5));
      byId("zoom-out").addEventListener("click", () => this.zoom(2));
      byId("zoom-all").addEventListener("click", () => this.window(0, this.span));
      new ResizeObserver(() => { if (this.canvas.parentElement.clientWidth !== this.width) this.layout(); }).observe(canvas.parentElement);
      dark.addEventListener("change", () => this.layout());
    }

    key(event) {
      const keys = {
        "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.window(0, this.span),
        ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15), ArrowUp: () => this.otherRow(-1), ArrowDown: () => this.otherRow(1),
        n: () => this.step(1), p: () => this.step(-1), Escape: () => this.select(null),
      };
      const action = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    }
  }

  function fitText(context, text, width) {
    if (context.measureText(text).width <= width) return text;
    let [low, high] = [0, text.length];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle; else high = middle - 1;
    }
    return low < 2 ? "" : `${text.slice(0, low)}…`;
  }

  // ---- the other tables --------------------------------------------------------------------------------------------

  function use(summary) {
    sortable(byId("engines"), "Engines", [
      { label: "engine", value: (e) => e.name, cell: (e) => e.name },
      { label: "operations", num: true, value: (e) => e.operations, cell: (e) => number(e.operations) },
      { label: "data", num: true, value: (e) => e.bytes, cell: (e) => size(e.bytes) },
      { label: "busy", num: true, value: (e) => e.utilisation_ppm, cell: (e) => [bar(e.utilisation_ppm / 1e6), percent(e.utilisation_ppm)] },
    ], summary.engines);
    sortable(byId("capacities"), "Links and limits", [
      { label: "link or limit", value: (c) => c.name, cell: (c) => c.name },
      { label: "rate", num: true, value: (c) => c.rate, cell: (c) => rate(c.rate) },
      { label: "data", num: true, value: (c) => c.bytes, cell: (c) => size(c.bytes) },
      { label: "used", num: true, value: (c) => c.utilisation_ppm, cell: (c) => [bar(c.utilisation_ppm / 1e6), percent(c.utilisation_ppm)] },
    ], summary.capacities);
  }

  function steps(summary) {
    const unit = unitFor(summary.steps.flatMap((s) => [s.cost, s.took_max]));
    const share = (s) => (s.cost ? s.took_max / s.cost : 0);
    const over = summary.steps.filter((s) => s.overruns || s.late).length;
    byId("steps-lead").textContent = over
      ? `${count(over)} of ${count(summary.steps.length)} steps exceeded their planned worst case or ended after their windows.`
      : "No job took longer than its planned worst case, and none ended after its window.";
    sortable(byId("steps"), "Steps", [
      { label: "pipeline", value: (s) => s.pipeline, cell: (s) => s.pipeline },
      { label: "step", value: (s) => s.step, cell: (s) => s.step },
      { label: "server", value: (s) => s.server, cell: (s) => s.server },
      { label: "jobs", num: true, value: (s) => s.jobs, cell: (s) => number(s.jobs) },
      { label: `planned ${unit.name}`, num: true, value: (s) => s.cost, cell: (s) => unit.text(s.cost) },
      { label: `longest ${unit.name}`, num: true, value: (s) => s.took_max, cell: (s) => unit.text(s.took_max) },
      { label: "of planned", num: true, value: share, cell: (s) => [bar(share(s)), percent(share(s) * 1e6)] },
      { label: "overruns", num: true, value: (s) => s.overruns, cell: (s) => badNumber(s.overruns) },
      { label: "late", num: true, value: (s) => s.late, cell: (s) => badNumber(s.late) },
    ], summary.steps);
  }

  // ---- waits -------------------------------------------------------------------------------------------------------

  const SENTENCES = 10;
  const MATRIX = 12;

  function blame(data, view) {
    const { summary } = data;
    const total = summary.totals.wait;
    byId("blame-lead").textContent = total
      ? `All jobs together waited ${time(total)} in front of their servers. The longest waits of one job for one other:`
      : "No job waited in front of its server.";
    const longest = [...summary.blame].sort((a, b) => b.longest.wait - a.longest.wait).slice(0, SENTENCES);
    byId("waits").replaceChildren(...longest.map((pair) => {
      const { wait, server, job, cause } = pair.longest;
      const show = () => view.showJob(pair.waiting, job.cycle, job.step);
      return el("li", null, el("b", null, time(wait)),
        el("button", { type: "button", class: "link", onclick: show }, `${job.pipeline} #${job.cycle}`),
        cause ? ` waited for ${cause.pipeline} #${cause.cycle} (${cause.step}) at ${server}` : ` waited at ${server}, which was free: the driver was slow`);
    }));
    if (summary.blame.length) matrix(summary);
  }

  function matrix(summary) {
    const weight = new Map();
    const add = (name, ns) => weight.set(name, (weight.get(name) || 0) + ns);
    const label = (pair) => (pair.cause === null ? -1 : pair.cause);
    const names = new Map([[-1, "the driver"]]);
    for (const pair of summary.blame) {
      add(pair.waiting, pair.total);
      add(label(pair), pair.total);
      names.set(pair.waiting, pair.waiting_name);
      if (pair.cause !== null) names.set(pair.cause, pair.cause_name);
    }
    const ranked = [...weight.keys()].sort((a, b) => weight.get(b) - weight.get(a) || a - b);
    const shown = ranked.slice(0, MATRIX).sort((a, b) => a - b);
    const rest = ranked.length > MATRIX ? "rest" : null;
    if (rest) { shown.push(rest); names.set(rest, `${ranked.length - MATRIX} others`); }
    const place = (key) => (shown.includes(key) ? key : rest);
    const cells = new Map();
    let most = 1;
    for (const pair of summary.blame) {
      const key = `${place(pair.waiting)}/${place(label(pair))}`;
      cells.set(key, (cells.get(key) || 0) + pair.total);
      if (!key.includes("rest")) most = Math.max(most, cells.get(key));
    }
    const unit = unitFor([...cells.values()]);
    const waiting = shown.filter((key) => key !== -1);
    const cell = (row, column) => {
      const ns = cells.get(`${row}/${column}`) || 0;
      if (!ns) return el("td", { class: "none" }, "·");
      const td = el("td", { title: `${names.get(row)} waited ${time(ns)} for ${names.get(column)}` }, unit.text(ns));
      const share = Math.round(Math.min(1, ns / most) * 70);
      td.style.background = `color-mix(in srgb, var(--busy) ${share}%, transparent)`;
      return td;
    };
    byId("matrix").replaceChildren(el("table", { class: "matrix" },
      el("caption", null, `Total time in ${unit.name} that the row's jobs waited for the column's${rest ? "; the pipelines with the longest waits by name" : ""}.`),
      el("thead", null, el("tr", null, el("th", { scope: "col" }, "waited \u2193 for \u2192"), shown.map((key) => el("th", { scope: "col", title: names.get(key) }, names.get(key))))),
      el("tbody", null, waiting.map((row) => el("tr", null, el("th", { scope: "row", title: names.get(row) }, names.get(row)), shown.map((column) => cell(row, column)))))));
  }

  // ---- all together ------------------------------------------------------------------------------------------------

  function jumps(data, view) {
    const { summary } = data;
    const waits = summary.servers.filter((server) => server.longest);
    const longest = waits.reduce((best, server) => (!best || server.longest.wait > best.longest.wait ? server : best), null);
    const wait = byId("zoom-wait");
    wait.hidden = !longest;
    wait.addEventListener("click", () => {
      const { job } = longest.longest;
      view.showJob(data.pipelines.findIndex((pipeline) => pipeline.name === job.pipeline), job.cycle, job.step);
    });
    const tight = leastSlack(summary);
    const worst = byId("zoom-worst");
    worst.hidden = !tight;
    worst.addEventListener("click", () => {
      const raw = data.streams[summary.streams.indexOf(tight)];
      let at = 0;
      raw.response.forEach((ns, index) => { if (ns > raw.response[at]) at = index; });
      const arrival = raw.start + raw.packet[at] * raw.period;
      view.show(arrival, arrival + raw.response[at]);
    });
  }

  try {
    const data = JSON.parse(byId("headway-data").textContent);
    head(data.summary);
    const view = new Timeline(data);
    streams(data, view);
    use(data.summary);
    blame(data, view);
    steps(data.summary);
    jumps(data, view);
    view.draw();
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    document.documentElement.dataset.ready = "error";
    byId("error").hidden = false;
    byId("error").textContent = `This page could not be drawn: ${error}`;
  }
})();
