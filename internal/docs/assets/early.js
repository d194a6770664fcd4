// Runs first and sets the theme before the first paint, so that the page never shows
// the wrong one.
try {
  const theme = localStorage.getItem("petstore.theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Without storage, use the theme of the system.
}
