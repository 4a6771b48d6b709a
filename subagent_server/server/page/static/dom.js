// Builds elements. Every text and attribute goes through `visible`: what runs say is data.

const PICTURES = 0x2400;
// Joiners stay between letters or pictures that they join, as in `run/errors.py`.
const JOINED = "[\\u0600-\\u0dff\\u2190-\\u2bff\\ufe0f\\u{1f000}-\\u{1faff}]";
const UNSEEN = new RegExp(`(?![\\t\\n]|(?<=${JOINED})[\\u200c\\u200d]${JOINED})[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]`, "gu");

/** Return a text in which control characters and those that turn the direction of text can be seen. */
export function visible(text) {
  return String(text).replace(UNSEEN, (character) => {
    const code = character.codePointAt(0);
    if (code === 13) return "";
    if (code < 32) return String.fromCodePoint(PICTURES + code);
    return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}

/**
 * Return an element. `facts` are its attributes, but `on` (listeners by event), `class` and `data` as usual;
 * an attribute that is null or false is left out. Children are nodes or texts.
 */
export function el(name, facts = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(facts)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else if (key === "data") Object.assign(made.dataset, value);
    else made.setAttribute(key, value === true ? "" : key === "href" ? String(value) : visible(value));
  }
  add(made, children);
  return made;
}

/** Append nodes and texts to an element; nothing for null, undefined and false. */
export function add(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : visible(child));
  }
}

/** Put these nodes and texts into an element in place of what it has. */
export function fill(parent, ...children) {
  parent.replaceChildren();
  add(parent, children);
}

/** Set a text only if it differs, so that nothing moves under a reader. */
export function tell(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}
