// A click on the head of a column sorts the rows: numbers from the greatest, texts from the least. Another click turns
// the order around. The script has no less-than sign and no ampersand, so that the page is XML as well.
const table = document.querySelector("table");
const heads = Array.from(table.tHead.rows[0].cells);
const value = (row, column) => row.cells[column].dataset.value;
heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const rows = Array.from(table.tBodies[0].rows);
    const numeric = rows.every(row => Number.isFinite(Number(value(row, column))));
    const order = head.getAttribute("aria-sort");
    const ascending = order === null ? !numeric : order === "descending";
    const compare = (a, b) => numeric ? Number(a) - Number(b) : a.localeCompare(b);
    rows.sort((a, b) => (ascending ? 1 : -1) * compare(value(a, column), value(b, column)));
    table.tBodies[0].append(...rows);
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
}));
