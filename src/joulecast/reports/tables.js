(() => {
  "use strict";
  document.querySelectorAll("[data-searched]").forEach((box) => {
    const rows = [...box.querySelectorAll("tbody tr")], count = box.querySelector("[data-count]");
    const show = (text) => {
      const words = text.toLowerCase().split(/\s+/).filter(Boolean);
      const found = rows.filter((row) => {
        const all = row.textContent.toLowerCase();
        row.hidden = !words.every((w) => all.includes(w));
        return !row.hidden;
      });
      count.textContent = `${found.length} of ${rows.length}`;
    };
    box.querySelector("[data-filter]").addEventListener("input", (event) => show(event.target.value));
    show("");
  });
})();
