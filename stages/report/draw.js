"use strict";
// Draws the pictures from the JSON beside them. Everything else on the page works without it.
(function () {
  const options = {
    actions: false, renderer: "svg", ast: true, defaultStyle: false,
    tooltip: { disableDefaultStyle: true, maxDepth: 1 },
  };
  const quiet = { load: () => Promise.reject(new Error("nothing is fetched")) };
  const views = {};
  const drawn = [...document.querySelectorAll("[data-chart]")].map((place) => {
    const spec = JSON.parse(document.getElementById(place.dataset.chart).textContent);
    return vegaEmbed(place, spec, { ...options, loader: quiet }).then((result) => {
      views[place.dataset.chart] = result.view;
    });
  });
  Promise.all(drawn).then(
    () => document.documentElement.setAttribute("data-drawn", "yes"),
    (error) => {
      document.documentElement.setAttribute("data-drawn", "no");
      throw error;
    });

  const choices = document.querySelectorAll("input[name=colour]");
  choices.forEach((choice) => choice.addEventListener("change", () => {
    views["chart-map"].signal("colour", choice.value).runAsync();
    document.querySelectorAll("[data-key]").forEach((key) => {
      key.hidden = key.dataset.key !== choice.value;
    });
  }));

  const copy = document.getElementById("copy");
  copy.addEventListener("click", () => {
    const text = document.getElementById("command").textContent;
    navigator.clipboard.writeText(text).then(() => {
      document.getElementById("copied").textContent = "copied";
    });
  });
  copy.hidden = !navigator.clipboard;
})();
