// Before anything is painted, so that nothing flashes: the scheme that was chosen here the last time.
(() => {
  "use strict";
  try {
    const scheme = localStorage.getItem("pagefall.scheme");
    if (scheme === "light" || scheme === "dark") document.documentElement.dataset.scheme = scheme;
  } catch {
    // A browser that keeps nothing: the system's scheme.
  }
})();
