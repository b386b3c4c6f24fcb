"use strict";
for (const button of document.querySelectorAll("button.sort")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th"), table = button.closest("table"), body = table.tBodies[0];
    const column = heading.cellIndex, down = heading.getAttribute("aria-sort") === "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "ascending" : "descending");
    const key = (row) => row.cells[column].textContent.trim();
    const number = (text) => Number.parseFloat(text.replaceAll(",", ""));
    const compare = (a, b) => {
      const [x, y] = [number(a), number(b)];
      if (Number.isNaN(x) && Number.isNaN(y)) return a.localeCompare(b);
      return Number.isNaN(x) ? -1 : Number.isNaN(y) ? 1 : x - y;
    };
    const rows = [...body.rows].sort((a, b) => (down ? 1 : -1) * compare(key(a), key(b)));
    body.append(...rows);
  });
}
