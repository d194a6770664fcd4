// Runs before all else: the theme is set before the first paint, so that the page
// never shows the wrong one.
try {
  const theme = localStorage.getItem("petstore.theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Storage is closed to us; the system's theme it is.
}

// Swagger UI brings a library that takes links within the page over, and scrolls
// past our bar. This is its own switch against that.
window.noZensmooth = true;
