// Small helpers: elements, numbers, sizes.

export const $ = (id) => document.getElementById(id);

/** An element: h("a", {href: "/", class: "x", onclick: f}, "text", child, ...). Falsy children are left out. */
export function h(tag, properties = {}, ...children) {
  const svg = ["svg", "path", "line", "circle", "text", "g", "title", "polyline"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const whole = new Intl.NumberFormat("en");
export const number = (value) => whole.format(value);

export function bytes(count) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
  return `${unit && count < 100 ? count.toFixed(1).replace(/\.0$/, "") : number(Math.round(count))} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(1)} s`;
  return `${(seconds * 1000).toFixed(seconds < 0.01 ? 2 : 0)} ms`;
}

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

/** Save a text as a file. */
export function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
