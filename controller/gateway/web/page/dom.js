// Building and changing the document. Text only: nothing that came over the network is ever taken for markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * @typedef {string | number | Node | null | undefined | false} Content
 */

/**
 * An element with attributes (on… are listeners, true is an empty attribute, false and null none) and content.
 * @param {string} tag @param {Record<string, any>} [attributes] @param {...(Content | Content[])} content
 * @returns {HTMLElement}
 */
export function el(tag, attributes = {}, ...content) {
  const node = document.createElement(tag);
  adorn(node, attributes, content);
  return node;
}

/**
 * The same for a picture.
 * @param {string} tag @param {Record<string, any>} [attributes] @param {...(Content | Content[])} content
 * @returns {SVGElement}
 */
export function svg(tag, attributes = {}, ...content) {
  const node = document.createElementNS(SVG, tag);
  adorn(node, attributes, content);
  return node;
}

/** @param {Element} node @param {Record<string, any>} attributes @param {(Content | Content[])[]} content */
function adorn(node, attributes, content) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const part of content.flat()) {
    if (part !== null && part !== undefined && part !== false) {
      node.append(part instanceof Node ? part : String(part));
    }
  }
}

/** The head of a table. @param {(Content | Content[])[]} cells */
export function heads(cells) {
  return el("thead", {}, el("tr", {}, ...cells.map((cell) => el("th", { scope: "col" }, cell))));
}

/**
 * Set the text of a node if it differs: the browser lays out again only then.
 * @param {Node} node
 * @param {string} value
 */
export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

/**
 * Set an attribute if it differs; null takes it away.
 * @param {Element} node
 * @param {string} name
 * @param {string | null} value
 */
export function attribute(node, name, value) {
  if (node.getAttribute(name) === value) return;
  if (value === null) node.removeAttribute(name);
  else node.setAttribute(name, value);
}

/** Offer text or bytes as a file to be saved. @param {string} name @param {BlobPart} content @param {string} type */
export function save(name, content, type) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
