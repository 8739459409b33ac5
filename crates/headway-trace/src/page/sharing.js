  // ---- runs of tasks that share GPUs -------------------------------------------------------------------------------

  /** What a job does, by its number in the data: label and colour. Waits are thin, so that colour is not all that tells. */
  const DOING = [
    ["waits for a CPU", "#a9a9a9"], ["on a CPU", "#7f7f7f"], ["waits for a token", "#e69f00"], ["waits for an engine", "#d55e00"],
    ["hand-over", "#cc79a7"], ["copies", "#56b4e9"], ["executes", "#009e73"],
  ];
  const [CPU_WAIT, , TOKEN_WAIT, ENGINE_WAIT] = DOING.keys();
  const isWait = (kind) => kind === CPU_WAIT || kind === TOKEN_WAIT || kind === ENGINE_WAIT;

  function sharingFacts(data) {
    const { summary } = data;
    const { jobs, misses } = summary.verdict;
    const worst = summary.tasks.reduce((best, task) => (!best || task.max_ppm > best.max_ppm ? task : best), null);
    const busiest = summary.engines.reduce((best, engine) => (!best || engine.busy_ppm > best.busy_ppm ? engine : best), null);
    const blocked = summary.tasks.reduce((best, task) => (!best || task.blocked_max[2] > best.blocked_max[2] ? task : best), null);
    return [
      ["Complete", count(jobs), `jobs of ${count(summary.tasks.length)} tasks, ${misses ? `${count(misses)} late` : "none late"}`],
      ["Duration", time(summary.span), "from the first release to the last end"],
      worst ? ["Longest response", percent(worst.max_ppm), `of the period, ${worst.id}`] : ["Tasks", "none", ""],
      busiest ? ["Busiest engine", percent(busiest.busy_ppm), busiest.id] : ["Engines", "none", "no engine was used"],
      blocked && blocked.blocked_max[2] > 0
        ? ["Longest blocking", time(blocked.blocked_max[2]), `${blocked.id}${blocked.bound ? `, bound ${time(blocked.bound.blocking)}` : ""}`]
        : ["Longest blocking", "none", "no job waited for a token or an engine"],
    ];
  }

  /** A row for each task, by what its job does, and one for each engine, a colour per task. */
  function sharingSpec(data) {
    const { jobs, summary, rows } = data;
    const tasks = summary.tasks.map((task) => task.id);
    const of = (job) => `${tasks[jobs.task[job]]} #${jobs.job[job]}`;
    const late = (job) => job >= 0 && jobs.done[job] > jobs.deadline[job];
    const ofTask = tasks.map(() => []);
    jobs.task.forEach((task, job) => ofTask[task].push(job));
    for (const list of ofTask) list.sort((a, b) => jobs.release[a] - jobs.release[b]);
    const releases = ofTask.map((list) => Float64Array.from(list, (job) => jobs.release[job]));
    const tell = (row, at) => {
      const job = row.job[at];
      const kind = row.kind[at];
      const bytes = row.bytes[at] ? `, ${size(row.bytes[at])}` : "";
      const lines = [
        `${DOING[kind][0]}${bytes} for ${time(row.end[at] - row.start[at])} from ${moment(row.start[at])} on`,
        `released at ${moment(jobs.release[job])}, response ${time(jobs.done[job] - jobs.start[job])}`,
      ];
      if (jobs.start[job] > jobs.release[job]) lines.push(`began ${time(jobs.start[job] - jobs.release[job])} late as its predecessor ran`);
      if (jobs.from[job] >= 0) lines.push(`its state came from GPU ${jobs.from[job]} to GPU ${jobs.gpu[job]}`);
      const [token, engines] = jobs.blocked[job];
      if (token + engines > 0) lines.push(`blocked for ${time(token)} by tokens and ${time(engines)} by engines`);
      for (const [task, number, what, ns] of jobs.behind[job]) {
        lines.push(`waited ${time(ns)} for ${what < 0 ? "a token" : rows[what].name} behind ${tasks[task]} #${number}`);
      }
      const bad = late(job) ? [`late by ${time(jobs.done[job] - jobs.deadline[job])}`] : [];
      return { head: of(job), lines, bad };
    };
    // Releases as ticks under a task's row; from the deadline to the end of a late job, red.
    const overlay = (view, row) => {
      if (row.index >= data.task_rows) return;
      const list = ofTask[row.index];
      const first = Math.max(0, upper(releases[row.index], view.from) - 3);
      const last = upper(releases[row.index], view.to);
      if ((last - first) * 6 > view.width - view.gutter) return;
      const { context, colors } = view;
      const y = view.y(row);
      for (const job of list.slice(first, last)) {
        const x = view.x(jobs.release[job]);
        context.fillStyle = colors.edge;
        if (x >= view.gutter) context.fillRect(Math.round(x), y + view.bar - 5, 1, 8);
        if (!late(job)) continue;
        const from = Math.max(view.gutter, view.x(jobs.deadline[job]));
        context.fillStyle = colors.bad;
        context.fillRect(from, y - 2, Math.max(2, view.x(jobs.done[job]) - from), 3);
      }
    };
    return {
      rows, span: summary.span, kept: data.kept, missed: data.missed, owners: tasks,
      owner: (job) => jobs.task[job],
      group: (job) => job,
      joined: false,
      label: (job, kind, row) => (row.index < data.task_rows ? `#${jobs.job[job]} ${DOING[kind][0]}` : of(job)),
      color: (job, kind, row) => (row.index < data.task_rows ? DOING[kind][1] : tone(jobs.task[job])),
      waits: isWait,
      thin: isWait,
      waitColor: DOING[ENGINE_WAIT][1],
      flagged: (job) => late(job),
      wait: () => null,
      tell, overlay,
    };
  }

  function taskTable(data, view) {
    const { summary } = data;
    byId("streams-section").hidden = !summary.tasks.length;
    if (!summary.tasks.length) return;
    byId("streams-lead").textContent = "From a job's release, or its predecessor's end if that is later, to its end, in percent of the period. "
      + "Each bar reaches from the shortest to the longest that is drawn, with a tick at the median and the deadline in red; select a task to see its jobs.";
    const ppm = (key) => ({ num: true, value: (t) => t[key] ?? -1, cell: (t) => (t[key] === null ? "–" : percent(t[key])) });
    const unit = unitFor(summary.tasks.flatMap((t) => [t.blocked_max[2], t.bound ? t.bound.blocking : 0]));
    const rows = summary.tasks.map((task, at) => {
      const { response } = data.streams[at];
      const of = (share) => (share / 1e6) * task.period;
      const least = response.reduce((a, b) => Math.min(a, b), Infinity);
      const known = response.length ? { min: least, median: of(task.p50_ppm), p99: task.p99_ppm === null ? null : of(task.p99_ppm), max: of(task.max_ppm) } : null;
      return Object.assign({ response: known, deadline: Math.max(1, data.deadlines[at]) }, task);
    });
    const worst = rows.reduce((most, t) => Math.max(most, t.response ? t.response.max / t.deadline : 0), 0);
    const scale = Math.max(1.04, Math.min(2, worst * 1.04));
    const above = (t) => t.bound && t.blocked_max[2] > t.bound.blocking;
    const columns = [
      { label: "task", value: (t) => t.id },
      { label: "period", num: true, value: (t) => t.period, cell: (t) => time(t.period) },
      { label: "jobs", num: true, value: (t) => t.jobs, cell: (t) => number(t.jobs) },
      { label: "mean", ...ppm("mean_ppm") },
      { label: "median", ...ppm("p50_ppm") },
      { label: "p99", ...ppm("p99_ppm") },
      { label: "max", ...ppm("max_ppm") },
      { label: "shortest to longest", wide: true, value: (t) => (t.response ? t.response.max / t.deadline : 0), cell: (t) => range(t.response, t.deadline, scale) },
      { label: "late", num: true, value: (t) => t.misses, cell: (t) => badNumber(t.misses) },
      { label: "migrated", num: true, value: (t) => t.migrations, cell: (t) => number(t.migrations) },
      { label: `blocked ${unit.name}`, num: true, value: (t) => t.blocked_max[2], cell: (t) => el("span", { class: above(t) ? "wrong" : null }, unit.text(t.blocked_max[2])) },
      { label: `bound ${unit.name}`, num: true, value: (t) => (t.bound ? t.bound.blocking : Infinity), cell: (t) => (t.bound ? unit.text(t.bound.blocking) : "–") },
    ];
    const card = (index) => {
      const task = rows[index];
      const of = (key) => (task.response && task.response[key] !== null ? time(task.response[key]) : "–");
      return {
        title: task.id,
        about: `period ${time(task.period)}; ${count(task.jobs)} jobs, ${count(task.migrations)} migrated${task.misses ? `, ${count(task.misses)} late, by ${time(task.tardiness_max)} at most` : ""}`,
        facts: [["median", of("median")], ["p99", of("p99")], ["max", of("max"), task.misses > 0], ["deadline", time(task.deadline)], ["blocked", time(task.blocked_max[2]), above(task)]],
        series: data.streams[index], deadline: task.deadline, p99: task.response ? task.response.p99 : null, what: "job",
      };
    };
    const tightest = rows.reduce((best, t, at) => (t.max_ppm > rows[best].max_ppm ? at : best), 0);
    responses(columns, rows, tightest, "tasks", (t) => t.id, card, view);
  }

  function sharingBlame(summary) {
    const { waits } = summary;
    const total = waits.reduce((sum, wait) => sum + wait.total, 0);
    byId("blame-lead").textContent = waits.length
      ? `All jobs together waited ${time(total)} for tokens and engines that others had. By task, the longest total first:`
      : "No job waited for a token or an engine that another job had.";
    if (!waits.length) return;
    byId("pairs").hidden = false;
    sortable(byId("pairs"), "Waits", [
      { label: "task", value: (w) => w.task, cell: (w) => w.task },
      { label: "behind", value: (w) => w.behind, cell: (w) => w.behind },
      { label: "for", value: (w) => w.what, cell: (w) => w.what },
      { label: "times", num: true, value: (w) => w.count, cell: (w) => number(w.count) },
      { label: "in all", num: true, value: (w) => w.total, cell: (w) => time(w.total) },
      { label: "longest", num: true, value: (w) => w.max, cell: (w) => time(w.max) },
    ], waits, { word: "waits", name: (w) => `${w.task} ${w.behind} ${w.what}` });
    const places = new Map(summary.tasks.map((task, at) => [task.id, at]));
    const names = new Map(summary.tasks.map((task, at) => [at, task.id]));
    matrix(waits.map((w) => ({ waiting: places.get(w.task), cause: places.get(w.behind), total: w.total })), names, "tasks", null);
  }

  function sharingJumps(data, view) {
    const { jobs, summary } = data;
    const best = (value) => jobs.task.reduce((at, _, job) => (at < 0 || value(job) > value(at) ? job : at), -1);
    const blocked = (job) => jobs.blocked[job][0] + jobs.blocked[job][1];
    const share = (job) => (jobs.done[job] - jobs.start[job]) / Math.max(1, summary.tasks[jobs.task[job]].period);
    const jump = (id, label, job, there) => {
      byId(id).hidden = !there;
      byId(id).textContent = label;
      const row = view.all[jobs.task[job]];
      byId(id).addEventListener("click", () => view.showOne(job, (found) => found.row === row, jobs.start[job], jobs.done[job]));
    };
    const [wait, response] = [best(blocked), best(share)];
    jump("zoom-wait", "Longest wait", wait, wait >= 0 && blocked(wait) > 0);
    jump("zoom-worst", "Longest response", response, response >= 0);
  }

  function legend() {
    byId("legend").hidden = false;
    byId("legend").replaceChildren(...DOING.map(([label, color], kind) => {
      const [y, height] = isWait(kind) ? [5, 5] : [1, 12];
      return el("li", null, svg("svg", { viewBox: "0 0 22 14", "aria-hidden": "true" }, svg("rect", { x: 0, y, width: 22, height, fill: color })), label);
    }));
  }

  function drawSharing(data) {
    const { summary } = data;
    head(summary, `Workload ${summary.workload.name} on ${summary.machine.name}: ${summary.rules}`, sharingFacts(data));
    byId("timeline-title").textContent = "Tasks and engines over time";
    byId("timeline-means").textContent = "Tasks: what their jobs do, waits as thin bars; a tick under the row is a release. Engines: one colour per task. "
      + "Zoomed out, the height is the share of time in which a job or the engine was active, with waits in orange. Red: late.";
    const view = new Timeline(sharingSpec(data));
    taskTable(data, view);
    engineTable(summary.engines.map((e) => ({ name: e.id, busy: e.busy, utilisation_ppm: e.busy_ppm })));
    byId("capacities").hidden = true;
    byId("use-section").hidden = !summary.engines.length;
    sharingBlame(summary);
    sentences("late", summary.late);
    sentences("notes", summary.notes);
    legend();
    sharingJumps(data, view);
    return view;
  }
