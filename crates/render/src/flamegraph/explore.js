// Zoom and search for flame graphs. Everything it needs is in the frames:
// data-x and data-w are shares of the whole, data-d is the depth.
"use strict";
(function () {
  var area = document.getElementById("frames");
  var detail = document.getElementById("detail");
  var search = document.getElementById("search");
  var left = +area.dataset.left;
  var width = +area.dataset.width;
  var character = +area.dataset.character;
  var frames = Array.from(area.querySelectorAll(".f")).map(function (g) {
    return {
      g: g,
      rect: g.querySelector("rect"),
      text: g.querySelector("text"),
      title: g.querySelector("title").textContent,
      name: g.querySelector("title").textContent.replace(/: [^:]*$/, ""),
      x: +g.dataset.x,
      w: +g.dataset.w,
      depth: +g.dataset.d,
    };
  });

  function label(name, px) {
    var room = Math.floor(Math.max(px - 6, 0) / character);
    if (Array.from(name).length <= room) return name;
    // The layer stands above already.
    var letters = Array.from(name.replace(/^blk\.\d+\./, ""));
    if (letters.length <= room) return letters.join("");
    return room < 3 ? "" : letters.slice(0, room - 1).join("") + "…";
  }

  function zoom(to) {
    // Shares are rounded to seven digits.
    var slack = 2e-7;
    frames.forEach(function (f) {
      var above = f.depth < to.depth && f.x <= to.x + slack && f.x + f.w >= to.x + to.w - slack;
      var within = f.depth >= to.depth && f.x >= to.x - slack && f.x + f.w <= to.x + to.w + slack;
      f.g.style.display = above || within ? "" : "none";
      if (!above && !within) return;
      var x = above ? left : left + ((f.x - to.x) / to.w) * width;
      var px = above ? width : (f.w / to.w) * width;
      f.rect.setAttribute("x", x);
      f.rect.setAttribute("width", px);
      f.rect.setAttribute("opacity", above ? 0.5 : 1);
      f.text.setAttribute("x", x + 3);
      f.text.textContent = label(f.name, px);
    });
  }

  function find() {
    var pattern = prompt("Mark frames that match (regular expression):", "");
    if (pattern === null) return;
    var expression;
    try {
      expression = pattern && new RegExp(pattern, "i");
    } catch (error) {
      detail.textContent = String(error.message);
      return;
    }
    var covered = -1;
    var share = 0;
    frames.forEach(function (f) {
      var found = Boolean(expression) && f.depth > 0 && expression.test(f.name);
      f.g.classList.toggle("found", found);
      // Frames come from left to right, outer before inner: count none twice.
      if (found && f.x >= covered - 2e-7) {
        share += f.w;
        covered = f.x + f.w;
      }
    });
    detail.textContent = expression ? "matched: " + (share * 100).toFixed(2) + " %" : "";
  }

  frames.forEach(function (f) {
    f.g.addEventListener("click", function () { zoom(f); });
    f.g.addEventListener("keydown", function (event) {
      if (event.key === "Enter") zoom(f);
    });
    f.g.addEventListener("mouseover", function () { detail.textContent = f.title; });
    f.g.addEventListener("focus", function () { detail.textContent = f.title; });
  });
  search.addEventListener("click", find);
})();
