// Markdown of an answer as DOM nodes: headings, lists, quotes, rules, code with a button that copies it, inline
// code and bold. Everything a model wrote becomes text nodes; a link stays text, with its address behind it.
import { copy_button, element } from "./dom.js";
import { t } from "./words.js";

// `code`, **bold** and [text](address) of one paragraph.
function add_inline(parent, text) {
  const marks = /(`+)|\*\*|\[([^[\]\n]+)\]\(([^()\s]+)\)/g;
  let shown = 0;
  const add = (end, next, node) => {
    if (end > shown) parent.append(text.slice(shown, end));
    parent.append(node);
    shown = marks.lastIndex = next;
  };
  for (let mark = marks.exec(text); mark; mark = marks.exec(text)) {
    const begin = mark.index + mark[0].length;
    if (mark[2]) {
      const link = element("span", "link");
      link.append(mark[2], element("span", "faint", ` (${mark[3]})`));
      add(mark.index, begin, link);
      continue;
    }
    const end = text.indexOf(mark[0], begin);
    const inside = text.slice(begin, end);
    if (end < 0 || !inside.trim() || (mark[1] && text[end + mark[0].length] === "`")) continue;
    if (mark[1]) {
      add(mark.index, end + mark[0].length, element("code", "", inside));
    } else if (inside.trim() === inside) {
      const strong = element("strong");
      add_inline(strong, inside);
      add(mark.index, end + 2, strong);
    }
  }
  if (shown < text.length) parent.append(text.slice(shown));
}

const kFence = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$/;
const kHeading = /^ {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*$/;
const kRule = /^ {0,3}([-*_])[ \t]*(\1[ \t]*){2,}$/;
const kItem = /^( *)([-*+]|\d{1,9}[.)])[ \t]+(.*)$/;
const kQuote = /^ {0,3}> ?(.*)$/;

function code_block(language, code) {
  const box = element("div", "code");
  const bar = box.appendChild(element("div", "row"));
  const copy = copy_button(t("copy"), t("copied"), t("no_copy"), () => code);
  bar.append(element("span", "faint", language), element("span", "gap"), copy);
  box.append(element("pre", "", code));
  return box;
}

// Items with their depth of indentation; deeper ones become lists in their item.
function list_of(items) {
  const stack = [];  // {indent, list, is_ordered}, from the outermost
  const lists = [];
  for (const { indent, marker, text } of items) {
    while (stack.length && indent < stack.at(-1).indent) stack.pop();
    const is_ordered = /\d/.test(marker);
    const here = stack.at(-1);
    if (here && here.is_ordered !== is_ordered && indent <= here.indent + 1) stack.pop();  // another list begins
    if (!stack.length || indent > stack.at(-1).indent + 1) {
      const list = element(is_ordered ? "ol" : "ul");
      if (is_ordered) list.start = parseInt(marker, 10);
      if (stack.length) (stack.at(-1).list.lastElementChild ?? stack.at(-1).list).append(list);
      else lists.push(list);
      stack.push({ indent, list, is_ordered });
    }
    add_inline(stack.at(-1).list.appendChild(element("li")), text);
  }
  return lists;
}

// The nodes of lines without a fence.
function nodes_of(lines) {
  const nodes = [];
  let paragraph = [];
  let items = [];
  const flush = () => {
    if (paragraph.length) add_inline(nodes[nodes.push(element("p")) - 1], paragraph.join("\n"));
    nodes.push(...list_of(items));
    paragraph = [];
    items = [];
  };
  for (let i = 0; i < lines.length; ++i) {
    const line = lines[i];
    const heading = kHeading.exec(line);
    const item = kItem.exec(line);
    if (!line.trim()) {
      flush();
    } else if (heading) {
      flush();
      add_inline(nodes[nodes.push(element(`h${Math.min(heading[1].length + 2, 6)}`)) - 1], heading[2]);
    } else if (kRule.test(line)) {
      flush();
      nodes.push(element("hr"));
    } else if (item) {
      if (paragraph.length) flush();
      items.push({ indent: item[1].length, marker: item[2], text: item[3] });
    } else if (kQuote.test(line)) {
      flush();
      const inside = [];
      while (i < lines.length && kQuote.test(lines[i])) inside.push(kQuote.exec(lines[i++])[1]);
      --i;
      nodes[nodes.push(element("blockquote")) - 1].append(...nodes_of(inside));
    } else if (items.length && /^\s+\S/.test(line)) {
      items.at(-1).text += `\n${line.trim()}`;
    } else {
      if (items.length) flush();
      paragraph.push(line);
    }
  }
  flush();
  return nodes;
}

// How many of the lines are one block, and whether it is complete: nothing that follows can change it. The last
// line may still grow.
function next_block(lines) {
  const fence = kFence.exec(lines[0]);
  if (fence) {
    const closing = (line) => {
      const found = kFence.exec(line);
      return found && found[1][0] === fence[1][0] && found[1].length >= fence[1].length && !found[2].trim();
    };
    const end = lines.findIndex((line, i) => i > 0 && closing(line));
    const code = lines.slice(1, end < 0 ? lines.length : end).join("\n");
    const count = end < 0 ? lines.length : end + 1;
    return { count, complete: end >= 0 && count < lines.length, nodes: () => [code_block(fence[2].trim(), code)] };
  }
  const whole = lines.slice(0, -1);
  const end = whole.findIndex((line, i) => !line.trim() || (i > 0 && kFence.test(line)));
  const count = end < 0 ? lines.length : Math.max(end, 1);
  return { count, complete: end >= 0, nodes: () => (end === 0 ? [] : nodes_of(lines.slice(0, count))) };
}

// An answer that grows: pieces are gathered and shown once a frame. Blocks that are complete stay as they are.
export class MarkdownText {
  constructor(parent, on_grow) {
    this.box = parent.appendChild(element("div", "text markdown"));
    this.on_grow = on_grow;
    this.text = "";
    this.open = "";      // from the first block that may still change
    this.num_done = 0;   // nodes of complete blocks
    this.scheduled = false;
  }
  add(piece) {
    this.text += piece;
    this.open += piece;
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => this.show());
  }
  show() {
    this.scheduled = false;
    while (this.box.childNodes.length > this.num_done) this.box.lastChild.remove();
    let lines = this.open.split("\n");
    while (lines.length) {
      const block = next_block(lines);
      this.box.append(...block.nodes());
      lines = lines.slice(block.count);
      if (!block.complete) break;
      this.open = lines.join("\n");
      this.num_done = this.box.childNodes.length;
    }
    this.on_grow();
  }
}
