"use strict";
// A click on a column's head sorts its table; a second click turns it round.
for (const head of document.querySelectorAll("th")) {
  const sort = () => {
    const row = head.parentElement;
    const body = row.closest("table").tBodies[0];
    const column = [...row.children].indexOf(head);
    const isNumber = head.classList.contains("n");
    const down = head.getAttribute("aria-sort") === (isNumber ? "descending" : "ascending") ? !isNumber : isNumber;
    const key = (tr) => {
      const cell = tr.children[column];
      return isNumber ? Number(cell.dataset.key) : cell.textContent;
    };
    const rows = [...body.rows].sort((a, b) => {
      const x = key(a), y = key(b);
      return (isNumber ? x - y : x.localeCompare(y, "en", { numeric: true })) * (down ? -1 : 1);
    });
    for (const other of row.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  };
  head.tabIndex = 0;
  head.classList.add("sorts");
  head.addEventListener("click", sort);
  head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
}
