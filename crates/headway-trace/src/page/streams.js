  // ---- runs of streams ---------------------------------------------------------------------------------------------

  const SENTENCES = 10;

  const leastSlack = (summary) => summary.streams.reduce((best, stream) =>
    (stream.worst_slack_ns !== null && (!best || stream.worst_slack_ns < best.worst_slack_ns) ? stream : best), null);

  const longestWait = (summary) => summary.servers.filter((server) => server.longest)
    .reduce((best, server) => (!best || server.longest.wait > best.longest.wait ? server : best), null);

  function streamFacts(summary) {
    const totals = summary.totals;
    const tightest = leastSlack(summary);
    const busiest = summary.engines.reduce((best, engine) => (!best || engine.utilisation_ppm > best.utilisation_ppm ? engine : best), null);
    const longest = longestWait(summary);
    return [
      totals.packets
        ? ["Delivered", count(totals.delivered), `of ${count(totals.packets)} packets, ${size(totals.bytes)}`]
        : totals.message_jobs
          ? ["Delivered", count(totals.message_jobs_delivered), `of ${count(totals.message_jobs)} jobs of messages, ${size(totals.message_bytes)}`]
          : ["Delivered", count(totals.cycles), "cycles"],
      ["Duration", time(summary.span), `${count(totals.operations)} operations, ${count(totals.jobs)} jobs`],
      tightest
        ? ["Least slack", time(tightest.worst_slack_ns), `${tightest.id}, deadline ${time(tightest.deadline)}`]
        : ["Late jobs", count(totals.late), `${count(totals.overruns)} overruns`],
      busiest ? ["Busiest engine", percent(busiest.utilisation_ppm), busiest.name] : ["Engines", "none", "abstract servers only"],
      longest
        ? ["Longest wait", time(longest.longest.wait), `${longest.longest.job.pipeline} at ${longest.name}`]
        : ["Longest wait", "none", "no job had to wait"],
    ];
  }

  /** What the timeline of streams draws: a colour per pipeline. */
  function streamSpec(data) {
    const { jobs, pipelines, summary } = data;
    const names = pipelines.map((pipeline) => [pipeline.name]);
    for (const stream of summary.streams) {
      const at = pipelines.findIndex((pipeline) => pipeline.name === stream.pipeline);
      if (at >= 0) names[at].push(stream.id);
    }
    const of = (job) => `${pipelines[jobs.pipeline[job]].name} #${jobs.cycle[job]}`;
    const tell = (row, at) => {
      const job = row.job[at];
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
    };
    return {
      rows: data.rows, span: summary.span, kept: data.kept, missed: data.missed, owners: names.map((all) => all.join(" ")),
      owner: (job) => jobs.pipeline[job],
      group: (job) => `${jobs.pipeline[job]}/${jobs.cycle[job]}`,
      joined: true,
      label: of,
      color: (job) => tone(jobs.pipeline[job]),
      waits: () => false,
      thin: () => false,
      waitColor: "transparent",
      flagged: (job) => job >= 0 && jobs.flags[job] !== 0,
      wait: (job) => (jobs.wait[job] > 0 ? [jobs.ready[job], jobs.ready[job] + jobs.wait[job]] : null),
      tell,
    };
  }

  function streamTable(data, view) {
    const { summary } = data;
    byId("streams-section").hidden = !summary.streams.length;
    if (!summary.streams.length) return;
    byId("streams-lead").textContent = "From the arrival of a packet to its delivery. Each bar reaches from the shortest to the longest, "
      + "with a tick at the median and the deadline in red; select a stream to see its packets.";
    const unit = unitFor(summary.streams.flatMap((s) => [s.deadline, s.response ? s.response.max : 0]));
    const response = (key) => ({
      num: true,
      value: (s) => s.response?.[key] ?? -1,
      cell: (s) => (s.response && s.response[key] !== null ? unit.text(s.response[key]) : "–"),
    });
    const worst = summary.streams.map((s) => (s.response ? s.response.max / s.deadline : 0));
    const scale = Math.max(1.04, Math.min(2, worst.reduce((a, b) => Math.max(a, b), 0) * 1.04));
    const columns = [
      { label: "stream", value: (s) => s.id },
      { label: "gpu", num: true, value: (s) => s.gpu ?? 1000 + s.cpu, cell: (s) => processor(s) },
      { label: "packets", num: true, value: (s) => s.packets, cell: (s) => number(s.packets) },
      { label: `median ${unit.name}`, ...response("median") },
      { label: `p99 ${unit.name}`, ...response("p99") },
      { label: `max ${unit.name}`, ...response("max") },
      { label: `bound ${unit.name}`, num: true, value: (s) => s.bound ?? -1, cell: (s) => (s.bound === null ? "–" : unit.text(s.bound)) },
      { label: `deadline ${unit.name}`, num: true, value: (s) => s.deadline, cell: (s) => unit.text(s.deadline) },
      { label: "shortest to longest", wide: true, value: (s) => (s.response ? s.response.max / s.deadline : 0), cell: (s) => range(s.response, s.deadline, scale) },
      { label: "missed", num: true, value: (s) => s.misses, cell: (s) => badNumber(s.misses) },
      { label: "lost", num: true, value: (s) => s.lost, cell: (s) => badNumber(s.lost) },
    ];
    const card = (index) => {
      const stream = summary.streams[index];
      const { response } = stream;
      const of = (key) => (response && response[key] !== null ? time(response[key]) : "–");
      return {
        title: stream.id,
        about: `${stream.gpu === null ? "" : "gpu "}${processor(stream)}, pipeline ${stream.pipeline}; ${count(stream.delivered)} of ${count(stream.packets)} packets, ${size(stream.bytes)}`,
        facts: [["median", of("median")], ["p99", of("p99")], ["max", of("max"), stream.misses > 0], ["bound", stream.bound === null ? "–" : time(stream.bound)], ["deadline", time(stream.deadline)]],
        series: data.streams[index], deadline: stream.deadline, p99: response ? response.p99 : null, what: "packet",
      };
    };
    responses(columns, summary.streams, Math.max(0, summary.streams.indexOf(leastSlack(summary))), "streams", (s) => s.id, card, view);
  }

  function jobsTable(summary) {
    const all = [...(summary.messages ?? []), ...(summary.demands ?? [])];
    byId("jobs-section").hidden = !all.length;
    if (!all.length) return;
    byId("jobs-lead").textContent = "From the release of a job to its completion. The bound is the longest response that the plan allows.";
    const unit = unitFor(all.flatMap((j) => [j.deadline, j.response ? j.response.max : 0]));
    const text = (ns) => (ns === null || ns === undefined ? "–" : unit.text(ns));
    const response = (key) => ({ num: true, value: (j) => j.response?.[key] ?? -1, cell: (j) => text(j.response?.[key]) });
    sortable(byId("jobs"), "Table of messages and demands", [
      { label: "message or demand", value: (j) => j.id, cell: (j) => j.id },
      { label: "jobs", num: true, value: (j) => j.jobs, cell: (j) => number(j.jobs) },
      { label: "data", num: true, value: (j) => j.bytes, cell: (j) => size(j.bytes) },
      { label: `median ${unit.name}`, ...response("median") },
      { label: `p99 ${unit.name}`, ...response("p99") },
      { label: `max ${unit.name}`, ...response("max") },
      { label: `bound ${unit.name}`, num: true, value: (j) => j.bound ?? -1, cell: (j) => text(j.bound) },
      { label: `deadline ${unit.name}`, num: true, value: (j) => j.deadline, cell: (j) => text(j.deadline) },
      { label: "missed", num: true, value: (j) => j.misses, cell: (j) => badNumber(j.misses) },
      { label: "lost", num: true, value: (j) => j.lost, cell: (j) => badNumber(j.lost) },
    ], all, { word: "messages and demands", name: (j) => j.id });
  }

  function unplannedTables({ bulk = [], urgent = [] }) {
    byId("unplanned-section").hidden = !bulk.length && !urgent.length;
    byId("bulk").hidden = !bulk.length;
    byId("urgent").hidden = !urgent.length;
    if (bulk.length) {
      sortable(byId("bulk"), "Bulk transfers", [
        { label: "bulk transfer", value: (b) => b.id, cell: (b) => b.id },
        { label: "data", num: true, value: (b) => b.bytes, cell: (b) => size(b.bytes) },
        { label: "of", num: true, value: (b) => b.of ?? Infinity, cell: (b) => (b.of === null ? "endless" : size(b.of)) },
        { label: "chunks", num: true, value: (b) => b.chunks, cell: (b) => number(b.chunks) },
        { label: "time", num: true, value: (b) => b.time, cell: (b) => time(b.time) },
        { label: "rate", num: true, value: (b) => b.rate, cell: (b) => rate(b.rate) },
      ], bulk, { word: "bulk transfers", name: (b) => b.id });
    }
    if (!urgent.length) return;
    const longest = (key) => ({ num: true, value: (u) => u[key]?.max ?? -1, cell: (u) => (u[key] ? time(u[key].max) : "–") });
    sortable(byId("urgent"), "Urgent requests", [
      { label: "urgent", value: (u) => u.id, cell: (u) => u.id },
      { label: "requests", num: true, value: (u) => u.requests, cell: (u) => number(u.requests) },
      { label: "admitted", num: true, value: (u) => u.guaranteed, cell: (u) => number(u.guaranteed) },
      { label: "longest", ...longest("response") },
      { label: "missed", num: true, value: (u) => u.misses, cell: (u) => badNumber(u.misses) },
      { label: "behind", num: true, value: (u) => u.best_effort, cell: (u) => number(u.best_effort) },
      { label: "longest behind", ...longest("response_behind") },
      { label: "refused", num: true, value: (u) => u.refused, cell: (u) => number(u.refused) },
    ], urgent, { word: "urgent requests", name: (u) => u.id });
  }

  function capacityTable(summary) {
    sortable(byId("capacities"), "Links and limits", [
      { label: "link or limit", value: (c) => c.name, cell: (c) => c.name },
      { label: "rate", num: true, value: (c) => c.rate, cell: (c) => rate(c.rate) },
      { label: "data", num: true, value: (c) => c.bytes, cell: (c) => size(c.bytes) },
      { label: "used", num: true, value: (c) => c.utilisation_ppm, cell: (c) => [bar(c.utilisation_ppm / 1e6), percent(c.utilisation_ppm)] },
    ], summary.capacities, { word: "links and limits", name: (c) => c.name, idle: (c) => c.bytes === 0 });
  }

  function stepTable(summary) {
    const unit = unitFor(summary.steps.flatMap((s) => [s.cost, s.took_max]));
    const share = (s) => (s.cost ? s.took_max / s.cost : 0);
    const over = summary.steps.filter((s) => s.overruns || s.late).length;
    byId("steps-section").hidden = false;
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
    ], summary.steps, { word: "steps", name: (s) => `${s.pipeline} ${s.step} ${s.server}` });
  }

  function streamBlame(data, view) {
    const { summary } = data;
    const total = summary.totals.wait;
    byId("blame-lead").textContent = total
      ? `All jobs together waited ${time(total)} in front of their servers. The longest waits of one job for one other:`
      : "No job waited in front of its server.";
    const longest = [...summary.blame].sort((a, b) => b.longest.wait - a.longest.wait).slice(0, SENTENCES);
    byId("waits").replaceChildren(...longest.map((pair) => {
      const { wait, server, job, cause, ready } = pair.longest;
      const show = () => showJob(data, view, pair.waiting, job, ready, wait);
      return el("li", null, el("b", null, time(wait)),
        el("button", { type: "button", class: "link", onclick: show }, `${job.pipeline} #${job.cycle}`),
        cause ? ` waited for ${cause.pipeline} #${cause.cycle} (${cause.step}) at ${server}` : ` waited at ${server}, which was free: the driver was slow`);
    }));
    if (!summary.blame.length) return;
    const names = new Map([[-1, "the driver"]]);
    const pairs = summary.blame.map((pair) => {
      names.set(pair.waiting, pair.waiting_name);
      if (pair.cause !== null) names.set(pair.cause, pair.cause_name);
      return { waiting: pair.waiting, cause: pair.cause === null ? -1 : pair.cause, total: pair.total };
    });
    matrix(pairs, names, "pipelines", -1);
    if (data.more_blame) byId("matrix").append(el("p", { class: "small muted" }, `${count(data.more_blame)} more pairs with shorter waits are not on this page.`));
  }

  function showJob(data, view, pipeline, job, ready, wait) {
    const { jobs, pipelines } = data;
    const wanted = ({ row, at }) => pipelines[pipeline].steps[jobs.step[row.job[at]]] === job.step;
    view.showOne(`${pipeline}/${job.cycle}`, wanted, ready, ready + wait);
  }

  function streamJumps(data, view) {
    const { summary } = data;
    const longest = longestWait(summary);
    byId("zoom-wait").hidden = !longest;
    byId("zoom-wait").addEventListener("click", () => {
      const { job, ready, wait } = longest.longest;
      showJob(data, view, data.pipelines.findIndex((pipeline) => pipeline.name === job.pipeline), job, ready, wait);
    });
    const tight = leastSlack(summary);
    byId("zoom-worst").hidden = !tight;
    byId("zoom-worst").addEventListener("click", () => {
      const { at, response } = data.streams[summary.streams.indexOf(tight)];
      let worst = 0;
      response.forEach((ns, index) => { if (ns > response[worst]) worst = index; });
      view.show(at[worst] - response[worst], at[worst]);
    });
  }

  function drawStreams(data) {
    const { summary } = data;
    const planned = { schedulable: "planned as schedulable", undecided: "planned without a proof", "not-schedulable": "planned as not schedulable" };
    head(summary, `Workload ${summary.workload.name} on ${summary.machine.name}, ${planned[summary.planned] || summary.planned}`, streamFacts(summary));
    byId("timeline-title").textContent = "Engines over time";
    byId("timeline-means").textContent = "One colour per pipeline; zoomed out, the height is the share of time in which the engine was busy. "
      + "Red: longer than planned, or late.";
    const view = new Timeline(streamSpec(data));
    streamTable(data, view);
    jobsTable(summary);
    unplannedTables(summary);
    engineTable(summary.engines);
    capacityTable(summary);
    streamBlame(data, view);
    stepTable(summary);
    streamJumps(data, view);
    return view;
  }
