  // ---- all together ------------------------------------------------------------------------------------------------

  try {
    const data = JSON.parse(byId("headway-data").textContent);
    document.documentElement.dataset.kind = data.kind;
    const view = ({ sharing: drawSharing, guest: drawGuest }[data.kind] || drawStreams)(data);
    tellKept(data.kept);
    const unused = (data.summary.capacities || []).filter((capacity) => capacity.bytes === 0).length;
    finder([[view.idle, "engine"], [unused, "link"]]);
    view.draw();
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    document.documentElement.dataset.ready = "error";
    byId("error").hidden = false;
    byId("error").textContent = `This page could not be drawn: ${error}`;
  }
