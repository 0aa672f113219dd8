// What starts everything: words, key, views.
import { key, set_key } from "./api.js";
import { setup_chat } from "./chat.js";
import { look_now, repaint, setup_live } from "./live.js";
import { setup_prompt } from "./prompt.js";
import { setup_words } from "./words.js";

const $ = (id) => document.getElementById(id);

function setup_key() {
  $("key").value = key();
  const keep = () => {
    if ($("key").value.trim() === key()) return;
    set_key($("key").value.trim());
    look_now();
  };
  $("key").addEventListener("change", keep);
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    keep();
  });
}

function setup_views() {
  for (const tab of document.querySelectorAll("[role=tab]"))
    tab.addEventListener("click", () => {
      for (const other of document.querySelectorAll("[role=tab]")) {
        other.setAttribute("aria-selected", String(other === tab));
        $(other.dataset.view).hidden = other !== tab;
      }
    });
}

setup_words(repaint);
setup_key();
setup_views();
setup_chat();
setup_prompt();
setup_live();
