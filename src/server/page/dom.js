// What makes the page's elements. Text only ever becomes text nodes.

export function element(tag, class_name, text) {
  const made = document.createElement(tag);
  if (class_name) made.className = class_name;
  if (text !== undefined) made.textContent = text;
  return made;
}

// A button that copies what `text()` gives, and says so.
export function copy_button(label, copied, failed, text) {
  const button = element("button", "small", label);
  button.type = "button";
  const done = (word) => { button.textContent = word; };
  button.addEventListener("click", () =>
    navigator.clipboard?.writeText(text()).then(() => done(copied), () => done(failed)) ?? done(failed));
  return button;
}
