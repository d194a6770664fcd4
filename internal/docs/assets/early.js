// Runs before the first paint. It sets the theme, and says that modules will change the page, so
// that its parts already have their places.
document.documentElement.classList.add("scripted");
try {
  const theme = localStorage.getItem("petstore.theme");
  if (theme) document.documentElement.dataset.theme = theme;
  // The Back button may show this page as the reader left it. If stored settings have changed since, load it again.
  // The ids of responses are no settings. One more can change the order of all entries.
  const isSetting = ([name]) => !name.startsWith("petstore.id.");
  const stored = () => JSON.stringify([localStorage, Object.entries(sessionStorage).filter(isSetting).sort()]);
  let left;
  addEventListener("pagehide", () => (left = stored()));
  addEventListener("pageshow", ({ persisted }) => persisted && stored() !== left && location.reload());
} catch {
  // Without storage, use the theme of the system.
}
