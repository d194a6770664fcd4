// Runs before the first paint. It sets the theme, and says that modules will change the page, so
// that its parts already have their places.
document.documentElement.classList.add("scripted");
try {
  const theme = localStorage.getItem("petstore.theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Without storage, use the theme of the system.
}
