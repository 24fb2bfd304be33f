"use strict";
const root = document.documentElement, tip = document.getElementById("tip");
const theme = document.getElementById("theme");
theme.hidden = false;
theme.onclick = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
};
for (const title of document.querySelectorAll("svg [tabindex] > title")) {
  const mark = title.parentNode, text = title.textContent;
  mark.setAttribute("aria-label", text);
  title.remove();
  const show = () => {
    const box = mark.getBoundingClientRect();
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = Math.max(8, Math.min(innerWidth - tip.offsetWidth - 8, box.x)) + "px";
    const below = box.bottom + 8;
    tip.style.top = (below + tip.offsetHeight < innerHeight ? below : Math.max(8, box.y - tip.offsetHeight - 8)) + "px";
  };
  mark.addEventListener("mouseenter", show);
  mark.addEventListener("focus", show);
  for (const name of ["mouseleave", "blur"]) mark.addEventListener(name, () => (tip.hidden = true));
}
addEventListener("keydown", event => {
  if (event.key === "Escape") tip.hidden = true;
  if (event.key === "/" && !/INPUT/.test(document.activeElement.tagName)) {
    event.preventDefault();
    document.querySelector("input[type=search]")?.focus();
  }
});
for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0];
  table.tHead.querySelectorAll("th").forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.onclick = () => {
      const up = head.getAttribute("aria-sort") === "descending";
      for (const other of table.tHead.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const order = (a, b) => (isNaN(key(a)) || isNaN(key(b)) ? key(b).localeCompare(key(a)) : key(b) - key(a));
      body.append(...[...body.rows].sort((a, b) => (up ? -order(a, b) : order(a, b))));
    };
  });
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "search  ( / )";
  search.setAttribute("aria-label", "search this table");
  search.oninput = () => {
    const words = search.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(words);
  };
  table.parentNode.before(search);
}
