// Light, dark or as the system has it. Runs before the first paint (a classic script), so that nothing flashes.

(() => {
  const KEY = "talon.theme";
  const ORDER = ["auto", "light", "dark"];

  function stored() {
    try {
      return ORDER.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "auto";
    } catch {
      return "auto"; // storage is switched off
    }
  }

  function apply(theme) {
    document.documentElement.dataset.theme = theme;
  }

  apply(stored());

  /** Used by shell.js: the present theme, and the step to the next one. */
  window.talonTheme = {
    get: () => document.documentElement.dataset.theme,
    next() {
      const theme = ORDER[(ORDER.indexOf(this.get()) + 1) % ORDER.length];
      apply(theme);
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // it holds until the page is closed
      }
      document.dispatchEvent(new Event("themechange"));
      return theme;
    },
  };
})();
