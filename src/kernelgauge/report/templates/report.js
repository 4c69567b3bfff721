// What a page can do better with a script: filter, open what a link leads to, copy.
"use strict";
(() => {
  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);

  const input = document.getElementById("filter");
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += !row.hidden;
      document.getElementById(row.dataset.for).hidden = row.hidden;
    }
    document.getElementById("shown").textContent = `${count} of ${rows.length} shown`;
  };
  input.addEventListener("input", filter);
  document.getElementById("controls").hidden = false;
  filter();

  const open = () => {
    const details = document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest("details.workload");
    if (details) {
      details.open = true;
      details.scrollIntoView();
    }
  };
  window.addEventListener("hashchange", open);
  open();

  const copy = document.getElementById("copy");
  copy?.addEventListener("click", async () => {
    const command = document.getElementById("command");
    getSelection().selectAllChildren(command); // where a browser refuses the clipboard, one key is left
    try {
      await navigator.clipboard.writeText(command.textContent);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Selected";
    }
  });
  if (copy) copy.hidden = false;
})();
