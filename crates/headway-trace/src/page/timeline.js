  // ---- rows --------------------------------------------------------------------------------------------------------

  /** Position of the first value greater than `limit` in an ascending array. */
  function upper(values, limit) {
    let [low, high] = [0, values.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] > limit) high = middle; else low = middle + 1;
    }
    return low;
  }

  /** What a row keeps as one: [operations, time busy, time waiting, how many are red], or null. */
  function blocksOf(raw) {
    let next = 0;
    return raw.job.map((job) => (job < 0 ? raw.blocks[next++] : null));
  }

  /**
   * The operations of `raw` that `pick` takes, with what fast drawing needs: ends so far, time busy and waiting so far.
   * `waits(kind)` says what counts as waiting.
   */
  function prepare(raw, blocks, waits, flagged, pick) {
    const places = [];
    for (let at = 0; at < raw.start.length; at += 1) if (pick(raw.job[at])) places.push(at);
    const n = places.length;
    const row = {
      n, start: new Float64Array(n), end: new Float64Array(n), latest: new Float64Array(n), job: new Int32Array(n), kind: new Uint8Array(n),
      bytes: places.map((at) => raw.bytes[at]), block: places.map((at) => blocks[at]), marked: [],
    };
    const [busy, waiting, dense, denseWait] = [new Float64Array(n + 1), new Float64Array(n + 1), new Float64Array(n), new Float64Array(n)];
    let [covered, share, waitShare] = [0, 1, 0];
    places.forEach((from, at) => {
      const [start, end, block] = [raw.start[from], raw.start[from] + raw.duration[from], blocks[from]];
      [row.start[at], row.end[at], row.job[at]] = [start, end, raw.job[from]];
      row.kind[at] = raw.kind ? raw.kind[from] : 0;
      const fresh = Math.max(0, end - Math.max(start, covered));
      const isWait = waits(row.kind[at]);
      busy[at + 1] = busy[at] + (block ? block[1] : fresh);
      waiting[at + 1] = waiting[at] + (block ? block[2] : isWait ? fresh : 0);
      if (end > covered) {
        covered = end;
        const length = Math.max(1, end - start);
        share = block ? block[1] / length : 1;
        waitShare = block ? block[2] / length : isWait ? 1 : 0;
      }
      [row.latest[at], dense[at], denseWait[at]] = [covered, share, waitShare];
      if (block ? block[3] : flagged(row.job[at])) row.marked.push(at);
    });
    // What began before `time` covers `[time, latest)`, all of it or, if it is a block, as much as the block is busy.
    const until = (sums, shares) => (when) => {
      const at = upper(row.start, when);
      return at === 0 ? 0 : sums[at] - Math.max(0, row.latest[at - 1] - when) * shares[at - 1];
    };
    row.busyUntil = until(busy, dense);
    row.waitingUntil = until(waiting, denseWait);
    return row;
  }

  /** `text` in lines of at most `width`, broken behind what separates parts of a name where that is possible. */
  function wrapText(context, text, width) {
    const lines = [];
    let rest = text;
    while (rest && context.measureText(rest).width > width) {
      let [low, high] = [1, rest.length];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (context.measureText(rest.slice(0, middle)).width <= width) low = middle; else high = middle - 1;
      }
      const broken = rest.slice(0, low).search(/[\s\-_./:][^\s\-_./:]*$/);
      const cut = broken > low / 3 ? broken + 1 : low;
      lines.push(rest.slice(0, cut));
      rest = rest.slice(cut);
    }
    return [...lines, rest];
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

  // ---- timeline ----------------------------------------------------------------------------------------------------

  const AXIS = 28;
  const PAPER = 15000;

  /**
   * Rows over time. The spec says what is drawn: {rows, span, kept, missed, owners: names, owner(job), group(job), label(job),
   * color(view, row, at), waits(kind), thin(kind), flagged(job), wait(job), tell(row, at), overlay(view, row)}.
   */
  class Timeline {
    constructor(spec) {
      this.spec = spec;
      this.canvas = byId("timeline");
      this.box = byId("timeline-box");
      this.wrap = byId("timeline-wrap");
      this.span = Math.max(1, spec.span);
      this.all = spec.rows.map((raw, index) => {
        const blocks = blocksOf(raw);
        const row = prepare(raw, blocks, spec.waits, spec.flagged, () => true);
        const owners = new Set(row.n ? Array.from(row.job, (job) => (job < 0 ? -1 : spec.owner(job))) : []);
        return Object.assign(row, { raw, blocks, index, name: raw.name, group: raw.group, owners, lit: null, named: false });
      });
      this.idle = this.all.filter((row) => !row.n && row.group !== undefined).length;
      this.rows = this.all;
      this.lights = null;
      [this.from, this.to] = [0, this.span];
      this.hover = null;
      this.selected = null;
      this.drawn = false;
      this.chains = null;
      searchables.push({ apply: (match) => this.filter(match), found: () => [this.rows.length, this.all.length, "rows"] });
      this.filter(search);
      this.window(0, this.span);
      this.listen();
    }

    /** Shows the rows that are called so or have operations of somebody called so, and dims the operations of others. */
    filter(match) {
      const { owners, owner, waits, flagged } = this.spec;
      this.lights = match.words.length ? owners.map((name) => match.of(name)) : null;
      const has = (row) => this.lights && [...row.owners].some((at) => at >= 0 && this.lights[at]);
      this.rows = this.all.filter((row) => {
        row.named = match.words.length > 0 && match.of(row.name);
        const light = !row.named && has(row);
        row.lit = light ? prepare(row.raw, row.blocks, waits, flagged, (job) => job >= 0 && this.lights[owner(job)]) : null;
        return match.words.length ? row.named || light : row.n > 0 || !match.hideIdle;
      });
      if (this.hover && !this.rows.includes(this.hover.row)) this.hover = null;
      if (this.selected && !this.rows.includes(this.selected.row)) this.select(null);
      this.layout();
    }

    layout() {
      this.width = this.wrap.clientWidth || 800;
      this.narrow = this.width < 640;
      const context = this.canvas.getContext("2d");
      context.font = "12px system-ui, sans-serif";
      const longest = this.rows.reduce((most, row) => Math.max(most, context.measureText(row.name).width), 0);
      this.gutter = this.narrow ? 0 : Math.min(this.width * 0.27, Math.max(84, longest + 18));
      this.bar = this.narrow ? 20 : 22;
      this.head = AXIS + (this.spec.missed.length ? (this.narrow ? 34 : 20) : 0) + 4;
      let y = 2;
      let before;
      for (const row of this.rows) {
        if (before !== undefined && row.group !== before) y += 12;
        before = row.group;
        row.lines = wrapText(context, row.name, (this.narrow ? this.width : this.gutter) - 14);
        const label = row.lines.length * 14;
        row.y = y;
        row.bar = this.narrow ? y + label + 3 : y + Math.max(0, (label - this.bar) / 2);
        row.bottom = row.bar + Math.max(this.bar, this.narrow ? 0 : label - (row.bar - y));
        y = row.bottom + 6;
      }
      const paper = document.documentElement.classList.contains("paper");
      const full = this.head + Math.max(40, y);
      this.height = Math.round(Math.min(full, paper ? PAPER : Math.max(300, window.innerHeight * 0.85)));
      byId("timeline-all").style.height = `${full}px`;
      this.box.style.height = `${this.height + 2}px`;
      this.context = sized(this.canvas, this.width, this.height);
      this.colors = palette();
      if (paper) this.draw(); else this.redraw();
    }

    x(when) { return this.gutter + ((when - this.from) / (this.to - this.from)) * (this.width - this.gutter); }
    timeAt(x) { return this.from + ((x - this.gutter) / (this.width - this.gutter)) * (this.to - this.from); }
    /** Where a row's bar is on the canvas. */
    y(row) { return this.head + row.bar - this.box.scrollTop; }

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
      context.save();
      context.beginPath();
      context.rect(0, this.head, this.width, this.height);
      context.clip();
      const inside = (row) => this.y(row) + this.bar > this.head - 60 && this.y(row) < this.height + 60;
      const rows = this.rows.filter(inside);
      for (const row of rows) this.row(row);
      this.chain();
      this.labels(rows);
      context.restore();
      this.marks();
      if (!this.rows.length) {
        context.fillStyle = colors.muted;
        context.textAlign = "left";
        context.fillText("No row to show.", this.gutter + 8, this.head + 18);
      }
    }

    labels(rows) {
      const { context, colors } = this;
      if (!this.narrow) {
        context.fillStyle = colors.ground;
        context.fillRect(0, 0, this.gutter, this.height);
      }
      context.textAlign = "left";
      for (const row of rows) {
        context.fillStyle = this.selected && this.selected.row === row ? colors.accent : row.n ? colors.text : colors.muted;
        const top = this.narrow ? this.head + row.y - this.box.scrollTop : this.y(row) + (this.bar - row.lines.length * 14) / 2;
        row.lines.forEach((line, at) => context.fillText(line, 2, top + at * 14 + 7));
      }
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
        context.fillText(text, Math.max(this.gutter + half, Math.min(this.width - half, x)), 12);
      }
      // Where everything is kept one by one.
      context.fillStyle = colors.accent;
      for (const [from, to] of this.spec.kept.windows) {
        if (to < this.from || from > this.to) continue;
        const x = Math.max(this.gutter, this.x(from));
        context.fillRect(x, 23, Math.max(2, Math.min(this.width, this.x(to)) - x), 3);
      }
    }

    row(row) {
      const { context, colors } = this;
      context.fillStyle = colors.faint;
      context.fillRect(this.gutter, this.y(row), this.width - this.gutter, this.bar);
      const dim = row.lit !== null;
      if (dim) context.globalAlpha = 0.22;
      this.operations(row, row);
      context.globalAlpha = 1;
      if (dim) this.operations(row, row.lit);
      if (this.spec.overlay) this.spec.overlay(this, row);
    }

    operations(row, drawn) {
      const first = upper(drawn.latest, this.from);
      const last = upper(drawn.start, this.to);
      if (last - first > 1.5 * (this.width - this.gutter)) this.density(row, drawn, first, last);
      else for (let at = first; at < last; at += 1) this.operation(row, drawn, at);
    }

    /** More operations than pixels: per pixel, for how much of its time the row was busy, and waited. */
    density(row, drawn, first, last) {
      const { context, colors } = this;
      const [y, bar] = [this.y(row), this.bar];
      let before = drawn.busyUntil(this.timeAt(this.gutter));
      let waited = drawn.waitingUntil(this.timeAt(this.gutter));
      for (let x = Math.floor(this.gutter); x < this.width; x += 1) {
        const [from, to] = [this.timeAt(x), this.timeAt(x + 1)];
        const [until, waiting] = [drawn.busyUntil(to), drawn.waitingUntil(to)];
        const share = Math.min(1, (until - before) / (to - from));
        const shareWait = Math.min(share, (waiting - waited) / (to - from));
        [before, waited] = [until, waiting];
        if (share <= 0) continue;
        const tall = Math.max(1, share * bar);
        context.fillStyle = colors.busy;
        context.fillRect(x, y + bar - tall, 1, tall);
        if (shareWait > 0) {
          context.fillStyle = this.spec.waitColor;
          context.fillRect(x, y + bar - tall, 1, Math.max(1, shareWait * bar));
        }
      }
      context.fillStyle = colors.bad;
      let drawnAt = -1;
      for (const at of drawn.marked) {
        const x = Math.floor(this.x(drawn.start[at]));
        if (at < first || at >= last || x === drawnAt) continue;
        drawnAt = x;
        context.fillRect(x, y, 1.5, 4);
      }
    }

    operation(row, drawn, at) {
      const { context, colors, spec } = this;
      const block = drawn.block[at];
      const x = Math.max(this.gutter, this.x(drawn.start[at]));
      const wide = Math.min(this.width, this.x(drawn.end[at])) - x;
      const least = Math.max(0.75, wide - (wide > 4 ? 0.75 : 0));
      let [y, tall] = [this.y(row), this.bar];
      if (block) {
        const length = Math.max(1, drawn.end[at] - drawn.start[at]);
        const part = (ns) => Math.max(ns > 0 ? 1 : 0, Math.min(1, ns / length) * this.bar);
        context.fillStyle = colors.busy;
        context.fillRect(x, y + this.bar - part(block[1]), least, part(block[1]));
        context.fillStyle = spec.waitColor;
        context.fillRect(x, y + this.bar - part(block[1]), least, part(block[2]));
      } else {
        if (spec.thin(drawn.kind[at])) [y, tall] = [y + this.bar * 0.32, this.bar * 0.36];
        context.fillStyle = spec.color(drawn.job[at], drawn.kind[at], row);
        context.fillRect(x, y, least, tall);
      }
      if (block ? block[3] : spec.flagged(drawn.job[at])) {
        context.fillStyle = colors.bad;
        context.fillRect(x, this.y(row), Math.max(1, wide - 0.75), 3);
      }
      if (wide > 44 && tall > 14) {
        context.textAlign = "left";
        context.fillStyle = block ? colors.text : dark() ? "#101216" : "#14171b";
        const text = block ? `${count(block[0])} operations` : spec.label(drawn.job[at], drawn.kind[at], row);
        context.fillText(fitText(context, text, wide - 10), x + 5, y + this.bar / 2 + 1);
      }
    }

    marks() {
      const { missed } = this.spec;
      if (!missed.length) return;
      const { context, colors } = this;
      context.fillStyle = colors.bad;
      context.textAlign = "left";
      const y = AXIS + (this.narrow ? 14 : 0);
      context.fillText(this.spec.missedWord || "missed", 2, this.narrow ? AXIS + 6 : y + 7);
      let drawn = -1;
      const last = upper(missed, this.to);
      for (let at = upper(missed, this.from - 1); at < last; at += 1) {
        const x = Math.round(this.x(missed[at]));
        if (x === drawn) continue;
        drawn = x;
        context.fillRect(x, y, 1.5, 14);
      }
    }

    /** What belongs to one job, outlined and joined by lines, and its wait in front of the operation. */
    chain() {
      const focus = this.hover || this.selected;
      if (!focus || focus.row.job[focus.at] < 0) return;
      const { context, colors, spec } = this;
      const job = focus.row.job[focus.at];
      context.save();
      context.beginPath();
      context.rect(this.gutter, 0, this.width - this.gutter, this.height);
      context.clip();
      context.strokeStyle = colors.text;
      context.lineWidth = 1.25;
      let before = null;
      for (const { row, at } of this.together(spec.group(job))) {
        if (!this.rows.includes(row)) continue;
        const [x, end, y] = [this.x(row.start[at]), this.x(row.end[at]), this.y(row)];
        if (end > this.gutter - 50 && x < this.width + 50) context.strokeRect(x, y - 0.5, Math.max(1.5, end - x), this.bar + 1);
        const middle = y + this.bar / 2;
        if (before && before.row !== row && spec.joined) {
          context.globalAlpha = 0.55;
          context.beginPath();
          context.moveTo(before.x, before.y);
          context.lineTo(x, middle);
          context.stroke();
          context.globalAlpha = 1;
        }
        before = { row, x: end, y: middle };
      }
      const wait = spec.wait(job);
      if (wait) {
        context.fillStyle = colors.text;
        context.globalAlpha = 0.6;
        context.fillRect(this.x(wait[0]), this.y(focus.row) + this.bar + 2, this.x(wait[1]) - this.x(wait[0]), 2);
      }
      context.restore();
    }

    /** The operations of a group, in the order of their start. */
    together(group) {
      if (!this.chains) {
        this.chains = new Map();
        for (const row of this.all) {
          for (let at = 0; at < row.n; at += 1) {
            if (row.job[at] < 0) continue;
            const key = this.spec.group(row.job[at]);
            const list = this.chains.get(key);
            if (list) list.push({ row, at }); else this.chains.set(key, [{ row, at }]);
          }
        }
        for (const list of this.chains.values()) list.sort((a, b) => a.row.start[a.at] - b.row.start[b.at]);
      }
      return this.chains.get(group) || [];
    }

    // -- finding and telling

    find(x, y) {
      if (y < this.head || x < this.gutter) return null;
      const row = this.rows.find((row) => y >= this.y(row) - 3 && y < this.y(row) + this.bar + 4);
      if (!row || !row.n) return null;
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
      const block = row.block[at];
      if (!block) return this.spec.tell(row, at);
      const length = Math.max(1, row.end[at] - row.start[at]);
      const waited = block[2] ? `, of which ${percent((block[2] / length) * 1e6)} waiting` : "";
      return {
        head: `${count(block[0])} operations on ${row.name}`,
        lines: [
          `from ${moment(row.start[at])} to ${moment(row.end[at])}`,
          `at work for ${percent(Math.min(1, block[1] / length) * 1e6)} of this time${waited}`,
          "the page keeps them as one",
        ],
        bad: block[3] ? [`${count(block[3])} of them marked red`] : [],
      };
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
      tip.style.left = `${Math.max(0, Math.min(x + 14, this.width - tip.offsetWidth - 2))}px`;
      const below = this.wrap.getBoundingClientRect().top + y + 18 + tip.offsetHeight < window.innerHeight;
      tip.style.top = `${below ? y + 18 : y - tip.offsetHeight - 12}px`;
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
        const y = this.y(found.row);
        if (y < this.head) this.box.scrollTop += y - this.head - 6;
        else if (y + this.bar > this.height) this.box.scrollTop += y + this.bar - this.height + 6;
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
      byId("timeline-range").textContent = `${moment(this.from)} to ${moment(this.to)} (${time(length)})`;
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
      byId("timeline-section").scrollIntoView({ block: "start" });
    }

    /** Shows the operation of a group that `wanted` takes; the time where it is not kept. */
    showOne(group, wanted, from, to) {
      const found = this.together(group).find(wanted);
      if (found && !this.rows.includes(found.row)) {
        byId("search").value = "";
        applySearch();
      }
      this.show(from, found ? Math.max(to, found.row.end[found.at]) : to);
      this.select(found || null);
    }

    step(by) {
      const current = this.selected;
      const row = current ? current.row : this.rows.find((row) => row.n);
      if (!row) return;
      const at = current ? current.at + by : Math.min(row.n - 1, upper(row.latest, this.from));
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
      this.pointers();
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
      this.box.addEventListener("scroll", () => { this.point(-1, -1); this.redraw(); });
      const on = (id, action) => byId(id).addEventListener("click", action);
      on("zoom-in", () => this.zoom(0.5));
      on("zoom-out", () => this.zoom(2));
      on("pan-left", () => this.pan(-0.4));
      on("pan-right", () => this.pan(0.4));
      on("zoom-all", () => this.window(0, this.span));
      new ResizeObserver(() => { if (this.wrap.clientWidth !== this.width) this.layout(); }).observe(this.wrap);
      scheme.addEventListener("change", () => this.repaint());
      const paper = (on) => () => { document.documentElement.classList.toggle("paper", on); this.repaint(); };
      window.addEventListener("beforeprint", paper(true));
      window.addEventListener("afterprint", paper(false));
    }

    /** Everything on canvases again, in the colours of now. */
    repaint() {
      this.layout();
      for (const canvas of document.querySelectorAll(".card canvas")) canvas.dispatchEvent(new Event("paint"));
    }

    /** One pointer drags, two zoom around what is under them. */
    pointers() {
      const { canvas } = this;
      const down = new Map();
      let moved = false;
      let grip = null;
      const hold = () => {
        const xs = [...down.values()];
        grip = xs.length === 2 ? xs.map((x) => this.timeAt(x)) : null;
      };
      canvas.addEventListener("pointerdown", (event) => {
        if (event.button !== 0) return;
        if (!down.size) moved = false;
        down.set(event.pointerId, event.offsetX);
        canvas.setPointerCapture(event.pointerId);
        hold();
      });
      canvas.addEventListener("pointermove", (event) => {
        if (!down.has(event.pointerId)) {
          if (event.pointerType !== "touch") this.point(event.offsetX, event.offsetY);
          return;
        }
        const by = event.offsetX - down.get(event.pointerId);
        if (Math.abs(by) < 3 && !moved) return;
        moved = true;
        down.set(event.pointerId, event.offsetX);
        canvas.classList.add("dragging");
        byId("tooltip").hidden = true;
        const inside = this.width - this.gutter;
        if (!grip) {
          this.pan(-by / inside);
          return;
        }
        const [a, b] = [...down.values()].map((x) => (x - this.gutter) / inside);
        if (Math.abs(b - a) < 0.02) return;
        const length = (grip[1] - grip[0]) / (b - a);
        if (length > 0) this.window(grip[0] - a * length, grip[0] + (1 - a) * length);
      });
      const drop = (event) => {
        if (down.has(event.pointerId) && !moved && event.type === "pointerup") {
          this.select(this.find(event.offsetX, event.offsetY));
        }
        down.delete(event.pointerId);
        hold();
        canvas.classList.toggle("dragging", down.size > 0 && moved);
      };
      canvas.addEventListener("pointerup", drop);
      canvas.addEventListener("pointercancel", drop);
      canvas.addEventListener("pointerleave", () => this.point(-1, -1));
    }

    key(event) {
      const keys = {
        "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.window(0, this.span),
        ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15), ArrowUp: () => this.otherRow(-1), ArrowDown: () => this.otherRow(1),
        Home: () => this.pan(-this.span), End: () => this.window(this.span - (this.to - this.from), this.span),
        PageUp: () => { this.box.scrollTop -= this.height * 0.8; }, PageDown: () => { this.box.scrollTop += this.height * 0.8; },
        n: () => this.step(1), p: () => this.step(-1), Escape: () => this.select(null),
      };
      const action = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    }
  }

  /** What the page keeps of a long run, in words. */
  function tellKept(kept) {
    const box = byId("timeline-kept");
    box.hidden = kept.block === 0;
    if (kept.block === 0) return;
    const first = kept.windows.length ? kept.windows[0][1] : 0;
    const others = kept.windows.length - 1;
    box.textContent = `So that this page stays small it keeps ${count(kept.singly)} of ${count(kept.operations)} operations one by one: `
      + `the first ${time(first)}${others > 0 ? `, and ${count(others)} ${others === 1 ? "stretch" : "stretches"} around what was late, took longest or waited longest (blue under the axis)` : ""}. `
      + `The others are merged into blocks of ${time(kept.block)}; the event log has each.`;
  }
