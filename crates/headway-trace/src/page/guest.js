  // ---- logs of guests ----------------------------------------------------------------------------------------------

  /** How copies were made, by their number in the data: label and colour; the last is no call, but what a queued copy is taken to do. */
  const MADE = [
    ["fast, by several threads", "#009e73"], ["from or to memory that is kept page-locked", "#0072b2"], ["aside, by a kernel", "#56b4e9"],
    ["in chunks", "#e69f00"], ["passed on to the driver", "#7f7f7f"],
    ["bulk, assumed under way", "#cc79a7"],
  ];
  const UNDER_WAY = MADE.length - 1;
  const TOWARDS = { in: "into a GPU", out: "out of a GPU", unknown: "by addresses" };
  const HOSTS = { ordinary: "ordinary memory", "page-locked": "page-locked memory", "known-to-driver": "memory that the driver knows", "not-asked": null };
  const PROBLEMS = {
    ordinary: "large copies of ordinary memory", tiny: "many tiny copies", blocking: "small results waited for again and again",
    repeated: "the same ordinary memory again and again",
  };

  function guestFacts(data) {
    const { summary } = data;
    const { beside } = summary;
    const ours = summary.groups.filter((group) => group.became !== "passed-on");
    const made = (key) => ours.reduce((sum, group) => sum + group[key], 0);
    const longest = summary.groups.reduce((most, group) => (!most || group.longest > most.longest ? group : most), null);
    return [
      ["Copies", count(summary.copies), size(summary.bytes)],
      ["Time in calls", time(summary.blocked), "of all threads together"],
      ["Made by Headway", percent(summary.bytes ? (made("bytes") / summary.bytes) * 1e6 : 0), `of the bytes, in ${count(made("copies"))} copies`],
      longest ? ["Longest call", time(longest.longest), `${longest.call}, ${longest.size}`] : ["Longest call", "none", ""],
      beside.waited === null
        ? ["Waited beside bulk copies", beside.with.copies ? "not known" : "none", beside.with.copies ? "too few copies without one" : "no small copy out of a GPU was beside one"]
        : ["Waited beside bulk copies", time(beside.waited), `${count(beside.with.copies)} small copies out of a GPU`],
    ];
  }

  /** A row for each thread, stream and direction, and one for the bulk copies of each stream. */
  function guestSpec(data) {
    const { copies, rows } = data;
    const owners = [...new Set(copies.stream)];
    const places = new Map(owners.map((name, at) => [name, at]));
    const calls = (job) => `${copies.call[job]} of ${size(copies.bytes[job])}`;
    const tell = (row, at) => {
      const job = row.job[at];
      if (row.kind[at] === UNDER_WAY) {
        return {
          head: `${size(copies.bytes[job])} out of a GPU on stream ${copies.stream[job]}`,
          lines: [
            `called at ${moment(copies.at[job])}, taken to be under way from ${moment(row.start[at])} to ${moment(row.end[at])}`,
            "the log cannot say when a queued copy ended",
          ],
          bad: [],
        };
      }
      const lines = [
        `${time(copies.took[job])} in the call from ${moment(copies.at[job])} on, ${TOWARDS[copies.direction[job]]}`,
        `thread ${copies.thread[job]}, stream ${copies.stream[job]}${HOSTS[copies.host[job]] ? `, ${HOSTS[copies.host[job]]}` : ""}`,
        `${copies.became[job]}${copies.why[job] ? `: ${copies.why[job]}` : ""}`,
      ];
      if (copies.of[job] > 1) lines.push(`one of ${count(copies.of[job])} like it that has a line`);
      const beside = copies.beside[job];
      if (beside) lines.push(`made while ${size(beside[1])} of stream ${beside[0]} were taken to be under way, called at ${moment(beside[2])}`);
      const bad = copies.status[job] ? [`the call returned ${copies.status[job]}`] : copies.marked[job] ? ["took more than twice the median without a bulk copy"] : [];
      return { head: calls(job), lines, bad };
    };
    return {
      rows, span: data.span, kept: data.kept, missed: data.missed, missedWord: "marked red", owners: owners.map((name) => `stream ${name}`),
      owner: (job) => places.get(copies.stream[job]),
      group: (job) => job,
      joined: true,
      label: (job) => calls(job),
      color: (job, kind) => MADE[kind][1],
      waits: () => false,
      thin: (kind) => kind === UNDER_WAY,
      waitColor: MADE[4][1],
      flagged: (job) => job >= 0 && copies.marked[job],
      wait: () => null,
      tell,
    };
  }

  function guestTables(data, view) {
    const { summary } = data;
    byId("streams-title").textContent = "Copies by call, size and maker";
    byId("streams-lead").textContent = "Times are those in the call, by the host's clock; of calls that wait they are the whole copy. "
      + "A 99th percentile stands where a hundred copies and more were made. Red: slower than the driver's copies by the same call and of the same size.";
    byId("stream").hidden = true;
    byId("streams").parentElement.className = "";
    const or = (value) => (value === null ? "–" : time(value));
    const timed = (label, key) => ({ label, num: true, value: (g) => g[key] ?? -1, cell: (g) => or(g[key]) });
    const isSlower = (g) => g.median !== null && g.drivers_median !== undefined && g.median > g.drivers_median;
    const share = (g) => (summary.bytes ? g.bytes / summary.bytes : 0);
    sortable(byId("streams"), "Table of calls", [
      { label: "call", value: (g) => g.call, cell: (g) => g.call },
      { label: "size", value: (g) => g.size, cell: (g) => g.size },
      { label: "made", value: (g) => g.became, cell: (g) => g.became },
      { label: "copies", num: true, value: (g) => g.copies, cell: (g) => number(g.copies) },
      { label: "data", num: true, value: (g) => g.bytes, cell: (g) => size(g.bytes) },
      { label: "of all data", num: true, value: share, cell: (g) => [bar(share(g)), percent(share(g) * 1e6)] },
      {
        ...timed("median", "median"),
        cell: (g) => (isSlower(g) ? el("span", { class: "wrong", title: "slower than the driver" }, `${or(g.median)} (driver ${or(g.drivers_median)})`) : or(g.median)),
      },
      timed("p99", "p99"), timed("longest", "longest"), timed("together", "blocked"),
    ], summary.groups, { word: "calls", name: (g) => `${g.call} ${g.size} ${g.became}` });

    const words = new Map(data.words);
    byId("steps-section").hidden = !summary.slowest.length;
    byId("steps-title").textContent = "Slowest copies";
    byId("steps-lead").textContent = "Select one to see it in the timeline.";
    const show = (copy) => () => {
      const job = data.copies.at.findIndex((at, index) => at === copy.at && data.copies.thread[index] === copy.thread);
      view.showOne(job, (found) => found.row.kind[found.at] !== UNDER_WAY, copy.at, copy.at + copy.took);
    };
    const handle = (stream) => (stream === 1 ? "default" : stream === 2 ? "per-thread default" : `0x${stream.toString(16)}`);
    sortable(byId("steps"), "Table of the slowest copies", [
      { label: "call", value: (c) => c.call, cell: (c) => el("button", { type: "button", class: "link", onclick: show(c) }, c.call) },
      { label: "took", num: true, value: (c) => c.took, cell: (c) => time(c.took) },
      { label: "at", num: true, value: (c) => c.at, cell: (c) => moment(c.at) },
      { label: "data", num: true, value: (c) => c.bytes, cell: (c) => size(c.bytes) },
      { label: "thread", num: true, value: (c) => c.thread, cell: (c) => String(c.thread) },
      { label: "stream", value: (c) => c.stream, cell: (c) => handle(c.stream) },
      { label: "made", value: (c) => c.became, cell: (c) => c.became },
      { label: "why", value: (c) => c.why || "", cell: (c) => words.get(c.why) || "–" },
    ], summary.slowest, { word: "copies", name: (c) => `${c.call} ${c.became} ${handle(c.stream)}` });
  }

  function guestWaits(data, view) {
    const { summary, waits } = data;
    const { beside } = summary;
    byId("blame-title").textContent = "What waited beside what";
    const said = ({ copies, median, longest }) => `${count(copies)} copies, median ${median === null ? "–" : time(median)}, longest ${time(longest)}`;
    const parts = [
      [beside.with, "made by the driver while a bulk copy was under way in another stream"], [beside.without, "without one"],
      [beside.aside, "made by a kernel (aside)"],
    ].filter(([times]) => times.copies > 0).map(([times, what]) => `${what}: ${said(times)}`);
    byId("blame-lead").textContent = parts.length
      ? `Small copies out of a GPU, ${parts.join("; ")}. A queued bulk copy counts as under way for the time that its bytes take at 20 GB/s.`
      : "No small copy out of a GPU was made.";
    byId("pairs").hidden = !waits.length;
    if (!waits.length) return;
    const show = (wait) => () => {
      const job = data.copies.at.findIndex((at, index) => at === wait.longest_at && data.copies.stream[index] === wait.stream);
      view.showOne(job, (found) => found.row.kind[found.at] !== UNDER_WAY, wait.longest_at, wait.longest_at + wait.longest);
    };
    sortable(byId("pairs"), "Small copies beside bulk copies", [
      { label: "stream", value: (w) => w.stream, cell: (w) => el("button", { type: "button", class: "link", onclick: show(w) }, w.stream) },
      { label: "beside bulk copies of", value: (w) => w.behind, cell: (w) => w.behind },
      { label: "copies", num: true, value: (w) => w.copies, cell: (w) => number(w.copies) },
      { label: "in all", num: true, value: (w) => w.total, cell: (w) => time(w.total) },
      { label: "longest", num: true, value: (w) => w.longest, cell: (w) => time(w.longest) },
    ], waits, { word: "pairs of streams", name: (w) => `${w.stream} ${w.behind}` });
  }

  function guestJumps(data, view) {
    const { copies } = data;
    const best = (value) => copies.at.reduce((at, _, job) => (value(job) > (at < 0 ? 0 : value(at)) ? job : at), -1);
    const jump = (id, label, job) => {
      byId(id).hidden = job < 0;
      byId(id).textContent = label;
      byId(id).addEventListener("click", () => view.showOne(job, (found) => found.row.kind[found.at] !== UNDER_WAY, copies.at[job], copies.at[job] + copies.took[job]));
    };
    jump("zoom-wait", "Longest beside a bulk copy", best((job) => (copies.beside[job] ? copies.took[job] : 0)));
    jump("zoom-worst", "Slowest copy", best((job) => copies.took[job]));
  }

  function drawGuest(data) {
    const { summary } = data;
    byId("source").textContent = "guest";
    byId("source-means").textContent = "an unmodified program under headway exec; times by the host's clock";
    const wrong = summary.differences.length;
    byId("verdict").textContent = wrong
      ? `${count(wrong)} ${wrong === 1 ? "copy was" : "copies were"} wrong`
      : `${count(summary.copies)} copies in ${time(summary.blocked)} of calls`;
    byId("verdict").className = wrong ? "bad" : summary.verified ? "good" : "";
    byId("subtitle").textContent = summary.command.join(" ");
    byId("provenance").textContent = `Process ${summary.pid} · options ${summary.options || "none"}`;
    byId("facts").replaceChildren(...guestFacts(data).map(([name, value, note]) =>
      el("div", null, el("dt", null, name), el("dd", null, value, el("small", null, note)))));
    byId("timeline-title").textContent = "Copies over time";
    byId("timeline-means").textContent = "A row for each thread, stream and direction: the time in calls, in the colour of how the copy was made. "
      + "Thin: bulk copies out of a GPU, for the time that they are taken to be under way. Zoomed out, the height is the share of time in calls. "
      + "Red: failed, or took more than twice the median beside a bulk copy of another stream.";
    const view = new Timeline(guestSpec(data));
    guestTables(data, view);
    byId("use-section").hidden = !summary.reasons.length;
    byId("use-title").textContent = "Why the driver made copies";
    byId("capacities").hidden = true;
    sortable(byId("engines"), "Reasons", [
      { label: "reason", value: (r) => r.why, cell: (r) => new Map(data.words).get(r.why) || r.why },
      { label: "copies", num: true, value: (r) => r.copies, cell: (r) => number(r.copies) },
    ], summary.reasons, { word: "reasons", name: (r) => r.why });
    guestWaits(data, view);
    byId("late-title").textContent = "Where copies lose time";
    sentences("late", summary.findings.map((f) => `${PROBLEMS[f.problem]}: ${f.call} at ${f.site}: ${count(f.copies)} copies of ${size(f.bytes)} in ${time(f.took)}; `
      + `to be gained: ${f.gain === null ? "not known from this run" : `about ${time(f.gain)}`}`));
    const notes = summary.differences.map((d) => `wrong: ${d.call} of ${count(d.bytes)} bytes, made ${d.became}, differs from the driver's from byte ${count(d.offset)} on`);
    if (summary.verified) notes.push(`${count(summary.verified.compared)} accelerated copies were compared, ${count(summary.verified.different)} differed, ${count(summary.verified.not_compared)} could not be compared`);
    if (summary.full) notes.push("the log had reached its size: later copies were only counted");
    if (summary.lost + summary.torn > 0) notes.push(`${count(summary.lost)} lines could not be written, ${count(summary.torn)} were cut off`);
    notes.push("copies that are only counted have no place in the timeline");
    sentences("notes", notes);
    byId("legend").hidden = false;
    byId("legend").replaceChildren(...MADE.map(([label, color], kind) => {
      const [y, height] = kind === UNDER_WAY ? [5, 5] : [1, 12];
      return el("li", null, svg("svg", { viewBox: "0 0 22 14", "aria-hidden": "true" }, svg("rect", { x: 0, y, width: 22, height, fill: color })), label);
    }));
    guestJumps(data, view);
    return view;
  }
