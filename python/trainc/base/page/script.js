"use strict";
const root = document.documentElement, tip = document.getElementById("tip"), theme = document.getElementById("theme");

// ---- light and dark
theme.hidden = false;
theme.onclick = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
};

// ---- marks of pictures: what they tell, and the kernel's row that they lead to. One stop of the Tab key a picture; arrows go on.
const place = box => {
  tip.style.left = Math.max(8, Math.min(innerWidth - tip.offsetWidth - 8, box.x)) + "px";
  const below = box.bottom + 8, above = box.y - tip.offsetHeight - 8;
  tip.style.top = (below + tip.offsetHeight < innerHeight || above < 8 ? below : above) + "px";
};
const show = mark => {
  tip.textContent = mark.getAttribute("aria-label");
  tip.hidden = false;
  place(mark.getBoundingClientRect());
};
const lead = mark => {
  const row = document.getElementById(mark.dataset.row || "");
  if (!row) return;
  tip.hidden = true;
  document.querySelector("tr.found")?.classList.remove("found");
  row.classList.add("found");
  row.hidden = false;
  row.scrollIntoView({block: "center"});
  row.querySelector("summary")?.focus({preventScroll: true});
};
for (const picture of document.querySelectorAll(".marks")) {
  const marks = [...picture.children].filter(mark => mark.matches("rect, i"));
  const order = [...marks].sort((a, b) => a.getBoundingClientRect().x - b.getBoundingClientRect().x);
  marks.forEach(mark => {
    const title = mark.querySelector("title");
    mark.setAttribute("aria-label", title ? title.textContent : mark.title);
    title ? title.remove() : mark.removeAttribute("title");
    mark.setAttribute("role", mark.dataset.row ? "button" : "img");
    mark.tabIndex = mark === order[0] ? 0 : -1;
  });
  const on = (name, does) => picture.addEventListener(name, event => marks.includes(event.target) && does(event.target, event));
  on("pointerover", show);
  on("focusin", show);
  on("click", lead);
  picture.addEventListener("pointerout", () => (tip.hidden = true));
  picture.addEventListener("focusout", () => (tip.hidden = true));
  on("keydown", (mark, event) => {
    if (event.key === "Enter" || event.key === " ") event.preventDefault(), lead(mark);
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    const next = step && order[order.indexOf(mark) + step];
    if (next) event.preventDefault(), (mark.tabIndex = -1), (next.tabIndex = 0), next.focus();
  });
}
addEventListener("scroll", () => (tip.hidden = true), {passive: true});
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = document.activeElement.tagName === "INPUT";
  if (event.key === "Escape") tip.hidden = true, typing && document.activeElement.blur();
  if (typing) return;
  if (event.key === "d") theme.click();
  if (event.key === "/") {
    event.preventDefault();
    const field = document.querySelector("#kernels input[type=search]") ?? document.querySelector("input[type=search]");
    field?.focus(), field?.select();
  }
});

// ---- a kernel's texts, unfolded below its row; without a script they are a section of their own
document.getElementById("sources")?.setAttribute("hidden", "");
document.querySelector('nav a[href="#sources"]')?.remove();
for (const used of document.querySelectorAll("details.uses")) {
  const list = used.querySelector("ul"), row = used.closest("tr");
  list.hidden = true;
  used.addEventListener("toggle", () => {
    if (row.nextElementSibling?.className === "more") row.nextElementSibling.remove();
    if (!used.open) return;
    const more = document.createElement("tr"), cell = more.insertCell();
    more.className = "more";
    cell.colSpan = row.cells.length;
    for (const link of list.querySelectorAll("a")) {
      const text = document.getElementById(link.hash.slice(1)).querySelector("pre").cloneNode(true), title = document.createElement("div");
      title.className = "soft";
      title.textContent = link.textContent;
      cell.append(title, text);
    }
    row.after(more);
  });
}

// ---- tables: sorting, searching, the first rows of many
const FIRST = 40;
for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0], rows = [...body.rows];
  const texts = new Map(rows.map(row => [row, row.innerText.toLowerCase()]));
  const search = document.createElement("input"), count = document.createElement("span"), more = document.createElement("button");
  let words = [], all = rows.length <= FIRST + 10;
  const apply = () => {
    rows.forEach(row => row.querySelectorAll("details.uses[open]").forEach(open => (open.open = false)));
    body.querySelectorAll("tr.more").forEach(unfolded => unfolded.remove());
    const found = rows.filter(row => words.every(word => texts.get(row).includes(word)));
    rows.forEach(row => (row.hidden = true));
    found.slice(0, all || words.length ? rows.length : FIRST).forEach(row => (row.hidden = false));
    count.textContent = words.length ? (found.length ? `${found.length} of ${rows.length}` : "nothing has these words") : "";
    more.hidden = all || words.length > 0;
  };
  table.tHead.querySelectorAll("th").forEach((head, column) => {
    const button = document.createElement("button"), number = row => row.cells[column].dataset.value;
    const numbers = rows.some(row => number(row) !== undefined), key = row => number(row) ?? row.cells[column].textContent;
    const up = (a, b) => (numbers ? key(a) - key(b) : key(a).localeCompare(key(b), undefined, {numeric: true}));
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.onclick = () => {
      const was = head.getAttribute("aria-sort"), down = was ? was === "ascending" : numbers;
      for (const other of table.tHead.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort((a, b) => (down ? up(b, a) : up(a, b)));
      apply();
      body.append(...rows);
    };
  });
  if (rows.length < 2) continue;
  search.type = "search";
  search.placeholder = "search ( / )";
  search.setAttribute("aria-label", "search this table");
  search.oninput = () => (words = search.value.toLowerCase().split(/\s+/).filter(Boolean)) && apply();
  count.className = "soft";
  count.setAttribute("role", "status");
  more.type = "button";
  more.className = "all";
  more.textContent = `all ${rows.length}`;
  more.onclick = () => ((all = true), apply());
  table.parentNode.before(search, count);
  table.parentNode.after(more);
  apply();
}
