// What a page can do better with a script: sort, filter, open what a link leads to, copy, print what is folded (where a
// browser does not know ::details-content yet).
"use strict";
(() => {
  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const original = rows.slice();

  const keyOf = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.sort ?? cell.textContent.trim();
    if (text === "") return null;
    const number = Number(text.replace(/[,%\s]/g, ""));
    return Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));

  const sort = (header, column) => {
    const next = { ascending: "descending", descending: "none" }[header.getAttribute("aria-sort")] ?? "ascending";
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    let ordered = original;
    if (next !== "none") {
      header.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      const known = original.map((row) => [keyOf(row, column), row]);
      ordered = [
        ...known.filter(([key]) => key !== null).sort((a, b) => sign * compare(a[0], b[0])),
        ...known.filter(([key]) => key === null), // what has no value comes last either way
      ].map(([, row]) => row);
    }
    body.append(...ordered);
  };

  for (const header of table.tHead.rows[0].cells) {
    if ("plain" in header.dataset) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sort(header, header.cellIndex));
    header.append(button);
  }

  const input = document.getElementById("filter");
  const boxes = Array.from(document.querySelectorAll("#controls input[name=status]"));
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(wanted.has(row.dataset.status) && words.every((word) => text.includes(word)));
      count += !row.hidden;
      document.getElementById(row.dataset.for).hidden = row.hidden;
    }
    document.getElementById("shown").textContent = `${count} of ${rows.length} shown`;
  };
  input.addEventListener("input", filter);
  for (const box of boxes) box.addEventListener("change", filter);
  document.getElementById("controls").hidden = false;
  filter();

  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const details = target?.closest(".workload") && (target.matches("details") ? target : target.querySelector("details"));
    if (details) {
      details.open = true;
      target.scrollIntoView();
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

  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = Array.from(document.querySelectorAll("details:not([open])"));
    for (const one of folded) one.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const one of folded) one.open = false;
  });
})();
